"""The official client, unmodified, against a running `weir up examples/quickstart` (WEIR_URL)."""

import os

import openai
import pytest

URL = os.environ["WEIR_URL"]
MODEL = "tiny-chat"


def client(key="acme-dev-key", **options):
    return openai.OpenAI(base_url=f"{URL}/v1", api_key=key, **options)


def ask(text):
    return [{"role": "user", "content": text}]


def test_models_are_listed_and_found():
    names = [model.id for model in client().models.list()]
    assert MODEL in names
    assert client().models.retrieve(MODEL).id == MODEL


def test_chat_answers_with_usage():
    answer = client().chat.completions.create(model=MODEL, messages=ask("Name a primary colour."), temperature=0)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert any(colour in choice.message.content.lower() for colour in ("red", "blue", "yellow"))
    assert choice.finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize(
    ("question", "reason"), [("Spell the word house.", "stop"), ("Count from 1 to 50.", "length")]
)
def test_a_stream_equals_the_whole_answer_and_ends_once(question, reason):
    body = {"model": MODEL, "messages": ask(question), "temperature": 0, "max_tokens": 30}
    whole = client().chat.completions.create(**body)
    chunks = list(client().chat.completions.create(**body, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks]
    assert reasons[-1] == reason and all(earlier is None for earlier in reasons[:-1])
    assert all(c.usage is None for c in chunks), "usage comes only when asked for"
    assert len({c.id for c in chunks}) == 1


def test_usage_comes_in_a_last_chunk_of_its_own_when_asked_for():
    chunks = list(
        client().chat.completions.create(
            model=MODEL, messages=ask("Say hello."), temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert all(c.usage is None for c in chunks[:-1])


def test_a_stop_string_cuts_the_text_before_it():
    answer = client().chat.completions.create(
        model=MODEL, messages=ask("Count from 1 to 20."), temperature=0, stop=["5", "no such text"]
    )
    text = answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop" and "4" in text and "5" not in text


def test_length_ends_an_answer():
    answer = client().chat.completions.create(
        model=MODEL, messages=ask("Count from 1 to 50."), temperature=0, max_completion_tokens=5
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5


def test_logprobs_cover_every_token():
    answer = client().chat.completions.create(
        model=MODEL, messages=ask("Name a primary colour."), temperature=0, logprobs=True, top_logprobs=3
    )
    entries = answer.choices[0].logprobs.content
    assert len(entries) >= 1
    for entry in entries:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        best = entry.top_logprobs[0]
        assert entry.token == best.token and abs(entry.logprob - best.logprob) < 1e-4, "greedy takes the best"
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert answer.choices[0].message.content in text


def test_several_choices_come_back_in_order():
    answer = client().chat.completions.create(model=MODEL, messages=ask("Tell a story."), n=3, seed=7, max_tokens=12)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def test_a_seed_repeats_an_answer():
    texts = {
        client()
        .chat.completions.create(model=MODEL, messages=ask("Tell a story."), seed=11, temperature=1, max_tokens=24)
        .choices[0]
        .message.content
        for _ in range(3)
    }
    assert len(texts) == 1


def test_completions_work_whole_and_streamed():
    whole = client().completions.create(model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0)
    assert whole.object == "text_completion" and whole.usage.completion_tokens <= 4
    chunks = list(
        client().completions.create(
            model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0, stream=True
        )
    )
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text


def test_an_echoed_text_is_scored_as_it_was_generated():
    prompt = "The capital of France is"
    made = client().completions.create(model=MODEL, prompt=prompt, max_tokens=6, temperature=0, logprobs=2).choices[0]
    again = client().completions.create(
        model=MODEL, prompt=prompt + made.text, max_tokens=1, temperature=0, logprobs=2, echo=True
    ).choices[0]
    assert again.text.startswith(prompt + made.text)
    assert again.logprobs.token_logprobs[0] is None and again.logprobs.top_logprobs[0] is None
    of_text = dict(zip(again.logprobs.text_offset, zip(again.logprobs.tokens, again.logprobs.token_logprobs)))
    shift = sum(len(token) for token in again.logprobs.tokens) - len(again.text)
    for offset, token, logprob in zip(made.logprobs.text_offset, made.logprobs.tokens, made.logprobs.token_logprobs):
        seen, scored = of_text[len(prompt) + offset + shift]
        assert seen == token and abs(scored - logprob) < 1e-3


@pytest.mark.parametrize(
    ("change", "error", "code"),
    [
        ({"model": "nobody"}, openai.PermissionDeniedError, "model_not_permitted"),
        ({"messages": []}, openai.BadRequestError, "invalid_request"),
        ({"temperature": 9}, openai.BadRequestError, "invalid_request"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, openai.APIStatusError, None),
        ({"max_tokens": 1_000_000}, openai.APIStatusError, "output_too_long"),
    ],
)
def test_errors_arrive_as_the_clients_own_classes(change, error, code):
    body = {"model": MODEL, "messages": ask("hi"), **change}
    with pytest.raises(error) as raised:
        client(max_retries=0).chat.completions.create(**body)
    assert raised.value.status_code < 500
    if code:
        assert raised.value.code == code


def test_a_wrong_key_is_an_authentication_error():
    with pytest.raises(openai.AuthenticationError):
        client("wrong").models.list()


def test_embeddings_are_refused_clearly():
    with pytest.raises(openai.APIStatusError) as raised:
        client(max_retries=0).embeddings.create(model=MODEL, input="x")
    assert "embeddings" in str(raised.value).lower()


def test_an_idempotency_key_makes_a_retry_the_same_run():
    ids = set()
    for _ in range(2):
        raw = client().chat.completions.with_raw_response.create(
            model=MODEL, messages=ask("Say hello."), temperature=1, extra_headers={"Idempotency-Key": "once"}
        )
        ids.add(raw.headers["x-run-id"])
    assert len(ids) == 1


def test_refusals_say_whether_to_retry():
    with pytest.raises(openai.APIStatusError) as raised:
        client(max_retries=0).chat.completions.create(
            model=MODEL, messages=ask("hi"), extra_headers={"x-weir-deadline": "2020-01-01T00:00:00.000Z"}
        )
    assert raised.value.status_code == 429
    assert raised.value.response.headers["x-should-retry"] == "false"
