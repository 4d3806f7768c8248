"""Answers that must be JSON, and calls that must be made, by a model that would never write either."""

import asyncio
import json
from typing import Any

import jsonschema
import pytest

from rlvr.models.scratch import build_tokenizer
from rlvr.serve.constraints import Constraints
from rlvr.serve.sampling import Choice
from rlvr.serve.schemas import ApiError
from rlvr.types import Completion, SamplingParams, StopReason
from tests.unit.serve.client import Client

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["a", "b"]},
        "rank": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "kind", "rank"],
    "additionalProperties": False,
}


def tool(name: str, parameters: dict[str, Any] | None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WORD = {"$ref": "#/$defs/Word"}
NESTED = {
    "type": "object",
    "$defs": {"Word": {"enum": ["up", "down"]}},
    "properties": {"way": WORD},
    "required": ["way"],
    "additionalProperties": False,
}
TOOLS = [tool("look", SCHEMA), tool("go", NESTED), tool('odd "name"', None)]


def ask(served: Any, path: str = CHAT, **fields: Any) -> Any:
    async def post() -> Any:
        return await Client(served).post(path, {"messages": HELLO, "max_tokens": 100, **fields})

    answer = asyncio.run(post())
    return answer


def choices(answer: Any) -> list[Any]:
    assert answer.status == 200, answer.body
    return answer.json["choices"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_follows_its_schema(long_qwen: Any, temperature: float) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    for choice in choices(ask(long_qwen, response_format=form, n=4, seed=1, temperature=temperature)):
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


def test_json_mode_gives_an_object_whatever_else_is_in_the_batch(long_qwen: Any) -> None:
    async def both() -> tuple[Any, Any, Any]:
        client = Client(long_qwen)
        plain = {"messages": HELLO, "max_tokens": 20, "seed": 3}
        form = {"response_format": {"type": "json_object"}, "stop": ["\n"], "max_tokens": 200}
        alone = await client.post(CHAT, plain)
        beside = await asyncio.gather(client.post(CHAT, plain), client.post(CHAT, plain | form))
        return alone, *beside

    alone, beside, formed = asyncio.run(both())
    assert choices(alone)[0]["message"] == choices(beside)[0]["message"]
    (choice,) = choices(formed)
    text = choice["message"]["content"]
    assert text.startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(text), dict)


def test_logprobs_are_over_what_may_come(long_qwen: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes", "no"]}}}
    (choice,) = choices(ask(long_qwen, response_format=form, logprobs=True, top_logprobs=3))
    assert choice["message"]["content"] in ('"yes"', '"no"')
    first = choice["logprobs"]["content"][0]
    assert first["token"] in ('"', '"y', '"n', '"no', '"ye')
    assert -2 < first["logprob"] <= 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_must_be_called(long_qwen: Any, stream: bool) -> None:
    named = {"type": "function", "function": {"name": "go"}}
    for choice in ("required", named):
        answer = ask(long_qwen, tools=TOOLS, tool_choice=choice, stream=stream, temperature=1.0, seed=5)
        if stream:
            (last,) = [event["choices"][0] for event in answer.events if event["choices"][0]["finish_reason"]]
            calls, reason = last["delta"]["tool_calls"], last["finish_reason"]
        else:
            (whole,) = choices(answer)
            calls, reason = whole["message"]["tool_calls"], whole["finish_reason"]
            assert whole["message"]["content"] is None
        assert reason == "tool_calls"
        (call,) = calls
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        assert name in ([tool["function"]["name"] for tool in TOOLS] if choice == "required" else ["go"])
        jsonschema.validate(arguments, {"go": NESTED, "look": SCHEMA}.get(name, {}))


def test_every_tool_can_be_the_one(long_qwen: Any) -> None:
    for one in TOOLS[:2]:
        (choice,) = choices(ask(long_qwen, tools=[one], tool_choice="required"))
        assert choice["message"]["tool_calls"][0]["function"]["name"] == one["function"]["name"]


def test_a_call_that_is_cut_off_is_text(long_qwen: Any) -> None:
    (choice,) = choices(ask(long_qwen, tools=TOOLS[:1], tool_choice="required", max_tokens=3))
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema: it is missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "banana"}}}},
            "response_format.json_schema.schema: it cannot be followed",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}},
            "response_format.json_schema.schema: it cannot be followed: no text fits it",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos: the end of JSON is an end"),
        *(
            ({"tools": TOOLS, "tool_choice": choice, "response_format": form}, "response_format: a tool must be called")
            for choice in ("required", {"type": "function", "function": {"name": "go"}})
            for form in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": SCHEMA}})
        ),
        ({"tool_choice": "required"}, "tool_choice: a tool must be called, and there are no tools"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "fly"}}},
            "tool_choice: 'fly' is none of the tools; there is look, go",
        ),
        (
            {
                "tools": [tool("x", {"type": "object", "properties": {"y": {"pattern": "("}}})],
                "tool_choice": "required",
            },
            "tools: the parameters of x cannot be followed: the pattern (: unclosed group.",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "(?=a)b"}}}},
            "it cannot be followed: the pattern (?=a)b: look-around, including look-ahead",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused(long_qwen: Any, fields: dict[str, Any], message: str) -> None:
    answer = ask(long_qwen, **fields)
    assert answer.status == 400, answer.body
    assert message in answer.message


def test_an_answer_without_an_end_is_one_that_was_cut_off(long_qwen: Any) -> None:
    endless = {"type": "array", "items": {"$ref": "#"}, "minItems": 1}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": endless}}
    (choice,) = choices(ask(long_qwen, response_format=form, logprobs=True))
    assert (choice["message"]["content"], choice["finish_reason"]) == ("[", "length")
    assert len(choice["logprobs"]["content"]) == 1


def test_only_the_token_that_no_text_allows_is_cut_off(long_qwen: Any) -> None:
    constraint = long_qwen.constraints.json("response_format", {"enum": ["yes"]})
    constraint.gave_up = True
    sampling, logprobs = SamplingParams(max_tokens=9, stop_ids=frozenset(), seed=0), (-1.0, -2.0, -3.0)
    choice = Choice(index=0, prompt_index=0, prompt_ids=(1,), sampling=sampling, constraint=constraint)
    choice.take(
        Completion(
            token_ids=(5, 6, 7),
            behavior_logprobs=logprobs,
            sampling_logprobs=logprobs,
            stop_reason=StopReason.STOP,
            policy_version=0,
        )
    )
    assert (choice.token_ids, choice.logprobs, choice.stop_reason) == ([5, 6], [-1.0, -2.0], StopReason.LENGTH)


def test_a_model_of_words_cannot_write_json() -> None:
    words = build_tokenizer(["<pad>", "<boe>", "<eoe>", "1", "2", "+", "="])
    with pytest.raises(ApiError, match="the tokens of this model cannot write JSON"):
        Constraints(words, frozenset({2}), 7).json("response_format", {"type": "object"})


def test_a_model_without_an_end_cannot_write_json(long_qwen: Any) -> None:
    with pytest.raises(ApiError, match="no token that ends a completion"):
        Constraints(long_qwen.policy.tokenizer, frozenset(), long_qwen.vocabulary_size).json("response_format", {})


def test_a_completion_that_begins_again_is_followed_again(long_qwen: Any) -> None:
    constraint = long_qwen.constraints.json("response_format", {"enum": ["yes"]})
    ids = long_qwen.policy.tokenizer.encode('"yes"', add_special_tokens=False)
    first = constraint([])
    assert first[ids[0]]
    assert constraint(ids[:1])[ids[1]]
    assert constraint([]).equal(first)
    second = constraint(ids[:1])
    assert constraint(ids[:2]).any()
    assert constraint(ids[:1]).equal(second)  # with a token at once
    assert constraint(ids).nonzero()[:, 0].tolist() == sorted(long_qwen.chat.stop_ids)
