"""The library's loop asks a client for a completion. Ours puts the question into a queue and waits for the answer.

the library's rollout (a task of its own)             our episode
    client.get_response(messages, tools)   ->  queue  ->   start() returns the messages
    waits                                                  the engine samples
    a Response                             <-  future <-   step(what was said)
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from rlvr.errors import UserError
from rlvr.types import Message, ToolCall, ToolSchema

ROLES: Mapping[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "text": "user",  # a prompt that is one text
    "assistant": "assistant",
    "tool": "tool",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """The library wants a completion of these messages (its own objects) and waits for `answer`."""

    messages: Sequence[Any]
    tools: tuple[ToolSchema, ...]
    answer: asyncio.Future[Any]


Requests = asyncio.Queue[Request | None]
"""What a rollout asks for, in order; None: it has ended."""


def make_client(requests: Requests) -> Any:
    """A client of the library for one rollout."""
    return _client_class()(requests)


@cache
def _client_class() -> Any:
    base: Any = importlib.import_module("verifiers.legacy.clients").Client

    class QueueClient(base):
        """Answers whole requests: the native formats, which the other methods are for, do not occur."""

        async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Any:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            schemas = tuple(tool_schema(tool) for tool in tools or ())
            self.client.put_nowait(Request(messages=tuple(prompt), tools=schemas, answer=answer))
            return await answer

    QueueClient.__abstractmethods__ = frozenset()
    return QueueClient


def tool_schema(tool: Any) -> ToolSchema:
    """A tool of the library as OpenAI's schema."""
    function = {"name": tool["name"], "description": tool["description"], "parameters": tool["parameters"]}
    return {"type": "function", "function": function}


def to_messages(messages: Sequence[Any]) -> tuple[Message, ...]:
    """The library's messages, objects or dicts, as ours. UserError for content that is no text."""
    names: dict[str, str] = {}
    found = []
    for message in messages:
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        names |= {call.id: call.name for call in calls}
        call_id = message.get("tool_call_id")
        found.append(
            Message(
                role=ROLES[message["role"]],
                content=content_text(message.get("content")),
                tool_calls=calls,
                name=names.get(call_id) if call_id else None,
                call_id=call_id,
            )
        )
    return tuple(found)


def content_text(content: Any) -> str:
    """The text of a message's content: a text, a list of text parts, or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    kinds = [part.get("type") for part in content]
    if other := [kind for kind in kinds if kind != "text"]:
        raise UserError(
            f"the environment shows the model content of type {other[0]!r}, but rlvr trains on text alone: choose an "
            "environment without images and sound."
        )
    return "\n".join(part.get("text") or "" for part in content)


def identity(message: Any) -> tuple[Any, ...]:
    """Equal for two messages of the library that say the same."""
    calls = tuple((call["id"], call["name"], call["arguments"]) for call in message.get("tool_calls") or ())
    return message["role"], content_text(message.get("content")), calls, message.get("tool_call_id")


def to_response(said: Message, *, truncated: bool = False) -> Any:
    """An assistant's message as the library's answer of a model.

    A call that is none (`problem`) goes in with arguments that are no JSON, so that an environment says so and goes on.
    """
    types: Any = importlib.import_module("verifiers.legacy.types")
    calls = [
        types.ToolCall(
            id=call.id, name=call.name, arguments=json.dumps(dict(call.arguments)) if call.problem is None else ""
        )
        for call in said.tool_calls
    ]
    message = types.ResponseMessage(
        content=said.content,
        tool_calls=calls or None,
        finish_reason="length" if truncated else "tool_calls" if calls else "stop",
        is_truncated=truncated,
    )
    return types.Response(id="", created=0, model="policy", usage=None, message=message)


def _call(call: Any) -> ToolCall:
    """A call of the library (`name`, `arguments`) or of OpenAI (`function`); arguments are JSON, or already read."""
    function = call.get("function") or call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    name, call_id = function.get("name") or "", call.get("id") or ""
    if isinstance(arguments, dict):
        return ToolCall(id=call_id, name=name, arguments=arguments)
    return ToolCall(id=call_id, name=name, arguments={}, problem="the arguments are no JSON object")
