"""Demonstrations in data: a text, or chat messages in OpenAI's form.

"48 / 2 = 24\\n#### 24"                                                 the completion as it stands
[{"role": "assistant", "content": "24"}]                              messages after the task's own prompt
[{"role": "user", ...}, {"role": "assistant", "tool_calls": [...]}, {"role": "tool", ...}, ...]
{"messages": [...], "tools": [...]}                                   a whole conversation, with its tools

A message may be in ShareGPT's form, {"from": "human", "value": ...}, its content a list of parts of text, and the
messages or the tools their JSON.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Json

from rlvr.data.nulls import allowed, plain_schema
from rlvr.data.problems import Conversation
from rlvr.data.rows import Row, Verbatim, with_kind
from rlvr.reasoning import FIELDS
from rlvr.types import Message, ToolCall, ToolSchema


def _named(call: Any) -> Any:
    """`{"name": ..., "arguments": ...}` as OpenAI wraps it."""
    return {"function": call} if isinstance(call, dict) and "function" not in call else call


ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "model", "assistant"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
}
"""What ShareGPT's data call them."""


def _renamed(message: Any) -> Any:
    """A message of ShareGPT as one of OpenAI's."""
    if not isinstance(message, dict) or "from" not in message or "role" in message:
        return message
    role, others = message["from"], {key: value for key, value in message.items() if key not in ("from", "value")}
    named = ROLES.get(role, role) if isinstance(role, str) else role
    return {**others, "role": named, "content": message.get("value")}


def _joined(content: Any) -> Any:
    """The text of parts, `[{"type": "text", "text": ...}]`."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
    other = next((part for part, text in zip(content, texts, strict=True) if not isinstance(text, str)), None)
    if other is not None:
        kind = other.get("type") if isinstance(other, dict) else other
        raise ValueError(f"must be text, or parts with the type 'text' and their text (there is {with_kind(kind)})")
    return "".join(map(str, texts))


class _Function(BaseModel):
    name: str
    arguments: dict[str, Any] | Json[dict[str, Any]] = {}


class _Call(BaseModel):
    id: str | None = None
    function: _Function


class _Message(BaseModel, extra="allow"):
    role: Literal["system", "user", "assistant", "tool"]
    content: Annotated[Verbatim | None, BeforeValidator(_joined)] = None
    tool_calls: list[Annotated[_Call, BeforeValidator(_named)]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: Verbatim | None = None
    reasoning: Verbatim | None = None
    thinking: Verbatim | None = None


def messages_in(value: Any) -> Any:
    """The messages of a value, which may be their JSON; any other value as it is."""
    messages = value
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            messages = json.loads(value)
    is_chat = isinstance(messages, list) and all(isinstance(m, dict) and m.keys() & {"role", "from"} for m in messages)
    return messages if messages and is_chat else value


def is_conversation(row: Row, field: str) -> bool:
    """Whether the field holds messages, or their JSON."""
    return field in row and isinstance(messages_in(row.get(field)), list)


Messages = Annotated[list[Annotated[_Message, BeforeValidator(_renamed)]], BeforeValidator(messages_in)]
Schemas = list[dict[str, Any]] | Json[list[dict[str, Any]]]


class _Whole(BaseModel, extra="forbid"):
    messages: Messages
    tools: Schemas | None = None


def read_demonstration(row: Row, field: str) -> str | Conversation | None:
    """The demonstration of a row; None if it has none. DataError for another shape."""
    value = messages_in(row.get(field)) if field in row else None
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return row.read(Verbatim, field)
    if isinstance(value, list):
        return Conversation(messages=tuple(_messages(row, row.read(Messages, field))))
    if not isinstance(value, dict):
        raise row.wrong(field, value, "must be a text, a list of messages, or {'messages': [...], 'tools': [...]}")
    found: _Whole = row.read(_Whole, field)
    tools = _schemas(found.tools or ())
    return Conversation(messages=tuple(_messages(row, found.messages, tools)), tools=tools)


def read_prompt(row: Row, field: str, answer_field: str | None = None) -> tuple[Message, ...]:
    """The messages of a prompt that data brings, before the last one if `answer_field` is in that (`chat.-1.content`).

    DataError if there are none, or the last one is the assistant's."""
    messages = tuple(_messages(row, row.read(Messages, field), read_tools(row)))
    if answer_field is not None and answer_field.startswith(f"{field}.-1."):
        messages = messages[:-1]
    if not messages or messages[-1].role == "assistant":
        said = "must be messages that the assistant is to answer (an answer belongs in a column of its own, `answer`)"
        raise row.wrong(field, row.get(field), said)
    return messages


def read_tools(row: Row, field: str = "tools") -> tuple[ToolSchema, ...]:
    """The tools offered with a prompt, a list or its JSON; none without the field."""
    if field not in row or row.get(field) in (None, ""):
        return ()
    return _schemas(row.read(Schemas, field))


def reasoning_of(message: BaseModel) -> tuple[str | None, dict[str, Any]]:
    """The reasoning of a message (None if there is none), and its other fields that we do not know. An assistant's
    only: with others, it is one of these."""
    named = {name: value for name in FIELDS if (value := getattr(message, name)) is not None}
    unread = {name: value for name, value in (message.model_extra or {}).items() if value is not None}
    if getattr(message, "role") != "assistant":  # noqa: B009
        return None, unread | {name: value for name, value in named.items() if value}
    return next(iter(named.values()), None), unread


def _messages(row: Row, given: list[_Message], tools: Sequence[ToolSchema] = ()) -> Iterator[Message]:
    for number, message in enumerate(given):
        calls = tuple(
            ToolCall(
                id=call.id or f"call_{number}_{place}",
                name=call.function.name,
                arguments=_arguments(row, call.function, tools),
            )
            for place, call in enumerate(message.tool_calls or ())
        )
        reasoning, unread = reasoning_of(message)
        yield Message(
            role=message.role,
            content=message.content or "",
            tool_calls=calls,
            name=message.name,
            call_id=message.tool_call_id,
            reasoning=reasoning,
            unread=unread,
        )


def _schemas(tools: Sequence[dict[str, Any]]) -> tuple[ToolSchema, ...]:
    return tuple(_as_function(plain_schema(tool)) for tool in tools)


def _as_function(tool: dict[str, Any]) -> ToolSchema:
    """Anthropic's form of a tool, `input_schema` beside its name, in the one that chat templates know."""
    if "input_schema" not in tool:
        return tool
    return {"type": "function", "function": {("parameters" if k == "input_schema" else k): v for k, v in tool.items()}}


def _arguments(row: Row, function: _Function, tools: Sequence[ToolSchema]) -> dict[str, Any]:
    """The arguments without nulls of other calls. Without a schema only Arrow tells them apart: there, all nulls."""
    offered = [tool.get("function", tool) for tool in tools]
    schema = next((one.get("parameters") for one in offered if one.get("name") == function.name), None)
    return allowed(function.arguments, schema or {}, fills_nulls=row.fills_nulls)
