import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.rewards.finqa import FinqaProgram, FinqaProgramMetric
from tests.unit.rewards.attempts import GREW, METADATA, attempt, failed, grade, graded_answer, solved
from tests.unit.rewards.test_numeric import finqa_rows


def value(said: str, mode: Any, **changed: object) -> tuple[float, str]:
    part = FinqaProgram(mode=mode, wrong_value=-0.5, invalid_value=-1.0)
    found = grade(part, attempt(solved(said), **(METADATA | changed)))
    return found.value, found.status


@pytest.mark.parametrize(
    ("program", "execution", "same"),
    [
        (GREW, 1.0, 1.0),
        ("divide(150, 100), subtract(#0, 1)", 1.0, -0.5),
        ("divide(1, 2)", 1.0, -0.5),
        ("add(0, 0), subtract(150, 100), divide(#1, 100)", 1.0, -0.5),
        ("divide(150, 100)", -0.5, -0.5),
        ("divide(1, 200), multiply(#0, 100), multiply(#1, 100)", -0.5, -0.5),
        ("table_max(revenue, none), divide(#0, 300)", 1.0, -0.5),
    ],
)
def test_right_and_wrong_programs(program: str, execution: float, same: float) -> None:
    assert value(program, "execution") == (execution, "scored")
    assert value(program, "program") == (same, "scored")


@pytest.mark.parametrize(
    "said",
    [
        *("subtract(150,100),divide(#0,100)", "subtract(150 , 100) , divide(#0 , 100)", f"{GREW}."),
        *("subtract(150, 100)\ndivide(#0, 100)", "subtract(150, 100),\n divide(#0, 100)\n"),
    ],
)
def test_pitfall_28_a_program_may_have_other_punctuation(said: str) -> None:
    assert value(said, "execution") == value(said, "program") == (1.0, "scored")
    assert graded_answer(FinqaProgramMetric(), attempt(solved(said), **METADATA)).correct
    assert value(f"{said} or 7", "execution") == (-1.0, "invalid")


@pytest.mark.parametrize(
    "program",
    [
        *("", "0.5", "50%", "yes", "banana", "divide(1, 2", "divide 1 2", "divide(1)", "divide(1, 2, 3)", "(", ")"),
        *("EOF", "divide(1, 0)", "divide(#0, 2)", "sqrt(2, 1)", "add(nan, 1)", "add(inf, 1)", "multiply(1e308, 1e308)"),
        *("exp(9, 999999999)", "exp(-8, 0.5)", "table_sum(loss, none)", "table_sum(nothing, none)", "divide($1, 2)"),
        *("divide(yes, 2)", "divide(1, 2), " * 200 + "divide(1, 2)"),
    ],
)
def test_pitfall_28_a_program_without_a_result_is_invalid(program: str) -> None:
    assert value(program, "execution") == value(program, "program") == (-1.0, "invalid")


@pytest.mark.parametrize("missing", ["table", "program", "exe_ans"])
def test_pitfall_26_an_example_without_its_gold_is_an_error(missing: str) -> None:
    metadata = {name: found for name, found in METADATA.items() if name != missing}
    found = grade(FinqaProgram(mode="program"), attempt(solved(GREW), **metadata))
    assert failed(found, f"example 'e1' has no {missing} in its metadata")


PIECES = [
    *("add(", "divide(", "exp(", "greater(", "table_sum(", "revenue", "none", "#0", "1", "1e9", "%"),
    *("const_100", ", ", ")"),
]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=16).map("".join))
def test_no_program_crashes_or_hangs_the_part(program: str) -> None:
    for mode in ("execution", "program"):
        found = value(program, mode)
        assert found[1] in ("scored", "invalid")
        assert math.isfinite(found[0])


def test_every_gold_program_of_finqa_is_right() -> None:
    part, strict, metric = FinqaProgram(), FinqaProgram(mode="program"), FinqaProgramMetric()
    rows = finqa_rows()
    assert len(rows) == 100 + 883 + 801
    for row in rows:
        metadata = {"table": row["table"], "program": row["qa"]["program"], "exe_ans": row["qa"]["exe_ans"]}
        made = attempt(solved(row["qa"]["program"]), **metadata)
        assert grade(part, made).value == 1.0, row["id"]
        assert grade(strict, made).value == 1.0, row["id"]
        assert graded_answer(metric, made).correct, row["id"]
        other = attempt(solved(row["qa"]["program"]), **(metadata | {"exe_ans": 123456.789}))
        assert grade(part, other).value == 0.0, row["id"]
