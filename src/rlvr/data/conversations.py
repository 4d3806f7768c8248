"""Demonstrations in data: a text, or chat messages in OpenAI's form.

"48 / 2 = 24\\n#### 24"                                                 the completion as it stands
[{"role": "assistant", "content": "24"}]                              messages after the task's own prompt
[{"role": "user", ...}, {"role": "assistant", "tool_calls": [...]}, {"role": "tool", ...}, ...]
{"messages": [...], "tools": [...]}                                   a whole conversation, with its tools

A message may be in ShareGPT's form, {"from": "human", "value": ...}, and its content a list of parts of text.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Json

from rlvr.data.problems import Conversation
from rlvr.data.rows import Row, Verbatim, with_kind
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
    role = message["from"]
    return {"role": ROLES.get(role, role) if isinstance(role, str) else role, "content": message.get("value")}


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


class _Message(BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: Annotated[Verbatim | None, BeforeValidator(_joined)] = None
    tool_calls: list[Annotated[_Call, BeforeValidator(_named)]] | None = None
    name: str | None = None
    tool_call_id: str | None = None


Messages = list[Annotated[_Message, BeforeValidator(_renamed)]]


class _Whole(BaseModel, extra="forbid"):
    messages: Messages
    tools: list[dict[str, Any]] | None = None


def read_demonstration(row: Row, field: str) -> str | Conversation | None:
    """The demonstration of a row; None if it has none. DataError for another shape."""
    value = row.get(field) if field in row else None
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return row.read(Verbatim, field)
    if isinstance(value, list):
        return Conversation(messages=tuple(_messages(row.read(Messages, field))))
    if not isinstance(value, dict):
        raise row.wrong(field, value, "must be a text, a list of messages, or {'messages': [...], 'tools': [...]}")
    found: _Whole = row.read(_Whole, field)
    return Conversation(messages=tuple(_messages(found.messages)), tools=tuple(found.tools or ()))


def read_prompt(row: Row, field: str, answer_field: str | None = None) -> tuple[Message, ...]:
    """The messages of a prompt that data brings, before the last one if `answer_field` is in that (`chat.-1.content`).

    DataError if there are none, or the last one is the assistant's."""
    messages = tuple(_messages(row.read(Messages, field)))
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
    return tuple(row.read(list[dict[str, Any]] | Json[list[dict[str, Any]]], field))


def _messages(given: list[_Message]) -> Iterator[Message]:
    for number, one in enumerate(given):
        calls = tuple(
            ToolCall(id=call.id or f"call_{number}_{place}", name=call.function.name, arguments=call.function.arguments)
            for place, call in enumerate(one.tool_calls or ())
        )
        said = one.content or ""
        yield Message(role=one.role, content=said, tool_calls=calls, name=one.name, call_id=one.tool_call_id)
