"""OpenAI's newer endpoint, /v1/responses, in its plain form: the same answers as a chat's, in other words.

input "Hello", or messages, calls and their outputs     -> messages
instructions                                            -> a system message
tools [{"type": "function", "name": ...}]               -> the chat's tools
text {"format": {"type": "json_schema", ...}}           -> response_format
max_output_tokens                                       -> max_completion_tokens
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from rlvr.serve.answers import ChatAnswer, Json, usage
from rlvr.serve.requests import chat_choices
from rlvr.serve.sampling import Choice, Served
from rlvr.serve.schemas import (
    MAX_MESSAGES,
    MAX_TOOLS,
    ApiRequest,
    Body,
    ChatRequest,
    Name,
    ResponseFormat,
    ToolFunction,
    invalid,
    parsed,
)


class ContentPart(Body):
    type: Literal["input_text", "output_text", "text"]
    text: str


class Item(Body):
    """A message, a call of the model, or what the call gave."""

    type: Literal["message", "function_call", "function_call_output"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None


class FlatTool(ToolFunction):
    type: Literal["function"]


class FlatChoice(Body):
    type: Literal["function"]
    name: Name


class FlatFormat(ResponseFormat):
    name: str = ""
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class TextSettings(Body):
    format: FlatFormat | None = None


class ResponsesRequest(ApiRequest):
    input: str | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: TextSettings | None = None
    tools: Annotated[list[FlatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def repeated(self) -> Json:
        """What an answer says of its request."""
        choice = self.tool_choice or "auto"
        return {
            "instructions": self.instructions,
            "metadata": self.metadata or {},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() | {"strict": False} for tool in self.tools or ()],
        }


def response_choices(request: ResponsesRequest, served: Served) -> tuple["ResponseAnswer", list[Choice]]:
    """The completion for /v1/responses. ApiError, a 400 or 404, for an invalid request."""
    if request.stream:
        raise invalid("stream", "this route gives whole answers; leave it out, or use /v1/chat/completions.")
    if request.n not in (None, 1):
        raise invalid("n", "this route gives one answer; leave it out, or use /v1/chat/completions.")
    chat = parsed(ChatRequest, _as_chat(request))
    answer, choices = chat_choices(chat, served)
    shared = {field.name: getattr(answer, field.name) for field in fields(answer)}
    return ResponseAnswer(**shared, repeated=request.repeated()), choices


def _as_chat(request: ResponsesRequest) -> Json:
    """The body of a chat that asks for the same."""
    given = request.model_dump(exclude_none=True, exclude={"input", "instructions", "text", "tools", "tool_choice"})
    given = {name: value for name, value in given.items() if name in ChatRequest.model_fields}
    items = [Item(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    head = [{"role": "system", "content": request.instructions}] if request.instructions else []
    body = given | {"messages": head + [_message(item, f"input[{index}]") for index, item in enumerate(items)]}
    if request.max_output_tokens is not None:
        body["max_completion_tokens"] = request.max_output_tokens
    if request.tools:
        flat = [tool.model_dump(exclude_none=True) for tool in request.tools]
        body["tools"] = [{"type": tool.pop("type"), "function": tool} for tool in flat]
    choice = request.tool_choice
    if choice is not None:
        body["tool_choice"] = (
            choice if isinstance(choice, str) else {"type": "function", "function": {"name": choice.name}}
        )
    form = request.text and request.text.format
    if form:
        body["response_format"] = {"type": form.type, "json_schema": {"name": form.name, "schema": form.schema_}}
    return body


def _message(item: Item, place: str) -> Json:
    def filled(name: str) -> Any:
        value = getattr(item, name)
        if value is None:
            raise invalid(f"{place}.{name}", "it is missing.")
        return value

    if item.type == "function_call":
        function = {"name": filled("name"), "arguments": filled("arguments")}
        return {"role": "assistant", "tool_calls": [{"id": filled("call_id"), "function": function}]}
    if item.type == "function_call_output":
        return {"role": "tool", "tool_call_id": filled("call_id"), "content": filled("output")}
    content = filled("content")
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    return {"role": filled("role"), "content": text}


@dataclass(frozen=True, kw_only=True)
class ResponseAnswer(ChatAnswer):
    repeated: Json

    def whole(self, choices: Sequence[Choice]) -> Json:
        (choice,) = choices
        entry = super().whole(choices)["choices"][0]
        counts = usage(choices)
        cut = entry["finish_reason"] == "length"
        return {
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": self.created,
            "model": self.model,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "output": list(self._output(entry["message"])),
            "parallel_tool_calls": self.many_calls,
            "temperature": choice.sampling.temperature,
            "top_p": choice.sampling.top_p,
            **self.repeated,
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            },
        }

    def _output(self, message: Mapping[str, Any]) -> list[Json]:
        """A message if there is a text, then the calls."""
        items: list[Json] = []
        if message["content"] is not None:
            text = {"type": "output_text", "text": message["content"], "annotations": [], "logprobs": []}
            about = {"role": "assistant", "status": "completed", "content": [text]}
            items.append({"type": "message", "id": f"msg_{self.id}", **about})
        for number, call in enumerate(message.get("tool_calls", ())):
            about = {"call_id": call["id"], "status": "completed", **call["function"]}
            items.append({"type": "function_call", "id": f"fc_{self.id}_{number}", **about})
        return items
