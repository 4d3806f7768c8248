"""Where public data keep a problem's tests, and what these look like.

    column                                        form                                            written for
    test_list                                     list of asserts                                 MBPP
    test with entry_point                         Python: check(candidate), or inputs, results    HumanEval, EvalPlus
    input_output                                  {"inputs", "outputs", "fn_name"?}               APPS, TACO
    reward_model.ground_truth                     the same, or {"assert_case"}, {"functional"}    verl, guru
    verification_info.test_cases                  list of {"input", "output", "type", "fn_name"?} PrimeIntellect
    public_test_cases, private_test_cases         list of {"input", "output", "testtype"}         LiveCodeBench
    public_tests, private_tests, generated_tests  {"input": [...], "output": [...]}               CodeContests
    tests                                         any of these, or Python                         DeepCoder, AceCode
    test_cases, ground_truth                      any of these                                    AceCode, open-instruct
    test                                          Python: def test_...                            KodCode

Each may be a text of JSON; LiveCodeBench's private tests also a pickled one, which is read by a reader that admits one
text. Inputs of functions are lists of arguments, or lines of JSON.
"""

import base64
import io
import json
import pickle
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.data.rows import Row
from rlvr.rewards.code_judge import CodeTests, TestCase
from rlvr.tasks.code_asserts import split_asserts

PLACES: tuple[tuple[str, ...], ...] = (
    ("test_list",),
    ("input_output",),
    ("reward_model.ground_truth",),
    ("verification_info.test_cases",),
    ("public_test_cases", "private_test_cases"),
    ("public_tests", "private_tests", "generated_tests"),
    ("tests",),
    ("test_cases",),
    ("ground_truth",),
    ("test",),
)
QUESTIONS = ("question_content", "question", "problem", "description", "prompt", "text", "messages")
SOLUTIONS = ("canonical_solution", "code", "solution", "solutions")
MAX_UNPACKED = 1 << 28
PRELUDE = (
    "from typing import *\nfrom collections import *\nfrom functools import *\nfrom itertools import *\n"
    "from heapq import *\nfrom bisect import *\nimport collections, functools, itertools, heapq, bisect\n"
    "import math, random, re, string, sys\n"
)
"""What LeetCode's programs, and so those of LiveCodeBench and others, expect to be there."""


class NoTestsError(ValueError):
    """There are none, or none that can be judged; the message goes on after `rows`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTests:
    """`RowTests(tests=CodeTests(...), num_left_out=0)`: the tests of a row, and the asserts that could not be split."""

    tests: CodeTests
    num_left_out: int = 0


def places_in(rows: Sequence[Row]) -> tuple[str, ...] | None:
    """The columns that hold the tests, by the first of the rows that has any; None if no layout is known."""
    return next((place for row in rows for place in PLACES if place[0] in row), None)


def read_tests(row: Row, columns: Sequence[str]) -> RowTests:
    """The tests in the columns of a row. NoTestsError says why there are none."""
    entry = str(row.get("entry_point")) if "entry_point" in row else ""
    method = _function_of(row)
    cases: list[TestCase] = []
    num_left_out, given = 0, False
    for column in columns:
        value = row.get(column) if column in row else None
        if value in (None, "", [], {}):
            continue
        given = True
        try:
            read, left_out = _cases(_unpacked(value), entry, method)
        except (ValueError, TypeError, LookupError, AttributeError, SyntaxError, RecursionError, MemoryError) as error:
            raise NoTestsError("have tests that cannot be read") from error
        cases += read
        num_left_out += left_out
    if not cases:
        raise NoTestsError("have tests, none of which is a call and a literal" if given else "have no tests")
    return RowTests(tests=CodeTests(cases=tuple(cases), setup=_setup(row, cases, entry)), num_left_out=num_left_out)


def _function_of(row: Row) -> str:
    """The function or method that LiveCodeBench's and DeepCoder's tests call, by their metadata."""
    for field in ("metadata.func_name", "metadata.fn_name", "fn_name"):
        if field in row and isinstance(name := row.get(field), str):
            return name
    return ""


def _setup(row: Row, cases: Sequence[TestCase], entry: str) -> str:
    """What runs before a program whose functions are called."""
    if "stdin" in cases[0].item:
        return ""
    if entry and "prompt" in row and isinstance(prompt := row.get("prompt"), str) and f"def {entry}" in prompt:
        return prompt  # HumanEval's: imports and helpers
    given = [row.get(name) for name in ("test_setup_code", "test_imports") if name in row]
    lines = [line for value in given if value for line in ([value] if isinstance(value, str) else value)]
    return "\n".join([PRELUDE, *map(str, lines)])


def _unpacked(value: Any) -> Any:
    """A text of JSON, or LiveCodeBench's packed one, as what it stands for; Python as it is."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith(("[", "{", '"')):
        return _unpacked_once(json.loads(text))
    if " " not in text and "\n" not in text and len(text) > 20:
        return json.loads(_unpickled(base64.b64decode(text, validate=True)))
    return value


def _unpacked_once(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value.lstrip().startswith(("[", "{")) else value


class _OneText(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        raise ValueError(f"a text was expected, not {module_name}.{global_name}")


def _unpickled(packed: bytes) -> str:
    """The text in LiveCodeBench's private tests. ValueError for anything else: a pickle may run code."""
    try:
        text = _OneText(io.BytesIO(zlib.decompressobj().decompress(packed, MAX_UNPACKED))).load()
    except Exception as error:  # a damaged pickle raises anything
        raise ValueError(str(error)) from error
    if not isinstance(text, str):
        raise ValueError("a text was expected")
    return text


def _cases(value: Any, entry: str, method: str) -> tuple[list[TestCase], int]:
    """The cases of any form, and the number of asserts left out."""
    if isinstance(value, str):
        split = split_asserts(value, entry)
        return list(split.cases), split.num_left_out
    if isinstance(value, Mapping):
        for name in ("assert_case", "functional"):
            if value.get(name):
                return _cases(value[name], entry, method)
        many = "inputs" in value
        inputs, outputs = (value["inputs"], value["outputs"]) if many else (value["input"], value["output"])
        if len(inputs) != len(outputs):
            raise ValueError("as many outputs as inputs were expected")
        name = value.get("fn_name") or method
        pairs = zip(inputs, outputs, strict=True)
        return [_called(name, *pair) if name else _fed(*pair) for pair in pairs], 0
    cases, num_left_out = list[TestCase](), 0
    for test in value:
        if isinstance(test, str):
            split = split_asserts(test, entry)
            cases += split.cases
            num_left_out += split.num_left_out
        else:
            cases.append(_of_test(test, method))
    return cases, num_left_out


def _of_test(test: Mapping[str, Any], method: str) -> TestCase:
    """A case of a list: `{"input": "3", "output": "6", "testtype": "stdin"}`."""
    kind = str(test.get("testtype") or test.get("type") or "").lower()
    metadata = test.get("metadata")
    within = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    name = test.get("fn_name") or within or method
    is_called = kind in ("functional", "function_call", "call") or (not kind and bool(test.get("fn_name")))
    if is_called and not name:
        raise ValueError("a name of a function was expected")
    return _called(name, test["input"], test["output"]) if is_called else _fed(test["input"], test["output"])


def _fed(given: Any, expected: Any) -> TestCase:
    return TestCase(item={"stdin": _lines(given)}, expected=_lines(expected), by="lines")


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _called(name: str, given: Any, expected: Any) -> TestCase:
    """Arguments as a list, or as lines of JSON, and then what is expected as JSON, too."""
    if isinstance(given, str):
        given = [json.loads(line) for line in given.split("\n") if line.strip()]
        expected = json.loads(expected) if isinstance(expected, str) else expected
    if not isinstance(given, list):
        raise TypeError("a list of arguments was expected")
    return TestCase(item={"entry": name, "args": given}, expected=expected, by="json")


def solutions_of(row: Row) -> Iterator[str]:
    """The row's own programs."""
    for field in SOLUTIONS:
        value = row.get(field) if field in row else None
        value = _unpacked(value) if isinstance(value, str) and value.lstrip().startswith("[") else value
        if isinstance(value, Mapping):  # CodeContests: 3 is Python 3
            pairs = zip(value.get("language", ()), value.get("solution", ()), strict=False)
            value = [text for language, text in pairs if language in (3, "PYTHON3")]
        yield from (text for text in ([value] if isinstance(value, str) else value or ()) if isinstance(text, str))
