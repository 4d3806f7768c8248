"""Messages and tools between the API's form and ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlvr.chat.tool_calls import MAX_DEPTH, BadCallError, load_json
from rlvr.serve.errors import invalid
from rlvr.serve.schemas import ApiMessage, Call, Tool
from rlvr.types import Message, ToolCall, ToolSchema


def to_messages(messages: Sequence[ApiMessage]) -> tuple[Message, ...]:
    """The conversation; tool messages get the name of the call that they answer. ApiError for an impossible one."""
    names: dict[str | None, str] = {}
    made = []
    for index, message in enumerate(messages):
        place, role, call_id, parts = f"messages[{index}]", message.role, message.tool_call_id, message.content
        calls = tuple(_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls or ()))
        names |= {call.id: call.name for call in calls}
        if calls and role != "assistant":
            raise invalid(f"{place}.tool_calls", f"only an assistant calls tools, not {role}.")
        if role == "tool" and call_id is None:
            raise invalid(f"{place}.tool_call_id", "it is missing: a tool's message names the call that it answers.")
        if parts is None and role not in ("assistant", "tool"):
            raise invalid(f"{place}.content", "it is missing.")
        content = "".join(part.text for part in parts) if isinstance(parts, list) else parts or ""
        if role == "tool":
            made.append(Message(role=role, content=content, name=message.name or names.get(call_id), call_id=call_id))
        else:
            role = "system" if role == "developer" else role
            made.append(Message(role=role, content=content, tool_calls=calls))
    return tuple(made)


def _call(call: Call, place: str) -> ToolCall:
    text, field = call.function.arguments, f"{place}.function.arguments"
    try:
        arguments = load_json(text) if text.strip() else {}
    except BadCallError as error:
        raise invalid(field, f"they are not JSON: {error}.") from None
    if not isinstance(arguments, dict):
        raise invalid(field, "they must be a JSON object.")
    return ToolCall(id=call.id, name=call.function.name, arguments=arguments)


def to_tools(tools: Sequence[Tool]) -> tuple[ToolSchema, ...]:
    """The tools as our chat layer takes them; ApiError for a schema that it could not read."""
    made = []
    for index, function in enumerate(tool.function for tool in tools):
        parameters = {"type": "object", "properties": {}} if function.parameters is None else function.parameters
        properties, place = parameters.get("properties", {}), f"tools[{index}].function.parameters.properties"
        if not isinstance(properties, dict):
            raise invalid(place, "they must be a JSON object.")
        bad = next((name for name, schema in properties.items() if not _is_readable(schema, MAX_DEPTH)), None)
        if bad is not None:
            remedy = "it must be a JSON schema with a type of names and lists of alternatives, not nested too deep."
            raise invalid(f"{place}.{bad[:80]}", remedy)
        known = {"name": function.name, "description": function.description or "", "parameters": parameters}
        made.append({"type": "function", "function": known})
    return tuple(made)


def _is_readable(schema: Any, depth: int) -> bool:
    """Whether its type and alternatives, which are used to read the model's calls, are such."""
    if not isinstance(schema, dict) or depth == 0:
        return False
    kinds = schema.get("type", [])
    names, *choices = [kinds] if isinstance(kinds, str) else kinds, schema.get("anyOf", []), schema.get("oneOf", [])
    if not all(isinstance(each, list) for each in (names, *choices)):
        return False
    inner = (choice for alternatives in choices for choice in alternatives)
    return all(isinstance(name, str) for name in names) and all(_is_readable(one, depth - 1) for one in inner)
