"""/v1/responses gives what the chat gives."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.serve.local import ServeSettings, open_served
from tests.unit.serve.chain import CALL, save_chain
from tests.unit.serve.client import Client

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
PLACE = {"type": "object", "properties": {"place": {"type": "string"}, "deep": {"type": "boolean"}}}
LOOK = {"name": "look", "description": "Looks.", "parameters": PLACE}


def ask(served: Any, path: str, **body: Any) -> Any:
    async def post() -> Any:
        return await Client(served).post(path, body)

    return asyncio.run(post())


def text_of(answer: Any) -> str:
    (item,) = answer.json["output"]
    return item["content"][0]["text"]


def test_a_text_and_its_messages_are_the_chats(qwen: Any) -> None:
    settings = {"seed": 4, "temperature": 0.7}
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    chat = ask(qwen, CHAT, messages=said, max_tokens=9, **settings).json
    parts = [{"type": "input_text", "text": "Hel"}, {"type": "input_text", "text": "lo"}]
    for body in (
        {"input": "Hello", "instructions": "Be brief."},
        {"input": said},
        {"input": [said[0], {"type": "message", "role": "user", "content": parts}]},
    ):
        answer = ask(qwen, RESPONSES, max_output_tokens=9, store=False, **body, **settings)
        assert answer.status == 200, answer.body
        assert text_of(answer) == chat["choices"][0]["message"]["content"]
        assert (
            answer.json["status"] == {"stop": "completed", "length": "incomplete"}[chat["choices"][0]["finish_reason"]]
        )
        found, wanted = answer.json["usage"], chat["usage"]
        assert (found["input_tokens"], found["output_tokens"], found["total_tokens"]) == (*wanted.values(),)
        assert answer.json["temperature"] == 0.7


def test_calls_and_what_they_gave(chain: Any) -> None:
    tools = [{"type": "function", **LOOK, "strict": True}]
    answer = ask(chain, RESPONSES, input="Hello", tools=tools, max_output_tokens=40)
    (call,) = answer.json["output"]
    assert (call["type"], call["name"], answer.json["tools"][0]["name"]) == ("function_call", "look", "look")
    assert json.loads(call["arguments"]) == {"place": "caf\u00e9", "deep": True}
    given = [
        {"role": "user", "content": "Hello"},
        {name: call[name] for name in ("type", "call_id", "name", "arguments")},
        {"type": "function_call_output", "call_id": call["call_id"], "output": "a sea"},
    ]
    tool_call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": call["arguments"]}}
    messages = [
        given[0],
        {"role": "assistant", "tool_calls": [tool_call]},
        {"role": "tool", "tool_call_id": "c", "content": "a sea"},
    ]
    chat = ask(chain, CHAT, messages=messages, tools=[{"type": "function", "function": LOOK}], tool_choice="none").json
    after = ask(chain, RESPONSES, input=given, tools=tools, tool_choice="none").json
    assert after["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert after["output"][0]["content"][0]["text"] == CALL  # text, as no tool may be called


def test_formats_and_forced_calls(long_qwen: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    assert json.loads(text_of(ask(long_qwen, RESPONSES, input="Hello", text=form)))["a"] in (1, 2)
    tools = [{"type": "function", "name": "go", "parameters": schema}, {"type": "function", **LOOK}]
    answer = ask(long_qwen, RESPONSES, input="Hello", tools=tools, tool_choice={"type": "function", "name": "go"})
    (call,) = answer.json["output"]
    assert (call["name"], json.loads(call["arguments"])["a"] in (1, 2)) == ("go", True)


NAMED = {"type": "function", "name": "look"}


@pytest.mark.parametrize("choice", [None, "auto", "none", "required", NAMED])
def test_an_answer_repeats_what_was_asked(long_qwen: Any, choice: Any) -> None:
    asked = {"instructions": "Be brief.", "metadata": {"case": "7"}, "parallel_tool_calls": False}
    tools = [{"type": "function", **LOOK}]
    answer = ask(long_qwen, RESPONSES, input="Hello", tools=tools, tool_choice=choice, max_output_tokens=3, **asked)
    assert answer.status == 200, answer.body
    assert {name: answer.json[name] for name in asked} == asked
    assert answer.json["tool_choice"] == (choice or "auto")
    assert answer.json["tools"] == [tools[0] | {"strict": False}]
    plain = ask(long_qwen, RESPONSES, input="Hello", max_output_tokens=3).json
    assert (plain["instructions"], plain["metadata"], plain["tools"], plain["tool_choice"]) == (None, {}, [], "auto")


def test_without_parallel_calls_only_the_first_counts(tmp_path: Path) -> None:
    body = {"input": "Hello", "tools": [{"type": "function", **LOOK}], "max_output_tokens": 40}
    with open_served(str(save_chain(tmp_path, f"{CALL}\n{CALL}")), ServeSettings()) as (twice, _):
        both = ask(twice, RESPONSES, **body).json["output"]
        one = ask(twice, RESPONSES, **body, parallel_tool_calls=False).json["output"]
    assert [item["type"] for item in both] == ["function_call"] * 2
    assert [item["type"] for item in one] == ["function_call"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "input: it is missing."),
        ({"input": []}, "input"),
        ({"input": "x", "stream": True}, "stream: this route gives whole answers"),
        ({"input": "x", "n": 2}, "n: this route gives one answer"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id: this server does not support it"),
        ({"input": [{"role": "user"}]}, "input[0].content: it is missing."),
        ({"input": [{"content": "x"}]}, "input[0].role: it is missing."),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments: it is missing."),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id: it is missing."),
        (
            {"input": "x", "tools": [NAMED], "tool_choice": "required", "text": {"format": {"type": "json_object"}}},
            "response_format: a tool must be called",
        ),
        ({"input": "x", "metadata": "seven"}, "metadata: Input should be an object"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens: Input should be greater than or equal to 1"),
        (
            {"input": "x", "max_output_tokens": 3, "max_tokens": 4},
            "max_tokens: max_completion_tokens has another value",
        ),
    ],
)
def test_bad_requests_get_the_reason(qwen: Any, body: dict[str, Any], message: str) -> None:
    answer = ask(qwen, RESPONSES, **body)
    assert answer.status == 400, answer.body
    assert answer.message.startswith(message)
