"""The Responses API through the official client, unmodified (WEIR_URL)."""

import os
import time

import openai
import pytest

URL = os.environ["WEIR_URL"]
MODEL = "tiny-chat"


@pytest.fixture
def client():
    return openai.OpenAI(base_url=f"{URL}/v1", api_key="acme-dev-key", max_retries=0)


def body(text, **more):
    return {"model": MODEL, "input": text, "temperature": 0, **more}


def ended(client, response):
    deadline = time.monotonic() + 60
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < deadline, response
        response = client.responses.retrieve(response.id)
    return response


def test_a_response_is_created_retrieved_and_deleted(client):
    response = client.responses.create(**body("Name a primary colour.", instructions="Be brief.", metadata={"a": "b"}))
    assert response.status == "completed" and response.object == "response"
    assert any(colour in response.output_text.lower() for colour in ("red", "blue", "yellow"))
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert client.responses.retrieve(response.id).model_dump() == response.model_dump()
    items = list(client.responses.input_items.list(response.id))
    assert [item.content[0].text for item in items] == ["Name a primary colour."]
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_stream_has_the_events_and_numbers_that_the_client_expects(client):
    events = list(client.responses.create(**body("Spell the word house.", stream=True)))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert kinds[2:4] == ["response.output_item.added", "response.content_part.added"]
    assert kinds[-4:-1] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == client.responses.retrieve(events[-1].response.id).output_text


def test_the_clients_own_accumulator_understands_the_stream(client):
    with client.responses.stream(**body("Spell the word house.")) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text


@pytest.mark.parametrize("background", [False, True])
def test_a_stream_is_resumed_anywhere_with_starting_after(client, background):
    events = list(client.responses.create(**body("Count from 1 to 5.", stream=True, background=background)))
    response_id = events[0].response.id
    for after in range(0, len(events), 3):
        rest = list(client.responses.retrieve(response_id, stream=True, starting_after=after))
        assert [event.model_dump() for event in rest] == [event.model_dump() for event in events[after + 1 :]]


def test_a_background_response_outlives_its_stream(client):
    with client.responses.create(**body("Count from 1 to 50.", stream=True, background=True)) as stream:
        first = next(iter(stream))
    assert first.type == "response.created" and first.response.status == "queued"
    response = ended(client, first.response)
    assert response.status in ("completed", "incomplete") and response.output_text
    whole = list(client.responses.retrieve(response.id, stream=True))
    assert whole[-1].response.output_text == response.output_text


def test_a_background_response_is_polled_and_cancelled(client):
    response = client.responses.create(**body("Count from 1 to 50.", background=True))
    assert response.status in ("queued", "in_progress") or response.output
    cancelled = client.responses.cancel(response.id)
    assert ended(client, cancelled).status in ("cancelled", "completed", "incomplete")


def test_a_conversation_goes_on(client):
    first = client.responses.create(**body("Name a primary colour."))
    second = client.responses.create(**body("Spell the word house.", previous_response_id=first.id))
    assert second.previous_response_id == first.id
    by_hand = client.responses.create(
        **body(
            [
                {"role": "user", "content": "Name a primary colour."},
                *[item.model_dump(exclude_none=True) for item in first.output],
                {"role": "user", "content": "Spell the word house."},
            ]
        )
    )
    assert by_hand.output_text == second.output_text
    assert by_hand.usage.input_tokens == second.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(**body("And now?", previous_response_id=second.id))
    assert raised.value.code == "previous_response_not_found"


def test_a_response_that_reaches_its_ceiling_is_incomplete(client):
    response = client.responses.create(**body("Count from 1 to 50.", max_output_tokens=4))
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.output_tokens == 4


def test_logprobs_are_shown_where_asked_for(client):
    response = client.responses.create(
        **body("Name a primary colour.", include=["message.output_text.logprobs"], top_logprobs=2)
    )
    entries = response.output[0].content[0].logprobs
    assert entries and all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)


def test_an_idempotency_key_makes_a_repeat_the_same_response(client):
    ids = {
        client.responses.create(**body("Tell a story."), extra_headers={"Idempotency-Key": f"resp-{os.getpid()}"}).id
        for _ in range(3)
    }
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda c: c.embeddings.create(model=MODEL, input="x"), "unsupported_endpoint"),
        (lambda c: c.moderations.create(input="x"), "unsupported_endpoint"),
        (lambda c: c.images.generate(prompt="x"), "unsupported_endpoint"),
        (lambda c: c.fine_tuning.jobs.list(), "unsupported_endpoint"),
        (lambda c: c.responses.retrieve("resp_nothing"), "run_not_found"),
        (lambda c: c.responses.create(**body("x", reasoning={"effort": "high"})), "unsupported_parameter"),
    ],
)
def test_what_is_not_here_is_refused_once_and_clearly(client, call, code):
    with pytest.raises(openai.APIStatusError) as raised:
        call(client.with_options(max_retries=2))
    assert raised.value.code == code
    assert raised.value.response.headers["x-should-retry"] == "false"
    assert raised.value.response.headers["x-request-id"]


def test_answers_say_what_is_left_of_the_rates(client):
    raw = client.responses.with_raw_response.create(**body("Say hello.", max_output_tokens=8))
    limit = int(raw.headers["x-ratelimit-limit-requests"])
    assert 0 <= int(raw.headers["x-ratelimit-remaining-requests"]) < limit
    assert raw.headers["x-ratelimit-reset-requests"].endswith("s")
    assert raw.headers["x-run-id"].startswith("run_")


def test_a_version_of_a_model_is_found_where_it_may_be_named(client):
    model = client.models.retrieve(MODEL)
    try:
        pinned = client.models.retrieve(f"{MODEL}@{model.version}")
        assert pinned.version == model.version
    except openai.PermissionDeniedError as error:
        assert error.code == "model_not_permitted"
