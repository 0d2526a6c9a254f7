"""The official client over HTTPS and HTTP/2 (WEIR_URL is https, SSL_CERT_FILE what it is trusted by)."""

import asyncio
import os

import openai
import pytest

URL = os.environ["WEIR_URL"]
pytestmark = pytest.mark.skipif(not URL.startswith("https://"), reason="the gateway speaks HTTP")
BODY = {"model": "tiny-chat", "messages": [{"role": "user", "content": "Count from 1 to 20."}], "temperature": 0}


def client(**options):
    return openai.OpenAI(base_url=f"{URL}/v1", api_key="acme-dev-key", max_retries=0, **options)


def test_both_versions_of_http_answer_alike():
    texts = []
    for http2, version in [(False, "HTTP/1.1"), (True, "HTTP/2")]:
        over = client(http_client=openai.DefaultHttpxClient(http2=http2))
        raw = over.chat.completions.with_raw_response.create(**BODY)
        assert raw.http_response.http_version == version
        chunks = list(over.chat.completions.create(**BODY, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == raw.parse().choices[0].message.content
        texts.append(text)
    assert texts[0] == texts[1]


def test_many_streams_share_one_connection():
    async def all_at_once():
        http = openai.DefaultAsyncHttpxClient(http2=True)
        over = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="acme-dev-key", http_client=http)

        async def one():
            stream = await over.chat.completions.create(**BODY, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        return await asyncio.gather(*(one() for _ in range(12)))

    assert len(set(asyncio.run(all_at_once()))) == 1


def test_a_client_that_trusts_nobody_here_is_told_so(monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(openai.APIConnectionError):
        client().models.list()
