"""Formats and tools through the official client. `tiny-chat` has never seen JSON or a tool: what is valid is valid by the grammar alone."""

import json
import os
import random
import re
from typing import Literal

import openai
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

from schemas import schema

URL = os.environ["WEIR_URL"]
MODEL = "tiny-chat"
#: `cargo xtask test --full` asks for more.
SCHEMAS = int(os.environ.get("WEIR_SCHEMAS", "50"))

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 1, "maxLength": 12},
                "unit": {"enum": ["celsius", "kelvin"]},
                "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 6}, "maxItems": 3},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}


def client(**options):
    return openai.OpenAI(base_url=f"{URL}/v1", api_key="acme-dev-key", max_retries=0, **options)


def ask(text):
    return [{"role": "user", "content": text}]


def create(**body):
    return client().chat.completions.create(**{"model": MODEL, "messages": ask("Name a primary colour."), "max_tokens": 900, **body})


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_any_schema_s_output_is_valid(seed):
    wanted = schema(random.Random(seed))
    Draft202012Validator.check_schema(wanted)
    answer = create(
        response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": wanted, "strict": True}},
        seed=seed,
        temperature=[0, 0.7, 1.3][seed % 3],
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "stop", (wanted, choice.message.content)
    document = json.loads(choice.message.content)
    errors = [error.message for error in Draft202012Validator(wanted).iter_errors(document)]
    assert not errors, (wanted, choice.message.content, errors)


def test_a_seed_repeats_a_document_and_a_stream_has_the_same_text():
    body = {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema(random.Random(3))}}, "seed": 5}
    whole = create(**body).choices[0].message.content
    assert create(**body).choices[0].message.content == whole
    chunks = list(create(**body, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole


class Step(BaseModel):
    model_config = ConfigDict(extra="forbid")
    colour: Literal["red", "green", "blue"]
    amount: int = Field(ge=0, le=100)


class Plan(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str = Field(max_length=16)
    steps: list[Step] = Field(min_length=1, max_length=3)


def test_the_client_parses_a_model_of_its_own():
    answer = client().chat.completions.parse(model=MODEL, messages=ask("Say hello."), response_format=Plan, max_tokens=600)
    plan = answer.choices[0].message.parsed
    assert isinstance(plan, Plan) and 1 <= len(plan.steps) <= 3


def test_json_object_is_an_object_or_cut_by_its_ceiling():
    for seed in range(4):
        choice = create(response_format={"type": "json_object"}, seed=seed, max_tokens=120).choices[0]
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
        else:
            assert choice.finish_reason == "length"


def test_a_regular_expression_matches_the_whole_output():
    for seed in range(5):
        expression = r"(red|blue)-\d{3}( [a-z]{2,5}){1,3}"
        choice = create(extra_body={"response_format": {"type": "regex", "pattern": expression}}, seed=seed).choices[0]
        assert re.fullmatch(expression, choice.message.content), choice.message.content


def test_a_grammar_derives_the_output():
    grammar = 'start: pair ("," pair)*\npair: "<" /[a-z]{1,4}/ ">"\n'
    choice = create(extra_body={"response_format": {"type": "grammar", "grammar": grammar}}, max_tokens=40).choices[0]
    if choice.finish_reason == "stop":
        assert re.fullmatch(r"<[a-z]{1,4}>(,<[a-z]{1,4}>)*", choice.message.content)


def calls_of(message):
    for call in message.tool_calls or []:
        assert call.id.startswith("call_") and call.type == "function"
        arguments = json.loads(call.function.arguments)
        if call.function.name == "get_weather":
            Draft202012Validator(WEATHER["function"]["parameters"]).validate(arguments)
        else:
            assert (call.function.name, arguments) == ("now", {})
    return message.tool_calls or []


@pytest.mark.parametrize("seed", range(4))
def test_a_required_call_is_whole_and_valid(seed):
    choice = create(tools=[WEATHER, CLOCK], tool_choice="required", parallel_tool_calls=False, seed=seed).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert len(calls_of(choice.message)) == 1


def test_a_named_tool_is_the_one_that_is_called():
    choice = create(tools=[CLOCK, WEATHER], tool_choice={"type": "function", "function": {"name": "get_weather"}}).choices[0]
    assert [call.function.name for call in calls_of(choice.message)] == ["get_weather"]


def test_auto_is_text_or_calls_and_none_is_text():
    for seed in range(4):
        choice = create(tools=[WEATHER], seed=seed, temperature=1.5, max_tokens=60).choices[0]
        if choice.finish_reason != "length":
            assert choice.finish_reason == ("tool_calls" if calls_of(choice.message) else "stop")
    choice = create(tools=[WEATHER], tool_choice="none").choices[0]
    assert choice.message.tool_calls is None and choice.message.content


@pytest.mark.parametrize("seed", range(6))
def test_tools_and_a_format_together_give_calls_or_a_document_of_the_schema(seed):
    wanted = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"], "additionalProperties": False}
    body = {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": wanted}}, "tools": [CLOCK], "seed": seed, "temperature": 1.5}
    choice = create(**body).choices[0]
    if calls_of(choice.message):
        assert choice.finish_reason == "tool_calls" and not choice.message.content
    else:
        Draft202012Validator(wanted).validate(json.loads(choice.message.content))
    required = create(**body, tool_choice="required", parallel_tool_calls=False).choices[0]
    assert len(calls_of(required.message)) == 1 and required.message.content is None


def test_a_stream_s_calls_add_up_to_the_whole_answer_s():
    body = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "seed": 2, "temperature": 1}
    whole = create(**body).choices[0]
    calls, reasons = {}, []
    for chunk in create(**body, stream=True):
        delta = chunk.choices[0].delta
        reasons.append(chunk.choices[0].finish_reason)
        assert not delta.content
        for piece in delta.tool_calls or []:
            if piece.index not in calls:
                assert piece.id and piece.function.name and piece.type == "function"
                calls[piece.index] = piece.function
                continue
            assert piece.id is None and piece.function.name is None
            calls[piece.index].arguments += piece.function.arguments
    assert reasons[-1] == "tool_calls" and all(reason is None for reason in reasons[:-1])
    want = [(call.function.name, call.function.arguments) for call in calls_of(whole.message)]
    assert [(call.name, call.arguments) for call in calls.values()] == want


def test_the_client_s_own_stream_helper_understands_the_calls():
    tool = openai.pydantic_function_tool(Step, name="paint")
    with client().chat.completions.stream(model=MODEL, messages=ask("Say hello."), tools=[tool], tool_choice="required",
                                          parallel_tool_calls=False, max_tokens=300) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert isinstance(final.choices[0].message.tool_calls[0].function.parsed_arguments, Step)


def test_a_conversation_with_results_goes_on():
    first = create(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False).choices[0].message
    call = first.tool_calls[0]
    answer = create(
        tools=[WEATHER],
        tool_choice="none",
        messages=[*ask("What is the weather?"), first, {"role": "tool", "tool_call_id": call.id, "content": "It rains."}],
    )
    assert answer.choices[0].message.content


def test_a_call_that_the_ceiling_cuts_is_none():
    choice = create(tools=[WEATHER], tool_choice="required", max_tokens=12).choices[0]
    assert choice.finish_reason == "length" and choice.message.tool_calls is None


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "text"}}}}}}, "schema_error", "#/properties/a/type"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}}, "schema_error", "#/not"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}}, "schema_error", None),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "uniqueItems": True}}}]}, "schema_error", "#/uniqueItems"),
        ({"extra_body": {"response_format": {"type": "regex", "pattern": "a("}}}, "schema_error", None),
        ({"extra_body": {"response_format": {"type": "regex", "pattern": "a+"}}, "tools": [CLOCK]}, "unsupported_parameter", None),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "invalid_request", None),
        ({"response_format": {"type": "json_object"}, "extra_body": {"ignore_eos": True}}, "unsupported_parameter", None),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_place(body, code, pointer):
    with pytest.raises(openai.APIStatusError) as raised:
        create(**body)
    assert raised.value.code == code, raised.value
    assert raised.value.status_code == (422 if code == "schema_error" else 400)
    if pointer:
        assert raised.value.body["details"]["pointer"] == pointer


FLAT = {"type": "function", **WEATHER["function"], "strict": True}


def respond(**body):
    return client().responses.create(**{"model": MODEL, "input": "What is the weather?", "max_output_tokens": 600, "parallel_tool_calls": False, **body})


def test_the_responses_api_calls_functions_and_takes_their_results():
    first = respond(tools=[FLAT], tool_choice="required")
    assert first.status == "completed" and [item.type for item in first.output] == ["function_call"]
    call = first.output[0]
    Draft202012Validator(WEATHER["function"]["parameters"]).validate(json.loads(call.arguments))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}
    for conversation in (
        {"previous_response_id": first.id, "input": [result]},
        {"input": [{"role": "user", "content": "What is the weather?"}, *(item.model_dump() for item in first.output), result]},
    ):
        second = respond(tools=[FLAT], tool_choice="none", **conversation)
        assert second.status == "completed" and second.output_text


def test_a_streamed_response_s_call_adds_up_and_replays():
    body = {"tools": [FLAT], "tool_choice": {"type": "function", "name": "get_weather"}}
    events = list(respond(**body, stream=True))
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    pieces = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    final = events[-1].response
    assert kinds[-1] == "response.completed" and pieces == done.arguments == final.output[0].arguments
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 1
    replay = list(client().responses.retrieve(final.id, stream=True))
    assert [event.to_json() for event in replay] == [event.to_json() for event in events]


def test_the_responses_client_parses_a_model_of_its_own():
    answer = client().responses.parse(model=MODEL, input="Say hello.", text_format=Plan, max_output_tokens=600)
    assert isinstance(answer.output_parsed, Plan)
