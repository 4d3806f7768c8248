import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.rewards.official import finqa, formulas
from rlvr.rewards.official.finqa_execute import ARITHMETIC
from rlvr.rewards.official.finqa_execute import TABLE as TABLE_OPERATIONS
from tests.unit.rewards.official.rows import data_folder, read_gzip

TABLE = [["", "2018", "2017"], ["sales", "$ 5", "-181 ( 181 )"], ["notes", "( 32 )"], ["none"]]
GOLD = finqa.tokens("subtract(5829, 5735), divide(#0, 5735)")


@pytest.mark.parametrize(("split", "num_rows"), [("train", 100), ("dev", 883), ("test", 801)])
def test_every_real_gold_program_gives_its_answer_and_is_itself(split: str, num_rows: int) -> None:
    rows = read_gzip(data_folder() / "finqa" / f"{split}.json.gz")
    assert len(rows) == num_rows
    for row in rows:
        gold = row["qa"]
        tokens = finqa.tokens(gold["program"])
        assert finqa.score(tokens, gold["program"], gold["exe_ans"], row["table"]) == {
            "invalid_flag": 0,
            "exe_result": gold["exe_ans"],
            "exe_correct": True,
            "program_correct": True,
        }


OPERATIONS = [f"{name}(" for name in (*ARITHMETIC, *TABLE_OPERATIONS)] + ["add", "ADD(", "(add(", "average("]
NUMBERS = ["1", "-2", "0.5", "1e308", "nan", "inf", "5%", "const_100", "const_x"]
ARGUMENTS = [*NUMBERS, "#0", "#1", "#-1", "sales", "notes", "none"]
WORDS = st.sampled_from([*OPERATIONS, *ARGUMENTS, ")", "(", "|", "", "EOF"]) | st.text(max_size=5)
STEP = st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(ARGUMENTS), st.sampled_from(ARGUMENTS), st.just(")"))
STEPS = st.lists(STEP, max_size=6).map(lambda steps: [word for step in steps for word in step] + ["EOF"])
PROGRAMS = st.lists(WORDS, max_size=12) | STEPS


@settings(deadline=None)
@given(PROGRAMS)
def test_any_tokens_are_executed_or_invalid(tokens: list[str]) -> None:
    invalid, result = finqa.execute(tokens, TABLE)
    assert isinstance(invalid, bool)
    assert isinstance(result, str | float | int)
    if not invalid and isinstance(result, str):
        assert result in ("yes", "no", "n/a")


def chain(first: list[str], step: list[str], num: int) -> list[str]:
    """`first`, then `step` `num` times; `#` is the step before."""
    tokens = list(first)
    for index in range(num):
        tokens += [f"#{index}" if word == "#" else word for word in step]
    return [*tokens, "EOF"]


HOSTILE = {
    "a tower of powers": chain(["add(", "9", "9", ")"], ["exp(", "#", "#", ")"], 50),
    "squares": chain(["add(", "9", "9", ")"], ["multiply(", "#", "#", ")"], 5000),
    "a tower of squares of ones": chain(["divide(", "5735", "5735", ")"], ["add(", "#", "#", ")"], 5000),
    "one to the power of one": chain(["divide(", "5735", "5735", ")"], ["exp(", "#", "#", ")"], 5000),
    "answers glued together": chain(["greater(", "2", "1", ")"], ["add(", "#", "#", ")"], 5000),
    "many steps": chain(["add(", "5829", "5735", ")"], ["subtract(", "#", "5735", ")"], 20_000),
    "many table steps": chain(["add(", "1", "2", ")"], ["table_sum(", "sales", "none", ")"], 20_000),
    "a long number": ["add(", "9" * 1_000_000, "1", ")", "EOF"],
    "a long reference": ["add(", "#" + "9" * 1_000_000, "1", ")", "EOF"],
    "a long name": ["table_sum(", "x" * 1_000_000, "none", ")", "EOF"],
    "many brackets": ["add(" + "(" * 1_000_000, "1", "2", ")", "EOF"],
    "many pipes": ["add(", "|" * 1_000_000, "2", ")", "EOF"],
    "a large sum to a large power": chain(["add(", "5829", "5735", ")"], ["multiply(", "#", "#", ")"], 30),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_programs_end_soon(name: str) -> None:
    start = time.process_time()
    invalid, result = finqa.execute(HOSTILE[name], TABLE)
    same = finqa.same_program(GOLD, HOSTILE[name])
    assert time.process_time() - start < 5
    assert not same
    assert invalid or not isinstance(result, str)


def test_pitfall_28_a_program_that_takes_hours_is_not_the_same() -> None:
    # (a + b)^(2^20) / (a + b)^(2^20 - 1), which sympy would multiply out, is a + b; so is its value at every point
    power = chain(["add(", "5829", "5735", ")", "multiply(", "#0", "#0", ")"], [], 0)[:-1]
    square = finqa.tokens("multiply(5829, 5829), multiply(5829, 5735), multiply(5735, 5735)")[:-1]
    tokens = [*power, *square, *finqa.tokens("add(#2, #3), add(#5, #3), add(#6, #4)")[:-1]]  # 7: multiplied out
    one, other = 1, 7
    for _ in range(18):
        number = len(tokens) // 4
        tokens += ["multiply(", f"#{one}", f"#{one}", ")", "multiply(", f"#{other}", f"#{other}", ")"]
        one, other = number, number + 1
    number = len(tokens) // 4
    tokens += ["divide(", f"#{one}", f"#{other}", ")", "multiply(", f"#{number}", "#0", ")", "EOF"]
    start = time.process_time()
    assert not finqa.same_program(finqa.tokens("add(5829, 5735)"), tokens)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("num_steps", "same"),
    [(20, True), (198, True), (199, False), (400, False)],  # the official script fails at 200 nested brackets
)
def test_programs_nest_as_deep_as_the_official_script_reads(num_steps: int, same: bool) -> None:
    tokens = chain(["add(", "a", "b", ")"], ["subtract(", "#", "b", ")", "add(", "#", "b", ")"], 0)[:-1]
    for index in range(num_steps):
        tokens += ["subtract(" if index % 2 == 0 else "add(", f"#{index}", "b", ")"]
    expected = finqa.tokens("add(a, b)" if num_steps % 2 == 0 else "add(a, b), subtract(#0, b)")
    assert finqa.same_program(expected, [*tokens, "EOF"]) is same


def test_an_unequal_program_is_refused_without_sympy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(formulas.Formulas, "_simplify_alike")
    assert not finqa.same_program(GOLD, finqa.tokens("subtract(5735, 5829), divide(#0, 5735)"))
    assert not finqa.same_program(GOLD, finqa.tokens("subtract(5829, 5735), divide(#0, 5829)"))
    assert finqa.same_program(GOLD, GOLD)


@pytest.mark.parametrize(
    "gold", ["", "add", "add(1)", "average(1, 2)", "add(#0, 1)", "add(#1, 1)", "add(#x, 1)", "add(add(1, 2))"]
)
def test_a_gold_that_is_no_program_is_an_error(gold: str) -> None:
    with pytest.raises(finqa.ProgramError, match="cannot be read"):
        finqa.same_program(finqa.tokens(gold), GOLD)


def test_pitfall_28_execution_knows_no_tolerance() -> None:
    assert finqa.is_correct_result(False, 0.935, 0.935)
    assert finqa.is_correct_result(False, "yes", "yes")
    assert not finqa.is_correct_result(True, 0.935, 0.935)
    for result, gold in ((93.5, 0.935), (0.93501, 0.935), (-0.935, 0.935), ("yes", 1.0), (0.0, "no")):
        assert not finqa.is_correct_result(False, result, gold)
    assert not finqa.is_correct_result(False, math.nan, math.nan)


@pytest.mark.parametrize(
    ("terms", "factors", "decided"), [(200, 1, True), (201, 1, False), (200, 200, True), (200, 201, False)]
)
def test_formulas_are_expanded_up_to_a_size(terms, factors, decided, monkeypatch) -> None:
    """Two orders of one product; it has as many leaves as terms and factors together."""
    monkeypatch.setattr(formulas.Formulas, "_simplify_alike", lambda *numbers: True)
    known = formulas.Formulas()

    def chain(operation: str, count: int) -> int:
        if count == 1:
            return known.symbol(0)
        return known.combined(operation, chain(operation, count // 2), chain(operation, count - count // 2))

    parts = chain("add", terms), chain("multiply", factors)
    assert known.are_equal(*(known.combined("multiply", *order) for order in (parts, parts[::-1]))) == decided


def test_a_power_of_what_is_no_real_number_is_taken_as_python_takes_it() -> None:
    """Two steps of this program are complex numbers, and its answer is none."""
    assert finqa.execute(finqa.tokens("exp(-4, 0.5), exp(#0, 2), greater(1, 0)"), TABLE) == (False, "yes")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("greater(a1, a2)", "greater(a1, a2)", True),
        ("greater(a1, a2)", "greater(a2, a1)", False),
        ("add(a1, a2), greater(a1, a1)", "add(a1, a2), greater(a2, a2)", True),  # both are false
        ("greater(a1, a1)", "greater(a1, a2)", False),
        ("greater(a1, a2)", "add(a1, a2)", False),
        ("greater(a1, a2)", "subtract(a1, a2)", False),
        ("add(a1, a2), greater(#0, a1)", "add(a2, a1), greater(#0, a1)", True),
        ("add(a1, a2), greater(#0, a1)", "add(a2, a1), greater(#0, a2)", False),
        ("add(a1, a2), greater(#0, a1)", "subtract(a2, a1), greater(#0, a1)", False),
        ("add(a1, a2)", "add(a2, a1)", True),
        ("subtract(a1, a2)", "subtract(a2, a1)", False),
        ("multiply(a1, a2), divide(#0, a2)", "multiply(a2, a1), divide(#0, a2)", True),
        ("exp(a1, a2)", "exp(a2, a1)", False),
    ],
)
def test_programs_are_the_same_by_their_formulas(one: str, other: str, same: bool) -> None:
    """`a1` is 1, `a2` is 2: numbers are symbols to the official script."""
    first, second = (finqa.tokens(text.replace("a1", "1").replace("a2", "2")) for text in (one, other))
    assert finqa.same_program(first, second) == same
    assert finqa.same_program(second, first) == same
