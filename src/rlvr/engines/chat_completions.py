"""OpenAI's chat-completions format: our messages in their form, and validation of untrusted answers."""

import json
import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from rlvr.chat.tool_calls import CallReading
from rlvr.types import Message, StopReason


class EndpointError(Exception):
    """A request failed permanently."""


@dataclass(frozen=True, kw_only=True)
class ChatAnswer:
    """An answer. `token_ids` and `logprobs` are empty if the endpoint does not send them."""

    message: Message
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: StopReason
    num_prompt_tokens: int
    num_completion_tokens: int


def to_wire(message: Message) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:  # no field of OpenAI's; vLLM, SGLang and llama.cpp read it
        wire["reasoning_content"] = message.reasoning
    if message.role == "tool":
        wire |= {"tool_call_id": message.call_id or ""} | ({"name": message.name} if message.name else {})
    if message.tool_calls:
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name or "unknown", "arguments": arguments}}
            for call in message.tool_calls
            for arguments in [json.dumps(call.arguments, ensure_ascii=False)]
        ]
    return wire


class _Function(BaseModel):
    name: str | None = None
    arguments: Any = None


class _Call(BaseModel):
    id: str | None = None
    function: _Function


class _Message(BaseModel):
    content: str | None = None
    tool_calls: list[_Call] | None = Field(default=None, max_length=1000)


class _Logprob(BaseModel):
    logprob: float


class _Logprobs(BaseModel):
    content: list[_Logprob] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None


Count = Annotated[int, AfterValidator(lambda told: told if 0 <= told < 1 << 32 else 0)]
"""Token cost of a conversation without entry."""


class _Usage(BaseModel):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0


class _Answer(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


def first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc'][:6])) or 'the whole'}: {first['msg'][:200]}"


_STOPS = dict.fromkeys(("stop", "tool_calls", "function_call"), StopReason.STOP) | {"length": StopReason.LENGTH}


def read_answer(body: bytes) -> ChatAnswer:
    """Validate an answer. EndpointError if it is no chat completion."""
    try:
        answer = _Answer.model_validate_json(body)
    except ValidationError as error:
        raise EndpointError(f"what it answered is no chat completion ({first_problem(error)})") from error
    choice, usage = answer.choices[0], answer.usage or _Usage()
    if choice.finish_reason is None and choice.message == _Message():
        raise EndpointError("its answer has neither content nor a finish reason")
    token_ids = tuple(choice.token_ids or ())
    content = choice.logprobs.content if choice.logprobs else None
    logprobs = tuple(one.logprob for one in content or ())
    if (token_ids and len(logprobs) != len(token_ids)) or not all(map(math.isfinite, logprobs)):
        logprobs = ()  # for other tokens than these
    reading, given = CallReading(), choice.message.tool_calls or []
    for call in given:  # a call with invalid JSON arguments has a problem and is sent back without them
        reading.add("", lambda said=call.function: [(said.name, said.arguments)])
    ids = [call.id or f"call_{index}" for index, call in enumerate(given)]
    calls = tuple(replace(call, id=name) for call, name in zip(reading.calls, ids, strict=False))
    message = Message(role="assistant", content=choice.message.content or "", tool_calls=calls)
    return ChatAnswer(
        message=message,
        token_ids=token_ids,
        logprobs=logprobs,
        stop_reason=_STOPS.get(choice.finish_reason or "stop", StopReason.ABORTED),
        num_prompt_tokens=usage.prompt_tokens,
        num_completion_tokens=usage.completion_tokens or len(token_ids) or len(logprobs),
    )
