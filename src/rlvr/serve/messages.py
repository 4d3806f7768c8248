"""Messages and tools between the API's form and ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rlvr.chat.tool_calls import MAX_DEPTH, BadJsonError, load_json
from rlvr.serve.errors import invalid
from rlvr.serve.schemas import ApiMessage, Call, Tool
from rlvr.types import Message, ToolCall, ToolSchema


def to_messages(messages: Sequence[ApiMessage]) -> tuple[Message, ...]:
    """The conversation; tool messages get the name of the call that they answer. ApiError for an impossible one."""
    names: dict[str | None, str] = {}
    made = []
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        calls = tuple(_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls or ()))
        if calls and message.role != "assistant":
            raise invalid(f"{place}.tool_calls", f"only an assistant calls tools, not {message.role}.")
        names |= {call.id: call.name for call in calls}
        is_tool, call_id = message.role == "tool", message.tool_call_id
        if is_tool and call_id is None:
            raise invalid(f"{place}.tool_call_id", "it is missing: a tool's message names the call that it answers.")
        if message.content is None and message.role not in ("assistant", "tool"):
            raise invalid(f"{place}.content", "it is missing.")
        parts = message.content
        content = "".join(part.text for part in parts) if isinstance(parts, list) else parts or ""
        role = "system" if message.role == "developer" else message.role
        if is_tool:
            made.append(Message(role=role, content=content, name=message.name or names.get(call_id), call_id=call_id))
        else:
            made.append(Message(role=role, content=content, tool_calls=calls))
    return tuple(made)


def _call(call: Call, place: str) -> ToolCall:
    text = call.function.arguments
    field = f"{place}.function.arguments"
    try:
        arguments = load_json(text) if text.strip() else {}
    except BadJsonError as error:
        raise invalid(field, f"they are not JSON: {error}.") from None
    if not isinstance(arguments, dict):
        raise invalid(field, "they must be a JSON object.")
    return ToolCall(id=call.id, name=call.function.name, arguments=arguments)


def to_tools(tools: Sequence[Tool]) -> tuple[ToolSchema, ...]:
    """The tools as our chat layer takes them; ApiError for a schema that it could not read."""
    made = []
    for index, tool in enumerate(tools):
        function = tool.function
        place = f"tools[{index}].function.parameters.properties"
        parameters = {"type": "object", "properties": {}} if function.parameters is None else function.parameters
        properties = parameters.get("properties", {})
        if not isinstance(properties, dict):
            raise invalid(place, "they must be a JSON object.")
        for name, schema in properties.items():
            _check_schema(schema, f"{place}.{name[:80]}", MAX_DEPTH)
        known = {"name": function.name, "description": function.description or "", "parameters": parameters}
        made.append({"type": "function", "function": known})
    return tuple(made)


def _check_schema(schema: Any, place: str, depth: int) -> None:
    """Check type and alternatives, which are used to read the model's calls; the rest is only in the prompt."""
    if not isinstance(schema, dict) or depth == 0:
        raise invalid(place, "it must be a JSON schema, an object, and not nested too deep.")
    kinds = schema.get("type", [])
    if not isinstance(kinds, str) and not (isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)):
        raise invalid(f"{place}.type", "it must be a name or a list of names.")
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key, [])
        if not isinstance(choices, list):
            raise invalid(f"{place}.{key}", "it must be a list of schemas.")
        for choice in choices:
            _check_schema(choice, f"{place}.{key}", depth - 1)


def api_calls(calls: Sequence[ToolCall], prefix: str) -> list[dict[str, Any]]:
    """Calls in the API's form; `prefix` makes their ids differ between answers. Malformed ones are only text."""
    good = [call for call in calls if call.problem is None]
    functions = [{"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)} for call in good]
    return [{"id": f"call_{prefix}_{i}", "type": "function", "function": f} for i, f in enumerate(functions)]
