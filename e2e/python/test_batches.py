"""Files and batches through the official client, unmodified (WEIR_URL)."""

import json
import os
import time

import openai
import pytest

URL = os.environ["WEIR_URL"]
MODEL = "tiny-chat"


@pytest.fixture
def client():
    return openai.OpenAI(base_url=f"{URL}/v1", api_key="acme-dev-key", max_retries=0)


def line(name, url, **body):
    return {"custom_id": name, "method": "POST", "url": url, "body": {"model": MODEL, **body}}


def upload(client, lines):
    text = "\n".join(json.dumps(each) for each in lines)
    return client.files.create(file=("in.jsonl", text.encode()), purpose="batch")


def done(client, batch):
    deadline = time.monotonic() + 120
    while batch.status not in ("completed", "failed", "cancelled", "expired"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    return batch


def records(client, file_id):
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


def test_a_file_is_uploaded_listed_read_and_deleted(client):
    file = client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    assert file.object == "file" and file.bytes == 3 and file.filename == "a.jsonl"
    assert file.expires_at == file.created_at + 3600
    assert client.files.retrieve(file.id).model_dump() == file.model_dump()
    assert file.id in [each.id for each in client.files.list(purpose="batch", limit=1)]
    assert client.files.content(file.id).content == b"{}\n"
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.BadRequestError):
        client.files.create(file=("a.txt", b"x"), purpose="assistants")


@pytest.mark.parametrize(
    ("endpoint", "ask", "text"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Name a primary colour."}], "max_tokens": 8},
            lambda answer: answer["choices"][0]["message"]["content"],
        ),
        ("/v1/completions", {"prompt": "The capital of France is", "max_tokens": 4}, lambda answer: answer["choices"][0]["text"]),
        (
            "/v1/responses",
            {"input": "Name a primary colour.", "max_output_tokens": 8},
            lambda answer: answer["output"][0]["content"][0]["text"],
        ),
    ],
)
def test_a_batch_has_one_result_for_each_line(client, endpoint, ask, text):
    lines = [line(f"line-{n}", endpoint, temperature=0, **ask) for n in range(6)]
    lines.append(line("bad", endpoint, frobnicate=1))
    file = upload(client, lines)
    batch = client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"job": "nightly"}
    )
    assert batch.status == "validating" and batch.object == "batch"
    batch = done(client, batch)
    assert batch.status == "completed", batch
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (7, 6, 1)
    output, errors = records(client, batch.output_file_id), records(client, batch.error_file_id)
    assert [each["custom_id"] for each in output] == [f"line-{n}" for n in range(6)]
    assert len({text(each["response"]["body"]) for each in output}) == 1
    assert errors[0]["custom_id"] == "bad" and errors[0]["response"]["status_code"] == 400
    assert batch.id in [each.id for each in client.batches.list(limit=2)]
    assert batch.usage.output_tokens > 0


def test_a_batch_is_cancelled_and_keeps_what_is_done(client):
    ask = {"messages": [{"role": "user", "content": "Count from 1 to 50."}], "max_tokens": 64}
    file = upload(client, [line(f"line-{n}", "/v1/chat/completions", **ask) for n in range(40)])
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    batch = client.batches.cancel(batch.id)
    assert batch.status in ("cancelling", "cancelled")
    batch = done(client, batch)
    assert batch.status == "cancelled"
    counts = batch.request_counts
    assert counts.completed + counts.failed == counts.total == 40
    assert len(records(client, batch.error_file_id)) == counts.failed
