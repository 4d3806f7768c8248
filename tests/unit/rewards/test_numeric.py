from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.errors import ConfigError
from rlvr.rewards.base import AnswerPart
from rlvr.rewards.numbers import parse_answer
from rlvr.rewards.numeric import FinqaMetric, FinqaNumeric, NumberCheck, Numeric, NumericMetric, same_in_finqa
from rlvr.types import Message
from tests.unit.rewards.attempts import (
    FORMATS,
    PERTURBATIONS,
    WHOLE,
    attempt,
    failed,
    grade,
    graded_answer,
    run,
    solved,
)
from tests.unit.rewards.official.rows import data_folder, read_gzip

VALUES = {"right": (1.0, "scored"), "wrong": (-0.5, "scored"), "invalid": (-1.0, "invalid")}
STRICT = FinqaNumeric(approximate_credit=0.0)
SHAPED = Numeric(close_credit=0.5, near_credit=0.25, wrong_value=-1.0)


def make_part(task: str) -> AnswerPart:
    values = {"wrong_value": -0.5, "invalid_value": -1.0}
    return Numeric(**values) if task == "numeric" else FinqaNumeric(relative_tolerance=0.0, **values)


@pytest.mark.parametrize("row", PERTURBATIONS, ids=lambda row: f"{row['kind']}-{row['gold']}-{row['text'][:40]}")
def test_pitfall_28_each_perturbation_gets_its_grade(row: dict[str, str]) -> None:
    made, form = attempt(row["text"], row["gold"]), FORMATS[row["answer_in"]]
    found, right = grade(make_part(row["task"]), made, form), row["grade"] == "right"
    assert (found.value, found.status) == VALUES[row["grade"]]
    if row["task"] == "numeric":
        found = grade(NumberCheck(), made, form)
        assert (found.value, found.status) == (float(right), "scored")
    judged = graded_answer(NumericMetric() if row["task"] == "numeric" else FinqaMetric(), made, form)
    assert (judged.correct, judged.answer is None) == (right, row["grade"] == "invalid")


@pytest.mark.parametrize("said", ["18", " 18 ", "18.0", "$18", "18 eggs", "18.", "+18"])
def test_pitfall_28_equal_numbers_get_equal_reward(said: str) -> None:
    assert grade(SHAPED, attempt(solved(said))).value == 1.0
    assert grade(NumberCheck(), attempt(solved(said))).value == 1.0


@pytest.mark.parametrize(
    ("said", "gold", "status"),
    [
        *(("18 egg", "18", "scored"), ("18 mil", "18", "invalid"), ("18 chicken", "18", "invalid")),
        *(("18 chicken", "18 chicken", "scored"), ("18", "18 chicken", "scored"), ("18 thousand", "18", "scored")),
    ],
)
def test_words_of_the_question_or_of_the_gold_are_units(said: str, gold: str, status: str) -> None:
    made = attempt(said, gold)
    question = Message(role="user", content="An egg a day: how many in 18 days?")
    made = replace(made, example=replace(made.example, messages=(question,)))
    found = grade(Numeric(), made, WHOLE)
    assert (found.value, found.status) == (float(status == "scored" and "thousand" not in said), status)


@pytest.mark.parametrize("said", ["yes", "no"])
def test_pitfall_28_the_number_check_pays_for_numbers_only(said: str) -> None:
    assert grade(Numeric(), attempt(solved(said), said)).value == 1.0
    assert grade(NumberCheck(), attempt(solved(said), said)).value == 0.0


@pytest.mark.parametrize("said", ["19.5", "18.01", "17.99", "16.2", "21", "19", "18e1", "-18"])
def test_pitfall_28_a_wrong_number_earns_nothing_by_default(said: str) -> None:
    for part in (Numeric(), STRICT, NumberCheck()):
        assert grade(part, attempt(solved(said))).value == 0.0


@pytest.mark.parametrize(
    ("value", "pairs"),
    [
        (1.0, [("18", "18")]),
        (0.5, [("19.8", "18"), ("16.2", "18"), ("-19", "-18")]),
        (0.25, [("19.81", "18"), ("21.6", "18"), ("14.4", "18")]),
        (-1.0, [("21.61", "18"), ("-18", "18"), ("0.001", "0"), ("yes", "18")]),
    ],
)
def test_shaping_by_closeness(value: float, pairs: list[tuple[str, str]]) -> None:
    for said, gold in pairs:
        assert grade(SHAPED, attempt(solved(said), gold)).value == value, (said, gold)


@pytest.mark.parametrize(
    ("said", "gold", "tolerance", "value"),
    [
        *(("100.9", "100.0", 0.01, 0.3), ("101", "100.0", 0.01, 0.3), ("101.1", "100.0", 0.01, -1.0)),
        ("100.9", "100.0", 1e-9, -1.0),  # the setting is the one that is read
        ("100.00000001", "100.0", 1e-9, 1.0),  # equal to 5 decimals
        *(("1000000.0001", "1000000.0", 1e-9, 0.3), ("100.00001", "100.0", 0.0, -1.0)),
        ("130", "100.0", 0.3, 0.3),  # 0.3 is 3/10, not the binary fraction below it
        *(("35%", "0.34719", 0.01, 0.3), ("35", "0.34719", 0.01, -1.0), ("-0.345", "0.34719", 0.01, -1.0)),
        *(("yes", "yes", 0.01, 1.0), ("no", "yes", 0.01, -1.0), ("1", "yes", 0.01, -1.0), ("0", "no", 0.01, -1.0)),
        ("yes", "1.0", 0.01, -1.0),
    ],
)
def test_finqa_pays_for_numbers_within_its_tolerance(said: str, gold: str, tolerance: float, value: float) -> None:
    part = FinqaNumeric(relative_tolerance=tolerance, approximate_credit=0.3, wrong_value=-1.0, invalid_value=-2.0)
    assert grade(part, attempt(solved(said), gold)).value == value


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("0.34719", ["0.34719", "34.72%", "34.7%", "0.347", "347e-3"], ["34.8%", "34.71%", "0.348", "35%", "0.35"]),
        ("0.34719", [], ["-34.7%", "34.7"]),
        ("0.00938", ["0.938%"], ["0.9%", "0.94%", "0.0094", "0.00940"]),
        *(("1234.6", ["1235", "1.23e3"], ["1230"]), ("93.5", ["93.5%"], ["94"]), ("0.93491", ["93.5%"], [])),
        *(("12.04", ["12.0 million"], []), ("12.06", [], ["12.0 million"]), ("12040000", ["12.0 million"], [])),
        *(("0.0004", [], ["0.000"]), ("0", ["0.00"], []), ("0.33333", ["1/3"], []), ("0.333", [], ["1/3"])),
    ],
)
def test_pitfall_28_finqa_takes_a_gold_rounded_to_3_digits(gold: str, right: list[str], wrong: list[str]) -> None:
    for said in (*right, *wrong):
        assert grade(STRICT, attempt(said, gold), WHOLE).value == float(said in right), said
        assert graded_answer(FinqaMetric(), attempt(said, gold), WHOLE).correct == (said in right), said


def test_numbers_do_not_go_with_programs() -> None:
    for kind in ("number", "text"):
        FinqaNumeric().check_run(run(answer_kind=kind))
    with pytest.raises(ConfigError, match=r"finqa_numeric scores tasks whose answers .*; use finqa_program\."):
        FinqaNumeric().check_run(run(answer_kind="program"))
    with pytest.raises(ConfigError, match=r"prompt.answer_in=hash: .* type number_check, .* set prompt.answer_in=solu"):
        NumberCheck().check_run(run("hash"))


@pytest.mark.parametrize("gold", ["banana", "", "nan", "18 or 19", "x"])
@pytest.mark.parametrize("part", [Numeric, NumberCheck, FinqaNumeric])
def test_pitfall_28_an_unreadable_gold_matches_nothing(part: Any, gold: str) -> None:
    for said in (gold, "18", "", "0"):
        found = grade(part(), attempt(said, gold), WHOLE)
        assert failed(found, f"the gold answer {gold!r} of example 'e1' is neither a number nor yes or no")


@settings(deadline=None)
@given(st.text(max_size=30), st.sampled_from(["18", "-3", "yes", "0", "0.12"]), st.sampled_from(sorted(FORMATS)))
def test_no_answer_crashes_a_part(said: str, gold: str, answer_in: str) -> None:
    for text in (said, solved(said), f"\\boxed{{{said}}}", f"#### {said}"):
        numeric, check, finqa = (
            grade(part(), attempt(text, gold), FORMATS[answer_in]) for part in (Numeric, NumberCheck, FinqaNumeric)
        )
        assert {numeric.status, check.status, finqa.status} <= {"scored", "invalid"}
        assert check.value <= numeric.value <= finqa.value  # the check is the strictest, FinQA the most lenient


def finqa_rows() -> list[dict[str, Any]]:
    folder = data_folder() / "finqa"
    return [row for name in ("train", "dev", "test") for row in read_gzip(folder / f"{name}.json.gz")]


@pytest.mark.slow
def test_pitfall_28_of_gsm8k_every_gold_is_right_until_perturbed() -> None:
    part, check, metric = Numeric(), NumberCheck(), NumericMetric()
    folder = data_folder() / "gsm8k"
    rows = [row for name in ("train", "test") for row in read_gzip(folder / f"{name}.jsonl.gz")]
    assert len(rows) == 7473 + 923
    for row in rows:
        gold = row["answer"].rpartition("####")[2].strip()
        assert graded_answer(metric, attempt(solved(gold), gold)).correct, gold
        assert not graded_answer(metric, attempt(solved(f"{gold}1"), gold)).correct, gold
        plain = gold.replace(",", "")
        for said in (gold, plain, f"${gold}", f"{plain}.0", f"{gold} eggs"):
            assert grade(part, attempt(solved(said), gold)).value == 1.0, (said, gold)
        wrong = [f"{plain}1", str(int(plain) + 1), f"{plain}.5", f"{plain} or 7", ""]
        wrong += [str(-int(plain))] if int(plain) else []
        for said in wrong:
            assert grade(part, attempt(solved(said), gold)).value == 0.0, (said, gold)
            assert grade(check, attempt(solved(said), gold)).value == 0.0, (said, gold)


@pytest.mark.slow
def test_pitfall_28_of_finqa_every_gold_is_right_until_perturbed() -> None:
    part, metric = FinqaNumeric(relative_tolerance=1e-9), FinqaMetric()
    golds = [row["qa"]["exe_ans"] for row in finqa_rows()]
    assert len(golds) == 100 + 883 + 801
    for gold in golds:
        if gold in ("yes", "no"):
            right, wrong = [gold, f"{gold}."], ["no" if gold == "yes" else "yes", "1", "0", "banana"]
        else:
            right = [str(gold), f"{gold:.5f}", f"{gold:,.5f}", f"${gold:.5f}", f"{gold * 100:.3f}%"]
            wrong = [f"{gold + 0.01 * abs(gold) + 0.001:.5f}", f"{gold:.5f}1 or 2", "yes", "banana"]
            wrong += [f"{-gold:.5f}"] if gold else []
        for said in right:
            assert grade(part, attempt(solved(said), str(gold))).value == 1.0, (said, gold)
            assert graded_answer(metric, attempt(solved(said), str(gold))).correct, (said, gold)
        for said in wrong:
            assert grade(part, attempt(solved(said), str(gold))).value == 0.0, (said, gold)
            assert not graded_answer(metric, attempt(solved(said), str(gold))).correct, (said, gold)


@pytest.mark.parametrize(
    ("said", "gold", "same"),
    [
        ("0.00002", "0.000015", True),
        ("0.000025", "0.000015", True),  # two halves, of which both are rounded to the even 0.00002
        ("0.000026", "0.000015", False),
        ("0.347194", "0.34719", True),
        ("0.347196", "0.34719", False),
        ("0.347", "0.34719", True),
        ("0.348", "0.34719", False),
        ("0.35", "0.34719", False),  # of two digits
        ("34.7%", "0.34719", True),
        ("35%", "0.34719", False),
        ("347", "347.4", True),
        ("347", "347.5", True),  # half of the last digit
        ("347", "347.51", False),
        ("99", "99.4", False),
        ("100", "100.4", True),
    ],
)
def test_finqas_match_is_one_of_five_decimals_or_of_three_digits(said: str, gold: str, same: bool) -> None:
    one, other = parse_answer(said), parse_answer(gold)
    assert one is not None
    assert other is not None
    assert same_in_finqa(one, other) == same
