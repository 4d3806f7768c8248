"""Converts requests to completions. Refuses all input that a model cannot process."""

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rlvr.chat.template import UnreadFieldError
from rlvr.chat.tool_calls import MAX_DEPTH, BadCallError, load_json
from rlvr.data.conversations import reasoning_of
from rlvr.errors import UserError, nearest
from rlvr.seeding import derive_seed
from rlvr.serve.answers import Answer, ChatAnswer, TextAnswer
from rlvr.serve.constraints import Constraint
from rlvr.serve.sampling import Choice, Served
from rlvr.serve.schemas import (
    ApiError,
    ApiMessage,
    ApiRequest,
    Call,
    ChatRequest,
    CompletionRequest,
    Tool,
    ToolChoice,
    in_message,
    invalid,
)
from rlvr.types import Message, SamplingParams, ToolCall, ToolSchema


def to_messages(messages: Sequence[ApiMessage]) -> tuple[Message, ...]:
    """The conversation; tool messages get the name of the call they answer. ApiError for an invalid one."""
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
        reasoning, unread = reasoning_of(message)
        if role == "tool":
            name = message.name or names.get(call_id)
            made.append(Message(role=role, content=content, name=name, call_id=call_id, unread=unread))
        else:
            role = "system" if role == "developer" else role
            made.append(Message(role=role, content=content, tool_calls=calls, reasoning=reasoning, unread=unread))
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
    """The tools for our chat layer; ApiError for a schema it cannot read."""
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
        given = {name: value for name, value in function.model_dump(exclude_unset=True).items() if value is not None}
        known = {"name": function.name, "description": "", **given, "parameters": parameters}
        made.append({"type": "function", "function": known})
    return tuple(made)


def _is_readable(schema: Any, depth: int) -> bool:
    """Whether type and alternatives, which are used to parse the model's calls, are valid."""
    if not isinstance(schema, dict) or depth == 0:
        return False
    kinds = schema.get("type", [])
    names, *choices = [kinds] if isinstance(kinds, str) else kinds, schema.get("anyOf", []), schema.get("oneOf", [])
    if not all(isinstance(each, list) for each in (names, *choices)):
        return False
    inner = (choice for alternatives in choices for choice in alternatives)
    return all(isinstance(name, str) for name in names) and all(_is_readable(one, depth - 1) for one in inner)


DEFAULT_MAX_TOKENS = 16
"""Default of /v1/completions, as OpenAI's; a chat continues until the context is full."""
MIN_TEMPERATURE = 1e-3
"""Logits would overflow at temperatures between 0 and this."""
MAX_CHARS_PER_TOKEN = 32
"""Texts with more characters per token of the context are refused before encoding."""

Ids = tuple[int, ...]


def text_choices(request: CompletionRequest, served: Served) -> tuple[Answer, list[Choice]]:
    """The completions for /v1/completions. ApiError, a 400 or 404, for an invalid request."""
    _check_model(request, served)
    if request.best_of not in (None, request.n or 1):
        raise invalid("best_of", "this server samples n completions and returns them all; leave it out.")
    if request.echo and request.stream:
        raise invalid("echo", "it goes with whole answers only; leave stream out.")
    given = request.prompts()
    fields = ["prompt"] if len(given) == 1 else [f"prompt[{number}]" for number in range(len(given))]
    prompts = [_text_prompt(one, served, field) for one, field in zip(given, fields, strict=True)]
    answer = TextAnswer(chat=served.chat, model=served.names[0], with_ids=bool(request.return_token_ids))
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if max_tokens == 0 and not request.echo:
        raise invalid("max_tokens", "it must be at least 1; 0 goes with echo: true.")
    choices = _choices(request, prompts, served, max_tokens, request.logprobs)
    if request.echo:
        texts = [one if isinstance(one, str) else served.chat.decode(one) for one in given]
        for choice in choices:
            choice.echo, asked = texts[choice.prompt_index], given[choice.prompt_index]
            if isinstance(asked, str):
                choice.unshown = len(choice.prompt_ids) - len(served.chat.encode(asked))
    return answer, choices


def chat_choices(request: ChatRequest, served: Served) -> tuple[Answer, list[Choice]]:
    """The completions for /v1/chat/completions. ApiError, a 400 or 404, for an invalid request."""
    _check_model(request, served)
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid("top_logprobs", "it goes with logprobs: true.")
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise invalid("max_tokens", "max_completion_tokens has another value; give one of them.")
    if 0 in limits:
        raise invalid("max_tokens", "it must be at least 1.")
    tools = () if request.tool_choice == "none" else to_tools(request.tools or ())
    called = _called(request.tool_choice, tools)
    if called and request.response_format is not None and request.response_format.type != "text":
        raise invalid("response_format", "a tool must be called, so there is no text; leave it or tool_choice out.")
    messages = to_messages(request.messages)
    if served.form is not None and [message.role for message in messages] == ["user"]:
        messages = served.form(messages[0].content)
    variables = request.chat_template_kwargs or {}
    try:
        chat = served.chat.with_variables(variables)
    except UserError as error:
        raise invalid("chat_template_kwargs", str(error)) from None
    calls = [call for message in messages for call in message.tool_calls]
    said = [text for one in messages for text in (one.content, one.reasoning or "", str(one.unread))]
    texts = [*said, *(str(one.arguments) for one in calls), *map(str, (*tools, variables))]
    num_chars = sum(map(len, texts))  # approximates the rendered template
    prompt = _encoded("messages", num_chars, served, partial(chat.encode_prompt, messages, tools))
    with_ids = bool(request.return_token_ids)
    answer = ChatAnswer(
        chat=chat,
        model=served.names[0],
        with_ids=with_ids,
        tools=tools,
        must_call=bool(called),
        many_calls=request.parallel_tool_calls is not False,
    )
    constraint = served.constraints.calls("tools", called) if called else None
    max_tokens = next(iter(limits), None) or served.max_context_tokens
    alternatives = request.top_logprobs or 0 if request.logprobs else None
    return answer, _choices(request, [prompt], served, max_tokens, alternatives, constraint)


def _called(choice: str | ToolChoice | None, tools: Sequence[ToolSchema]) -> dict[str, Any]:
    """The schemas of the arguments by name, of the tools of which one must be called; empty if none must."""
    if choice in (None, "none", "auto"):
        return {}
    known = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if not known:
        raise invalid("tool_choice", "a tool must be called, and there are no tools.")
    if not isinstance(choice, ToolChoice):
        return known
    name = choice.function.name
    if name not in known:
        raise invalid("tool_choice", f"{in_message(name)} is none of the tools; there is {', '.join(known)[:200]}.")
    return {name: known[name]}


def _constraint(request: ApiRequest, served: Served) -> Constraint | None:
    """What `response_format` asks for."""
    form = request.response_format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return served.constraints.json("response_format", {"type": "object"})
    schema = form.json_schema and form.json_schema.schema_
    if schema is None:
        raise invalid("response_format.json_schema.schema", "it is missing.")
    return served.constraints.json("response_format.json_schema.schema", schema)


def _choices(
    request: ApiRequest,
    prompts: Sequence[Ids],
    served: Served,
    max_tokens: int,
    alternatives: int | None,
    constraint: Constraint | None = None,
) -> list[Choice]:
    """n per prompt. Choice 0 uses the request's seed, the others seeds derived from it."""
    if request.temperature is not None and 0 < request.temperature < MIN_TEMPERATURE:
        raise invalid("temperature", f"it must be 0 (greedy) or at least {MIN_TEMPERATURE}.")
    constraint = constraint or _constraint(request, served)
    if constraint is not None and request.ignore_eos:
        raise invalid("ignore_eos", "the end of JSON is an end; leave it out.")
    own_stops = frozenset() if request.ignore_eos else served.chat.stop_ids
    stop_ids = _known("stop_token_ids", request.stop_token_ids or (), served)
    seed = secrets.randbits(63) if request.seed is None else request.seed
    num = request.n or 1
    total = num * len(prompts)
    if total > served.capacity:
        raise invalid("n", f"{total} completions are asked for; this server takes {served.capacity} at a time.")
    return [
        Choice(
            index=index,
            prompt_index=index // num,
            prompt_ids=prompts[index // num],
            sampling=SamplingParams(
                max_tokens=min(max_tokens, served.max_context_tokens),
                stop_ids=own_stops.union(stop_ids),
                seed=derive_seed(seed, "choice", index) if index else seed,
                temperature=1.0 if request.temperature is None else request.temperature,
                top_p=1.0 if request.top_p is None else request.top_p,
                top_k=max(0, request.top_k or 0),
                min_p=request.min_p or 0.0,
            ),
            stops=request.stops,
            num_alternatives=alternatives,
            stream=bool(request.stream),
            constraint=constraint and constraint.copy(),
        )
        for index in range(total)
    ]


def _check_model(request: ApiRequest, served: Served) -> None:
    if request.model and request.model not in served.names:
        near = nearest(request.model[:200], served.names)
        hint = f"did you mean {near}?" if near else f"there is {', '.join(served.names)}."
        message = f"model: {in_message(request.model)} is not served here; {hint}"
        raise ApiError(404, message, field="model", code="model_not_found")


def _text_prompt(prompt: str | list[int], served: Served, field: str) -> Ids:
    """The tokens; an empty text is the beginning of a document, as in OpenAI's API."""
    if not isinstance(prompt, str):
        return _checked(field, _known(field, prompt, served), served)
    if not prompt:
        return _checked(field, served.chat.document_start, served)
    return _encoded(field, len(prompt), served, partial(served.chat.encode_text, prompt))


def _encoded(field: str, num_chars: int, served: Served, encode: Callable[[], Ids]) -> Ids:
    most = served.max_context_tokens
    if num_chars > MAX_CHARS_PER_TOKEN * most:
        message = f"{num_chars} characters do not fit into the model's context of {most} tokens."
        raise invalid(field, message, code="context_length_exceeded")
    try:
        return _checked(field, encode(), served)
    except UnreadFieldError as error:
        raise invalid(field, str(error)) from None
    except UserError:
        raise invalid(field, "the model's tokenizer or its chat template cannot take it.") from None


def _known(field: str, ids: Sequence[int], served: Served) -> Ids:
    last = served.vocabulary_size - 1
    unknown = next((token for token in ids if token > last), None)
    if unknown is not None:
        raise invalid(field, f"the model has no token {unknown}: its ids end at {last}.")
    return tuple(ids)


def _checked(field: str, prompt: Ids, served: Served) -> Ids:
    most = served.max_context_tokens
    if not prompt:
        raise invalid(field, "it is empty: there is nothing to continue.")
    if len(prompt) >= most:
        message = f"{len(prompt)} tokens leave no room in the model's context of {most} tokens."
        raise invalid(field, message, code="context_length_exceeded")
    return prompt
