"""Functions as tools: schema, checked arguments, results, failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlvr.envs.tools import ToolError, ToolResult, load_tool, make_tool
from rlvr.errors import UserError


def call(
    function: Callable[..., object], arguments: Any = None, *, state: object = None, **settings: Any
) -> ToolResult:
    tool = make_tool(function, **{"timeout_s": 5.0, **settings})
    return asyncio.run(tool.call({} if arguments is None else arguments, state))


def search(query: str, state: list[str], top_n: int = 3, kinds: list[str] | None = None) -> str:
    """Find passages.

    The best ones come first.

    Args:
        query: Words to look for,
            in any order.
        top_n (int): How many, at most.

    Returns:
        Titles and texts.
    """
    return f"{query} {top_n} {kinds} in {len(state)}"


def test_pitfall_38_the_schema_has_no_state() -> None:
    tool = make_tool(search, timeout_s=1.0)
    properties = {
        "query": {"type": "string", "description": "Words to look for, in any order."},
        "top_n": {"type": "integer", "description": "How many, at most.", "default": 3},
        "kinds": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
    }
    assert (tool.name, tool.final) == ("search", False)
    assert tool.schema == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Find passages.\n\nThe best ones come first.",
            "parameters": {"type": "object", "properties": properties, "required": ["query"]},
        },
    }
    assert list(tool.schema["function"]["parameters"]["properties"]) == ["query", "top_n", "kinds"]
    json.dumps(tool.schema)


def undocumented(query: str) -> str:
    return query


def untyped(query) -> str:
    """Find."""
    return query


def unknown_type(query: Missing) -> str:  # noqa: F821  # pyright: ignore
    """Find."""
    return query


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (undocumented, "the tool 'undocumented' has no docstring"),
        (untyped, "the parameter 'query' of the tool 'untyped' has no type: write it as query: str"),
        (unknown_type, "the tool 'unknown_type' has a type that cannot be found: name 'Missing' is not defined"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_one_sentence(function: Callable[..., object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_tool(function, timeout_s=1.0)


@pytest.mark.parametrize("top_n", ["5", 5.0, " 5"])
def test_texts_stand_for_numbers_and_numbers_for_texts(top_n: object) -> None:
    assert call(search, {"query": 3, "top_n": top_n, "kinds": ["b", 7]}, state=[]).text == "3 5 ['b', '7'] in 0"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"query": True}, "argument 'query' should be a valid string, not the boolean True"),
        ({"query": "x", "top_n": "three"}, "argument 'top_n' should be a valid integer, not the string 'three'"),
        ({"query": "x", "top_n": 2.5}, "argument 'top_n' should be a valid integer, not the number 2.5"),
        ({"query": "x", "kinds": "b"}, "argument 'kinds' should be a valid array, not the string 'b'"),
        ({"query": "x", "kinds": ["b", []]}, "argument 'kinds.1' should be a valid string, not the list []"),
        ({}, "argument 'query' (string) is missing"),
        ({"query": "x", "n": 3}, "there is no argument 'n'; the arguments are: query, top_n, kinds"),
        ({"query": "x", "state": []}, "there is no argument 'state'; the arguments are: query, top_n, kinds"),
        ({"query": {"x": 1}}, "argument 'query' should be a valid string, not an object"),
        ({"query": None}, "argument 'query' should be a valid string, not null"),
        ([], "the arguments are no JSON object"),
        ({"query": object()}, "the arguments are no JSON object"),
        ({"query": "\ud800"}, "the arguments are no JSON object"),
    ],
)
def test_pitfall_28_wrong_arguments_are_named_to_the_model(arguments: Any, text: str) -> None:
    result = call(search, arguments, state=[])
    assert result == ToolResult(text=text, failure="arguments")


def test_messages_about_huge_or_deep_arguments_are_short() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for arguments in ({"query": ["x" * 100_000]}, {"query": deep}, {f"a{i}": "x" * 1000 for i in range(1000)}):
        result = call(search, arguments, state=[])
        assert result.failure == "arguments"
        assert len(result.text) < 700
    while deep:  # freed level by level: the interpreter's own way is recursive
        deep = deep.pop()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, "done"),
        (3, "3"),
        ({"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'),
        (np.array([[1, 2], [3, 4]]), "[[1,2],[3,4]]"),
        (np.float32(1.5), "1.5"),
        ({"a": np.int64(3), "b": [np.bool_(True)]}, '{"a":3,"b":[true]}'),
        (torch.tensor([1.5, 2.0]), "[1.5,2.0]"),
        ("a\ud800b", "a?b"),
        ("", ""),
    ],
)
def test_returned_values_become_text_for_the_model(value: object, text: str) -> None:
    def give() -> object:
        """Give."""
        return value

    assert call(give) == ToolResult(text=text)
    assert call(give, inline=True) == ToolResult(text=text)


async def _three() -> object:
    return 3


class Later:
    """An awaitable that is no coroutine."""

    def __await__(self) -> Any:
        return _three().__await__()


async def _ticks() -> Any:
    yield 1


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize(
    ("give", "said"),
    [
        (_three, ToolResult(text="3")),
        (Later, ToolResult(text="3")),
        (lambda: asyncio.sleep(60, "late"), ToolResult(text="it timed out after 0.2 s", failure="timeout")),
        (lambda: (one for one in "abc"), "returned a generator"),
        (lambda: map(str, "abc"), "returned a map"),
        (_ticks, "returned a async_generator"),
        (object, "returned a object that JSON cannot write"),
        (lambda: [object], "returned a list that JSON cannot write"),
    ],
)
def test_a_result_is_awaited_and_written_or_the_error_of_the_tool(
    give: Callable[[], object], said: ToolResult | str, inline: bool
) -> None:
    """Whatever is between the function and its tool, as a decorator; nothing is told by an address in memory."""

    def wrapped() -> object:
        """Give."""
        return give()

    result = call(wrapped, inline=inline, timeout_s=0.2)
    if isinstance(said, ToolResult):
        assert result == said
    else:
        assert result.failure == "error"
        assert said in result.text
        assert "0x" not in result.text


class Color(Enum):
    """A color."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    color: Color = Color.RED


@dataclass
class Tree:
    below: list[Tree]


def test_definitions_stand_where_they_are_used() -> None:
    """Many chat templates show a `$ref` as it stands, or nothing."""

    def paint(color: Color, at: Point, more: list[Point] | None = None) -> str:
        """Paint.

        Args:
            color: With it.
        """
        return f"{color.value} {at.x} {at.color.value}"

    tool = make_tool(paint, timeout_s=1.0)
    shown = tool.schema["function"]["parameters"]["properties"]
    color = {"enum": ["red", "blue"], "type": "string", "description": "A color."}
    point = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "color": {**color, "default": "red"}},
        "required": ["x"],
    }
    assert shown["color"] == {**color, "description": "With it."}
    assert shown["at"] == point
    assert shown["more"]["anyOf"] == [{"type": "array", "items": point}, {"type": "null"}]
    assert call(paint, {"color": "blue", "at": {"x": 3}}) == ToolResult(text="blue 3 red")


def test_a_type_that_contains_itself_cannot_be_shown() -> None:
    def grow(tree: Tree) -> str:
        """Grow."""
        return "it did"

    with pytest.raises(UserError, match=r"a parameter whose type contains itself \(Tree\)"):
        make_tool(grow, timeout_s=1.0)


def test_pitfall_27_ten_megabytes_are_cut_with_a_remark() -> None:
    def much() -> list[str]:
        """Much."""
        return ["x" * 1000] * 10_000

    result = call(much)
    assert result.failure is None
    assert len(result.text) < 20_100
    assert result.text.endswith("[cut after 20,000 of 10,030,001 characters]")
    assert len(call(much, max_output_chars=10).text) < 70


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("kind", ["thread", "inline", "async"])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ToolError("no document has the id '7'"), "no document has the id '7'"),
        (KeyError("x"), "KeyError: 'x'"),
        (TimeoutError("of its own"), "TimeoutError: of its own"),
        (ValueError("y" * 10_000), None),
        (UnspeakableError(), "UnspeakableError"),
        (SystemExit(3), None),
        (StopIteration(), None),
        (asyncio.CancelledError(), "CancelledError"),
        (RecursionError(), "RecursionError"),
    ],
)
def test_pitfall_26_an_error_of_a_tool_is_told_in_few_words(kind: str, error: BaseException, text: str | None) -> None:
    def fail() -> str:
        """Fail."""
        raise error

    async def fail_too() -> str:
        """Fail."""
        raise error

    result = call(fail_too if kind == "async" else fail, inline=kind == "inline")
    assert result.failure == "error"
    assert len(result.text) < 600
    if text is not None and not (kind == "thread" and isinstance(error, asyncio.CancelledError)):
        assert result.text == text


OWN = """
def calculator(expression: str) -> str:
    '''Work out a sum.'''
    return expression[::-1]
"""


def test_a_users_own_tool_is_found_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"tools_{tmp_path.name}"
    Path(f"{name}.py").write_text(OWN)
    tool = load_tool(f"{name}:calculator", timeout_s=5)
    assert (tool.name, tool.timeout_s) == ("calculator", 5)
    assert asyncio.run(tool.call({"expression": "ab"}, None)) == ToolResult(text="ba")
