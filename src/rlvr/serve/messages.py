"""Messages and tools between the API's words and ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.chat.tool_calls import MAX_DEPTH, BadJsonError, load_json
from rlvr.serve.errors import invalid
from rlvr.serve.schemas import ApiMessage, Tool
from rlvr.types import Message, ToolCall, ToolSchema

Schema = Mapping[str, Any]


def to_messages(messages: Sequence[ApiMessage]) -> tuple[Message, ...]:
    """The conversation; tool messages get the name of the call that they answer. ApiError for what makes no sense."""
    names: dict[str, str] = {}
    made = []
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        calls = tuple(_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls or ()))
        if calls and message.role != "assistant":
            raise invalid(f"{place}.tool_calls", f"only an assistant calls tools, not {message.role}.")
        names |= {call.id: call.name for call in calls}
        made.append(_message(message, place, calls, names))
    return tuple(made)


def _message(message: ApiMessage, place: str, calls: tuple[ToolCall, ...], names: Mapping[str, str]) -> Message:
    parts = message.content
    content = "".join(part.text for part in parts) if isinstance(parts, list) else parts or ""
    if message.role == "tool":
        if message.tool_call_id is None:
            raise invalid(f"{place}.tool_call_id", "it is missing: a tool's message names the call that it answers.")
        name = message.name or names.get(message.tool_call_id)
        return Message(role="tool", content=content, name=name, call_id=message.tool_call_id)
    if message.content is None and not calls and message.role != "assistant":
        raise invalid(f"{place}.content", "it is missing.")
    role = "system" if message.role == "developer" else message.role
    return Message(role=role, content=content, tool_calls=calls)


def _call(call: Any, place: str) -> ToolCall:
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
        place = f"tools[{index}].function.parameters"
        parameters = (
            {"type": "object", "properties": {}} if tool.function.parameters is None else tool.function.parameters
        )
        _check_parameters(parameters, place)
        function = {
            "name": tool.function.name,
            "description": tool.function.description or "",
            "parameters": parameters,
        }
        made.append({"type": "function", "function": function})
    return tuple(made)


def _check_parameters(parameters: Schema, place: str) -> None:
    properties = parameters.get("properties", {})
    if not isinstance(properties, dict):
        raise invalid(f"{place}.properties", "they must be a JSON object.")
    for name, schema in properties.items():
        _check_schema(schema, f"{place}.properties.{name[:80]}", MAX_DEPTH)


def _check_schema(schema: Any, place: str, depth: int) -> None:
    """Type and alternatives are looked at when the model's words are read; the rest only stands in the prompt."""
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
    """Calls as the API words them; `prefix` makes their ids differ between answers. Malformed ones are only text."""
    good = [call for call in calls if call.problem is None]
    return [
        {
            "id": f"call_{prefix}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for index, call in enumerate(good)
    ]
