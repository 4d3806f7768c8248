"""Is what came out of a program what its tests expect? Decided here, outside of the jail.

TestCase(item={"call": "double(3)"}, expected=6)      value 6, 6.0 or True == ... as Python compares; not "6", not [6]
TestCase(item={"stdin": "3"}, expected="6", by="lines")           "6", " 6 \\n" and "6.0": as LiveCodeBench compares
TestCase(item={"entry": "double", "args": [3]}, expected=6, by="json")       as "equal"; a tuple is a list there
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from rlvr.jail.jail import Jail
from rlvr.jail.outcome import Limits
from rlvr.rewards.code_results import Result, run_items

Kind = Literal["passed", "wrong", "raised", "timed out", "out of memory", "no program", "error"]
TIMES_ALL = 5
"""All tests of a program together may take this many times as long as one of them may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TestCase:
    """An input, which goes into the jail, and what is expected, which stays here.

    `by`: equal: Python's `==` on builtin types; json: the same, tuples being lists, and an expected `[6]` also being 6,
    for data that wrap what a function returns; lines: LiveCodeBench's comparison of outputs; truth: Python's `bool`;
    close: a number within `tolerance`.
    """

    __test__ = False  # not pytest's

    item: Mapping[str, Any]
    expected: Any
    by: Literal["equal", "json", "lines", "truth", "close"] = "equal"
    tolerance: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeTests:
    """The tests of a problem: `CodeTests(cases=(TestCase(...),), setup="import math")`; `setup` runs before a program
    whose functions are called."""

    cases: tuple[TestCase, ...]
    setup: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """`Verdict(kind="wrong", num_passed=2, num_tests=10, message="double(3)")`: of the first test that did not pass."""

    kind: Kind
    num_passed: int = 0
    num_tests: int = 0
    message: str = ""


def judge(
    jail: Jail, program: str, tests: CodeTests, *, timeout_s: float, memory_mb: int = 512, every: bool = False
) -> Verdict:
    """Run the program on the tests, up to the first that does not pass; on `every` one to count those that do.

    A program that reads stdin runs on all inputs in one process, from an empty `__main__` each time. What fails there
    is run once more in a process of its own, so that no state of an earlier run, and no way to read or write, counts
    against a program.
    """
    deadline = time.monotonic() + TIMES_ALL * timeout_s
    num_passed, failure, start = 0, Verdict(kind="passed"), 0
    while start < len(tests.cases) and (failure.kind == "passed" or every):
        limits = Limits(
            wall_s=max(0.0, deadline - time.monotonic()), cpu_s=math.ceil(TIMES_ALL * timeout_s), memory_mb=memory_mb
        )
        batch = _of_one_kind(tests.cases[start:])
        items = [case.item for case in batch]
        results = run_items(jail, program, items, setup=tests.setup, limits=limits, alarm_s=timeout_s)
        for case, result in zip(batch, results, strict=False):
            if result.status == "error":
                return Verdict(kind="error", message=result.message)
            kind, message = _kind(case, result), result.message
            if kind in ("wrong", "raised") and "stdin" in case.item:
                alone = replace(limits, wall_s=min(2 * timeout_s, limits.wall_s), cpu_s=math.ceil(timeout_s))
                kind, message = _alone(jail, program, case, alone)
            num_passed += kind == "passed"
            if kind != "passed" and failure.kind == "passed":
                failure = Verdict(kind=kind, message=message or _shown(case))
                if not every:
                    break
        start += len(results)
    return replace(failure, num_passed=num_passed, num_tests=len(tests.cases))


def _of_one_kind(cases: Sequence[TestCase]) -> Sequence[TestCase]:
    """The first cases, as far as they are all fed, or all called."""
    is_fed = "stdin" in cases[0].item
    end = next((place for place, case in enumerate(cases) if ("stdin" in case.item) != is_fed), len(cases))
    return cases[:end]


def _alone(jail: Jail, program: str, case: TestCase, limits: Limits) -> tuple[Kind, str]:
    outcome = jail.run(program, stdin=case.item["stdin"], limits=limits)
    result = Result(status=outcome.status, value=outcome.output, message=outcome.message)
    return _kind(case, result), result.message


def _kind(case: TestCase, result: Result) -> Kind:
    if result.status != "ended":
        return result.status
    return "passed" if is_expected(result.value, case) else "wrong"


def _shown(case: TestCase) -> str:
    item = case.item
    text = item.get("call") or item.get("stdin") or f"{item.get('entry')}{tuple(item.get('args', ()))}"
    return f"on {text[:80]!r}"


def is_expected(value: Any, case: TestCase) -> bool:
    try:
        if case.by == "lines":
            return isinstance(value, str) and same_output(value, case.expected)
        if case.by == "truth":
            return bool(value) == case.expected
        if case.by == "close":
            return abs(value - case.expected) <= case.tolerance
        if case.by == "equal":
            return bool(value == case.expected)
        value, expected = _as_json(value), case.expected
        return value == expected or (isinstance(expected, list) and len(expected) == 1 and value == expected[0])
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False


def _as_json(value: Any) -> Any:
    """Tuples as lists, keys as texts: as JSON gives them."""
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _as_json(each) for key, each in value.items()}
    return value


def same_output(written: str, expected: str) -> bool:
    """LiveCodeBench's comparison: the same number of lines, each with the same text or the same decimal numbers, spaces
    at both ends apart."""
    ours, theirs = ([line.strip() for line in text.strip().split("\n")] for text in (written, expected))
    return len(ours) == len(theirs) and all(a == b or _same_numbers(a, b) for a, b in zip(ours, theirs, strict=True))


def _same_numbers(written: str, expected: str) -> bool:
    try:
        ours, theirs = ([Decimal(word) for word in line.split()] for line in (written, expected))
        return ours == theirs
    except InvalidOperation:
        return False
