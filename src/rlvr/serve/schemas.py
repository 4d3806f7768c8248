"""Request bodies, and errors in the format of OpenAI's clients.

A field that is not declared here has no effect (`IGNORED`), has no effect at one value (`NEUTRAL`), or would change the
result and is refused by name. `null` means left out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlvr.errors import nearest
from rlvr.printable import cut

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "overloaded_error"}


@dataclass(eq=False)
class ApiError(Exception):
    """Why a request gets no completion: a status, one sentence and, for an invalid field, its name."""

    status: int
    message: str
    field: str | None = None
    code: str | None = None
    retry_s: int | None = None

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`"""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.field, "code": self.code}}


def invalid(field: str, message: str, *, code: str | None = None) -> ApiError:
    return ApiError(400, f"{field}: {message}", field=field, code=code)


MAX_CHOICES = 128
MAX_PROMPTS = 1024
MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20
MAX_SHOWN = 80

IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "request_id"),
        *("priority", "cache_salt", "prompt_cache_retention", "detokenize", "skip_special_tokens"),
        *("reasoning_effort", "reasoning", "verbosity", "spaces_between_special_tokens"),
    }
)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_tokens"), (0,)),
    **dict.fromkeys(("repetition_penalty", "length_penalty"), (1,)),
    **dict.fromkeys(("include_stop_str_in_output", "use_beam_search"), (False,)),
    **dict.fromkeys(("return_tokens_as_token_ids", "continue_final_message"), (False,)),
    **dict.fromkeys(("add_generation_prompt", "add_special_tokens"), (True,)),
    **dict.fromkeys(("logit_bias", "chat_template_kwargs"), ({},)),
    "suffix": ("",),
    "modalities": (["text"],),
    "functions": ([],),
    **dict.fromkeys(("previous_response_id", "conversation", "prompt"), ()),  # of /v1/responses, which keeps none
    "background": (False,),
    "include": ([],),
    "truncation": ("disabled",),
    "function_call": ("none", "auto"),
}

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
# fail_fast: a million wrong items would become gigabytes of errors
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Name = Annotated[str, Field(min_length=1, max_length=256)]


class Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class StreamOptions(Body):
    include_usage: bool | None = None


class JsonSchema(Body):
    name: str = ""
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ApiRequest(Body):
    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    response_format: ResponseFormat | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_CHOICES)] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return tuple(filter(None, [self.stop] if isinstance(self.stop, str) else self.stop or ()))


class CompletionRequest(ApiRequest):
    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(max_length=MAX_PROMPTS, fail_fast=True)]
        | Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS, fail_fast=True)]
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: int | None = None

    def prompts(self) -> list[str | TokenIds]:
        given = self.prompt
        if not given and not isinstance(given, str):
            raise invalid("prompt", "there is none; give a text, token ids, or a list of either.")
        return [given] if isinstance(given, str) or isinstance(given[0], int) else given  # type: ignore[return-value]


class TextPart(Body):
    type: Literal["text"]
    text: str


class Function(Body):
    name: Name
    arguments: str


class Call(Body):
    id: str
    type: Literal["function"] = "function"
    function: Function


class ApiMessage(Body):
    """A field that is not declared is refused where the model's template would show it."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    tool_calls: Annotated[list[Call], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None


class ToolFunction(Body):
    model_config = ConfigDict(extra="allow")  # the template shows it as it stands

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Body):
    type: Literal["function"]
    function: ToolFunction


class ChosenFunction(Body):
    name: Name


class ToolChoice(Body):
    type: Literal["function"]
    function: ChosenFunction


class ChatRequest(ApiRequest):
    messages: Annotated[list[ApiMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


R = TypeVar("R", bound=ApiRequest)


def parse(kind: type[R], body: bytes) -> R:
    """Parse the body. ApiError, a 400 that names the first problem, if it is invalid."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        raise _refused(error) from None
    for name, value in (request.model_extra or {}).items():
        _check_extra(kind, name, value)
    return request


def parsed(kind: type[R], body: dict[str, Any]) -> R:
    """As `parse`, for a body made from another one."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _refused(error) from None


def _check_extra(kind: type[ApiRequest], name: str, value: Any) -> None:
    if value is None or name in IGNORED:
        return
    if name not in NEUTRAL:
        near = nearest(name[:200], kind.model_fields)
        hint = f"did you mean {near}?" if near else "leave it out."
        raise ApiError(400, f"{in_message(name)} is no field that this server knows; {hint}", field=name[:MAX_SHOWN])
    if not any(value == same and isinstance(value, bool) == isinstance(same, bool) for same in NEUTRAL[name]):
        raise invalid(name, f"this server does not support it; leave it out (got {in_message(value)}).")


def _refused(error: ValidationError) -> ApiError:
    """The error of the deepest and then of the last place, which belongs to the intended alternative of a union: it
    could be read up to there. But an error about a too long list comes first."""
    found = error.errors(include_url=False, include_context=False)
    numbers = {id(entry): [part for part in entry["loc"] if isinstance(part, int)] for entry in found}
    worst = max(found, key=lambda entry: (entry["type"] == "too_long", len(entry["loc"]), numbers[id(entry)]))
    # `messages[0].content`, without pydantic's names of a union's alternatives
    parts = [
        f"[{part}]" if isinstance(part, int) else f".{part}"
        for part in worst["loc"]
        if isinstance(part, int) or (part.isidentifier() and part not in ("str", "int", "TextPart"))
    ]
    place = "".join(parts).lstrip(".")[:MAX_SHOWN] or "body"
    if worst["type"] == "missing":
        return invalid(place, "it is missing.")
    if worst["type"] == "literal_error" and re.search(r"\.content\[\d+\]\.type$", place):
        return invalid(place, f"the model reads text only, not {in_message(worst['input'])}.")
    if not worst["loc"]:
        return ApiError(400, f"the body is no JSON object: {worst['msg']}.")
    return invalid(place, f"{worst['msg']} (got {in_message(worst['input'])}).")


def in_message(value: Any) -> str:
    """A value for a message, short and in printable ASCII."""
    return cut(ascii(value), MAX_SHOWN)
