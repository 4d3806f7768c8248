"""Demonstrations in data: a text, or chat messages in OpenAI's form.

"48 / 2 = 24\\n#### 24"                                                 the completion as it stands
[{"role": "assistant", "content": "24"}]                              messages after the task's own prompt
[{"role": "user", ...}, {"role": "assistant", "tool_calls": [...]}, {"role": "tool", ...}, ...]
{"messages": [...], "tools": [...]}                                   a whole conversation, with its tools
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Json

from rlvr.data.problems import Conversation
from rlvr.data.rows import Row, harmless
from rlvr.types import Message, ToolCall, ToolSchema

Verbatim = Annotated[str, AfterValidator(harmless)]


def _named(call: Any) -> Any:
    """`{"name": ..., "arguments": ...}` as OpenAI wraps it."""
    return {"function": call} if isinstance(call, dict) and "function" not in call else call


class _Function(BaseModel):
    name: str
    arguments: dict[str, Any] | Json[dict[str, Any]] = {}


class _Call(BaseModel):
    id: str | None = None
    function: _Function


class _Message(BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: Verbatim | None = None
    tool_calls: list[Annotated[_Call, BeforeValidator(_named)]] | None = None
    name: str | None = None
    tool_call_id: str | None = None


class _Whole(BaseModel, extra="forbid"):
    messages: list[_Message]
    tools: list[dict[str, Any]] | None = None


def read_demonstration(row: Row, field: str) -> str | Conversation | None:
    """The demonstration of a row; None if it has none. DataError for another shape."""
    value = row.get(field) if field in row else None
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return row.read(Verbatim, field)
    if isinstance(value, list):
        return Conversation(messages=tuple(_messages(row.read(list[_Message], field))))
    if not isinstance(value, dict):
        raise row.wrong(field, value, "must be a text, a list of messages, or {'messages': [...], 'tools': [...]}")
    found: _Whole = row.read(_Whole, field)
    return Conversation(messages=tuple(_messages(found.messages)), tools=tuple(found.tools or ()))


def read_prompt(row: Row, field: str) -> tuple[Message, ...]:
    """The messages of a prompt that data brings. DataError if there are none, or the last one is the assistant's."""
    messages = tuple(_messages(row.read(list[_Message], field)))
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
