"""Makes tools of typed Python functions with docstrings: JSON schema, validated arguments, time limit.

def search(query: str, state: Notes, top_n: int = 3) -> str:
    '''Find passages.

    Args:
        query: Words to look for.
        top_n: How many passages to return.
    '''

tool = make_tool(search, timeout_s=5.0)
await tool.call({"query": "Oslo"}, state)        ToolResult(text="...", failure=None)
await tool.call({"query": []}, state)            ToolResult(text="argument 'query' ...", failure="arguments")

Arguments are validated in pydantic's lax mode: `top_n="3"` is 3, and `query=3` is "3".
"""

import asyncio
import inspect
import json
import re
import time
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired

import pydantic_core
from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from rlvr import imports
from rlvr.errors import ConfigError, UserError
from rlvr.threads import CallThreads, TimeIsUpError
from rlvr.types import ToolSchema

MAX_ERROR_CHARS = 500
_GRACE_S = 0.1  # for a cancelled coroutine to clean up
_STATE = "state"
_DEFINITIONS = "#/$defs/"
_NEEDLESS = ("title", "additionalProperties")
_SECTIONS = re.compile(r"^(Args|Arguments|Returns|Yields|Raises|Example|Examples|Note|Notes):\s*$", re.MULTILINE)


class ToolError(Exception):
    """Raised by a tool: its text is the tool's answer to the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """A tool's answer, and its failure: wrong arguments, a time-out, or an exception."""

    text: str
    failure: Literal["arguments", "timeout", "error"] | None = None


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that the model may call. Stateless: the episode's state comes with each call."""

    name: str
    schema: ToolSchema
    final: bool
    timeout_s: float
    arguments: TypeAdapter[dict[str, Any]]
    run: Callable[[dict[str, Any], object], Awaitable[str]]

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The validated arguments. Raises ValueError with a message for the model."""
        try:
            return self.arguments.validate_json(json.dumps(arguments))
        except ValidationError as error:
            known = self.schema["function"]["parameters"]["properties"]
            said = "; ".join(_problem(one, known) for one in error.errors(include_url=False)[:5])
            raise ValueError(_bounded(said, MAX_ERROR_CHARS)) from None
        except (TypeError, ValueError, RecursionError):
            raise ValueError("the arguments are no JSON object") from None

    async def call(self, arguments: Mapping[str, Any], state: object) -> ToolResult:
        """The answer for the model; never raises for model output.

        Raises UserError if the tool does: the model cannot correct it.
        """
        try:
            checked = self.checked(arguments)
        except ValueError as error:
            return ToolResult(text=str(error), failure="arguments")
        try:
            return ToolResult(text=await self.run(checked, state))
        except UserError:
            raise
        except TimeIsUpError:
            return ToolResult(text=f"it timed out after {self.timeout_s:g} s", failure="timeout")
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # user code: the model gets the error as text
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise  # the episode itself is cancelled
            return ToolResult(text=_error_text(error, named=not isinstance(error, ToolError)), failure="error")


def make_tool(
    function: Callable[..., object],
    *,
    final: bool = False,
    timeout_s: float,
    inline: bool = False,
    max_output_chars: int = 20_000,
    threads: CallThreads | None = None,
) -> Tool:
    """The tool of a typed function with a Google-style docstring. A parameter `state` receives the episode's state.

    A successful call of a `final` tool ends the episode. A result that is no text becomes JSON, None becomes "done";
    what JSON cannot write (a generator, an object) is the tool's error. Text beyond `max_output_chars` characters is
    cut. Execution:

    - An asynchronous function runs on the event loop, and is cancelled after `timeout_s` seconds. It must not block.
      So does whatever awaitable another function returns, as one behind a decorator.
    - Any other one runs in a thread of `threads` (default: its own) and is abandoned there after its time; it may still
      change the state later.
    - With `inline=True` the event loop calls it directly, which saves about 60 microseconds. There is no time limit:
      only for in-memory lookups that cannot block.

    UserError for a function without a docstring, or with a parameter type that JSON cannot express.
    """
    name = getattr(function, "__name__", "")
    description, notes = _described(name, function)
    adapter, parameters, takes_state = _parameters(name, function, notes)
    pool = threads or CallThreads()

    async def run(arguments: dict[str, Any], state: object) -> str:
        given = arguments | {_STATE: state} if takes_state else arguments
        start = time.monotonic()

        def result() -> Awaitable[object] | str:
            found = function(**given)
            return found if inspect.isawaitable(found) else _text(found, max_output_chars)

        on_loop = inline or inspect.iscoroutinefunction(function)
        found = result() if on_loop else await pool.run(name, result, timeout_s)
        if isinstance(found, str):
            return found
        return _text(await _within(found, timeout_s - (time.monotonic() - start)), max_output_chars)

    schema = {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
    return Tool(name=name, schema=schema, final=final, timeout_s=timeout_s, arguments=adapter, run=run)


def load_tool(path: str, *, timeout_s: float) -> Tool:
    """The tool of a function in a user module, `my_tools:calculator`. ConfigError if it cannot be one."""
    key = f"task.tools={path}"
    try:
        return make_tool(imports.imported(key, path, "function", inspect.isfunction), timeout_s=timeout_s)
    except ConfigError:
        raise
    except UserError as error:
        raise ConfigError(f"{key}: {error}") from error


# ---------------------------------------------------------------------------------------------------------- schema


def _described(name: str, function: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """A Google-style docstring's text before its sections, and its argument descriptions."""
    doc = inspect.getdoc(function) if getattr(function, "__doc__", None) else None
    if not doc or not name.isidentifier():
        raise UserError(f"the tool {name!r} has no docstring or name: these tell the model what a tool does.")
    text, *sections = _SECTIONS.split(doc)
    described = dict(zip(sections[::2], sections[1::2], strict=True))
    notes: dict[str, str] = {}
    current = None
    for line in inspect.cleandoc("\n" + (described.get("Args") or described.get("Arguments") or "")).splitlines():
        if match := re.match(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)$", line):
            current = match[1]
            notes[current] = match[2].strip()
        elif line.strip() and current is not None and line[0].isspace():
            notes[current] = f"{notes[current]} {line.strip()}".strip()
        elif line.strip():
            break  # text after the section
    return text.strip(), notes


class _Untitled(GenerateJsonSchema):
    """Omits the `title` of each field: it repeats the name and costs tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        return value  # parameters stay in the order of the function


def _parameters(
    name: str, function: Callable[..., object], notes: Mapping[str, str]
) -> tuple[TypeAdapter[dict[str, Any]], dict[str, Any], bool]:
    """Validator of the arguments, their JSON schema, and whether the function takes the state."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UserError(f"the tool {name!r} has a type that cannot be found: {error}.") from error
    parameters = dict(inspect.signature(function).parameters)
    takes_state = parameters.pop(_STATE, None) is not None
    fields: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) or key not in hints:
            raise UserError(f"the parameter {key!r} of the tool {name!r} has no type: write it as {key}: str.")
        default, extra = parameter.default, {}
        if default is not parameter.empty and default is not None:
            extra = {"default": pydantic_core.to_jsonable_python(default)}
        field: Any = Annotated[hints[key], Field(description=notes.get(key), json_schema_extra=extra)]
        fields[key] = field if default is parameter.empty else NotRequired[field]
    model: Any = TypedDict(name, fields)  # pyright: ignore[reportArgumentType]
    model.__pydantic_config__ = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(model)
        schema = adapter.json_schema(schema_generator=_Untitled)
    except PydanticUserError as error:
        reason = error.message.partition("\n")[0]
        raise UserError(f"the tool {name!r} has a parameter whose type JSON cannot write ({reason}).") from error
    for needless in (*_NEEDLESS, "description"):
        schema.pop(needless, None)
    try:
        return adapter, _inlined(schema, schema.pop("$defs", {}), ()), takes_state
    except RecursionError as error:
        raise UserError(
            f"the tool {name!r} has a parameter whose type contains itself ({error}), which no prompt can write out: "
            "take a flat one, such as a list."
        ) from None


def _inlined(schema: Any, definitions: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    """The schema with definitions in the place of `$ref`, which many chat templates show as it stands.

    RecursionError names a definition that contains itself.
    """
    if isinstance(schema, list):
        return [_inlined(one, definitions, within) for one in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith(_DEFINITIONS):
        return {key: _inlined(value, definitions, within) for key, value in schema.items()}
    name = reference.removeprefix(_DEFINITIONS)
    if name in within:
        raise RecursionError(name)
    beside = {key: value for key, value in schema.items() if key != "$ref"}
    meant = {key: value for key, value in definitions[name].items() if key not in _NEEDLESS}
    return _inlined(meant, definitions, (*within, name)) | _inlined(beside, definitions, within)


# --------------------------------------------------------------------------------------------------------- running


async def _within(call: Awaitable[object], timeout_s: float) -> object:
    """The call's result. After the time limit the call is cancelled, without waiting for its end."""
    task = asyncio.ensure_future(_no_exit(call))
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if task.done():
            return task.result()
    finally:
        if not task.done():
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            task.cancel()
            await asyncio.wait({task}, timeout=_GRACE_S)
    raise TimeIsUpError


async def _no_exit(call: Awaitable[object]) -> object:
    try:
        return await call
    except SystemExit as error:  # raised in a task, it would end the event loop
        raise RuntimeError(f"SystemExit: {error}") from error


def _text(value: object, max_chars: int) -> str:
    if not isinstance(value, str):
        if isinstance(value, Iterator | AsyncIterator):
            raise TypeError(f"the tool returned a {type(value).__name__}, which is no value: it should return a list")
        try:
            value = "done" if value is None else pydantic_core.to_json(value, fallback=_plain).decode()
        except pydantic_core.PydanticSerializationError as error:
            raise TypeError(f"the tool returned a {type(value).__name__} that JSON cannot write ({error})") from None
    return _bounded(value, max_chars)


def _plain(value: object) -> object:
    """Numbers and lists of an array or a tensor."""
    plain = getattr(value, "tolist", None)
    if plain is None:
        raise TypeError(type(value).__name__)
    return plain()


def _error_text(error: BaseException, *, named: bool = True) -> str:
    """An exception as text: `KeyError: 'x'`."""
    name, text = type(error).__name__, ""
    with suppress(Exception):  # user code
        text = str(error)
    return _bounded(f"{name}: {text}" if named and text else text or name, MAX_ERROR_CHARS)


def _bounded(text: str, max_chars: int) -> str:
    """Text that any tokenizer can encode, cut with a note."""
    if len(text) > max_chars:
        text = f"{text[:max_chars]}\n[cut after {max_chars:,} of {len(text):,} characters]"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _problem(problem: Any, known: Mapping[str, Any]) -> str:
    if not problem["loc"]:
        return "the arguments are no JSON object"
    place = ".".join(str(step) for step in problem["loc"])[:100]
    if problem["type"] == "missing":
        return f"argument {place!r} ({known.get(place, {}).get('type', 'any type')}) is missing"
    if problem["type"] == "extra_forbidden":
        return f"there is no argument {place!r}; the arguments are: {', '.join(known) or 'none'}"
    kinds = {bool: "the boolean", int: "the integer", float: "the number", str: "the string", list: "the list"}
    value = problem["input"]
    shown = f"{kinds[type(value)]} {value!r:.60}" if type(value) in kinds else "null" if value is None else "an object"
    wanted = re.sub(r", (?:unable to|got a) .*", "", problem["msg"].removeprefix("Input "))
    return f"argument {place!r} {wanted}, not {shown}"
