import json
import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.envs.tools import make_tool
from rlvr.errors import ConfigError
from rlvr.rewards.base import Grade, Part
from rlvr.rewards.completion import as_ids, find_completion, read_completion
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.multihop import (
    Citation,
    Combined,
    CompletionForm,
    Hops,
    MultiHopAnswer,
    MultiHopVerifier,
    QaState,
    Retrieval,
    answer_scores,
    official_scores,
    with_digits,
)
from rlvr.rewards.official.text import normalize_answer
from rlvr.rewards.parts import PartsVerifier
from rlvr.tasks.multihop import OfficialAnswer, complete
from rlvr.types import Attempt, Score, ToolCall
from tests.unit.rewards import attempts
from tests.unit.rewards.attempts import JSON, finished, grade, graded_answer, run
from tests.unit.rewards.official.rows import FIXTURE, data_folder, read_rows

FORM = AnswerFormat(answer_in="complete")


def state(*retrieved: str, support: tuple[str, ...] = ("3", "12"), hops: int = 2, rules: Any = "musique") -> QaState:
    known = {"support": dict(zip(support, support, strict=True)), "num_support": len(support), "scope": "paragraphs"}
    return QaState(**known, hops=hops, rules=rules, retrieved=dict.fromkeys(retrieved))


def attempt(
    arguments: dict[str, Any] | None, *, gold: str = "Oslo", aliases: tuple[str, ...] = (), notes: QaState | None = None
) -> Attempt:
    """An episode that ended with these arguments of `complete`; None: with words."""
    calls = () if arguments is None else (ToolCall(id="c", name="complete", arguments=arguments),)
    return replace(attempts.attempt("", gold, aliases=aliases), calls=calls, state=notes or state())


def said(text: Any, *cited: str) -> dict[str, Any]:
    return {"reasoning": "So.", "final_answer": text, "cited_doc_ids": list(cited)}


def graded(part: Part, made: Attempt) -> Grade:
    return grade(part, made, FORM)


@pytest.mark.parametrize("rules", ["musique", "hotpotqa"])
def test_pitfall_28_metric_and_parts_agree_with_official_rows(rules: Any) -> None:
    file = data_folder() / "scoring_vectors.jsonl" if "RLVR_DATA" in os.environ else FIXTURE
    rows = [row for row in read_rows(file) if row["task"] == f"{rules}_answer"]
    assert rows
    for row in rows:
        golds = row["golds"] if isinstance(row["golds"], list) else [row["golds"]]
        made = attempt(said(row["prediction"]), gold=golds[0], aliases=tuple(golds[1:]), notes=state(rules=rules))
        scores = official_scores(rules, row["prediction"], golds)
        assert (round(scores.em, 6), round(scores.f1, 6)) == (row["expected"]["em"], row["expected"]["f1"]), row["vid"]
        assert graded_answer(OfficialAnswer(rules=rules), made, FORM).correct == (row["expected"]["em"] == 1)
        for metric in ("em", "f1"):
            part = MultiHopAnswer(metric=metric, number_words=False)  # type: ignore[arg-type]
            paid = row["expected"][metric] if normalize_answer(row["prediction"]) else 0.0
            assert round(graded(part, made).value, 6) == paid, row["vid"]


def test_pitfall_28_an_answer_that_normalizes_to_nothing_earns_0() -> None:
    for text in ("", " ", "the", "?!", "a, the."):
        made = attempt(said(text), gold="The")
        assert official_scores("musique", text, ["The"]) == (1.0, 1.0)
        for metric in ("em", "f1"):
            assert graded(MultiHopAnswer(metric=metric), made).value == 0.0  # type: ignore[arg-type]
        for formula in ("spec", "later"):
            part = Combined(formula=formula)  # type: ignore[arg-type]
            assert graded(part, attempt(said(text, "3", "12"), gold="The")).value < 0.4
        assert graded_answer(OfficialAnswer(rules="musique"), made, FORM).correct  # the official scorer keeps its rule


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        *(("Two of the First", "2 of the 1st"), ("second third fourth", "2nd 3rd 4th"), ("twenty-one", "twenty-1")),
        *(("TEN and tenth and zero", "10 and 10th and 0"), ("30 seconds", "30 seconds")),
        ("someone, tennis, weight", "someone, tennis, weight"),
    ],
)
def test_pitfall_28_number_words_are_whole_words(text: str, digits: str) -> None:
    assert with_digits(text) == digits


@pytest.mark.parametrize("rules", ["musique", "hotpotqa"])
def test_number_words_count_in_em_and_f1(rules: Any) -> None:
    found = [answer_scores(rules, "two big dogs", ["2 big cats"], number_words=which) for which in (False, True)]
    assert [scores.f1 for scores in found] == pytest.approx([1 / 3, 2 / 3])
    found = [answer_scores(rules, "two dogs", ["2 dogs"], number_words=which) for which in (False, True)]
    assert [scores.em for scores in found] == [0.0, 1.0]


@given(st.text(max_size=40), st.lists(st.text(max_size=40), min_size=1, max_size=3))
def test_leniency_never_takes_anything_away(text: str, golds: list[str]) -> None:
    for rules in ("musique", "hotpotqa"):
        strict = answer_scores(rules, text, golds, number_words=False)
        lenient = answer_scores(rules, text, golds, number_words=True)
        assert 0 <= strict.em <= lenient.em <= 1
        assert 0 <= strict.f1 <= lenient.f1 <= 1


@pytest.mark.parametrize(
    ("weight", "values"), [("none", (1.0, 1.0, 1.0)), ("capped", (0.5, 1.0, 1.0)), ("linear", (0.5, 1.0, 2.0))]
)
def test_hop_weights(weight: Any, values: tuple[float, ...]) -> None:
    part = MultiHopAnswer(hop_weight=weight)
    assert tuple(graded(part, attempt(said("Oslo"), notes=state(hops=hops))).value for hops in (1, 2, 4)) == values


@pytest.mark.parametrize(
    ("ids", "shares"),
    [
        *(((), (0.0, 0.0, 0.0)), (("5",), (0.0, 0.0, 0.0)), (("1", "2"), (0.0, 0.0, 0.0))),
        *((("3",), (0.5, 1.0, 2 / 3)), (("3", "12"), (1.0, 1.0, 1.0)), (("3", "5", "7"), (0.5, 1 / 3, 0.4))),
        *((("3", "12", "99"), (1.0, 2 / 3, 0.8)), (("3", "3", "3"), (0.5, 1.0, 2 / 3))),
    ],
)
def test_recall_precision_and_f1(ids: tuple[str, ...], shares: tuple[float, ...]) -> None:
    for metric, value in zip(("recall", "precision", "f1"), shares, strict=True):
        found = graded(Retrieval(metric=metric), attempt(None, notes=state(*ids)))  # type: ignore[arg-type]
        cited = graded(Citation(metric=metric), attempt(said("x", *ids)))  # type: ignore[arg-type]
        assert found.value == cited.value == pytest.approx(value)
        assert (found.status, cited.status) == ("scored", "scored")


def test_recall_counts_facts_and_precision_documents() -> None:
    """In a corpus two passages may hold the same fact: finding both is no more recall, and no less precision."""
    notes = replace(state(), support={"3": "born", "33": "born", "12": "died"}, num_support=2)
    assert notes.shares(["3", "33"]) == pytest.approx((0.5, 1.0, 2 / 3))
    assert notes.shares(["3", "33", "12", "7"]) == pytest.approx((1.0, 0.75, 6 / 7))


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_pitfall_28_the_formulas_are_those_of_the_projects(hops: int) -> None:
    notes = state("3", "5", "7", support=("3", "12"), hops=hops)
    made = attempt({"final_answer": "Oslo city", "cited_doc_ids": ["3", "12", "9"]}, notes=notes)
    em, f1, recall, precision, citation, form = 0.0, 2 / 3, 1 / 2, 1 / 3, 1.0, 2 / 3
    w = min(hops / 2, 1)
    spec = (em * w + f1 * w) / 2 + 0.5 * recall
    later = (hops / 2) * (0.9 * em + 1.0 * f1 + 1.0 * recall + 0.4 * precision + 0.6 * citation + 0.1 * form) / 4.0
    assert graded(Combined(formula="spec"), made).value == pytest.approx(spec)
    assert graded(Combined(formula="later"), made).value == pytest.approx(later)


USUAL: dict[str, Part] = {  # the reward of task=musique
    "em": MultiHopAnswer(metric="em", weight=0.5),
    "f1": MultiHopAnswer(metric="f1", weight=0.5),
    "citation": Citation(metric="f1", weight=0.3),
    "retrieval": Retrieval(metric="f1", weight=0.2),
    "format": CompletionForm(weight=0.1),
    "combined": Combined(formula="later", weight=0.0),
}


def rewarded(made: Attempt, **parts: Part) -> Score:
    return finished(MultiHopVerifier(PartsVerifier(parts or USUAL, FORM), FORM).verify(made))


ALL = tuple(str(number) for number in range(20))


def test_pitfall_28_finding_or_citing_everything_earns_less() -> None:
    honest = attempt(said("Oslo", "3", "12"), notes=state("3", "5", "12", "7"))
    strategies = {
        "cites all": attempt(said("Oslo", *ALL), notes=state("3", "5", "12", "7")),
        "fetches all": attempt(said("Oslo", "3", "12"), notes=state(*ALL)),
        "both": attempt(said("Oslo", *ALL), notes=state(*ALL)),
        "cites what does not exist": attempt(said("Oslo", "3", "12", "99", "98"), notes=state("3", "5", "12", "7")),
        "fetches and answers nothing": attempt(None, notes=state(*ALL)),
        "cites and answers nothing": attempt(said("", *ALL), notes=state(*ALL)),
    }
    paid = {name: rewarded(made).value for name, made in strategies.items()}
    value = rewarded(honest).value
    assert all(other < value - 0.05 for other in paid.values()), (value, paid)
    assert paid["both"] < value - 0.3
    assert paid["fetches and answers nothing"] < 0.1
    # one more honest search is not punished as hard as missing what it could find
    missed = attempt(said("Oslo", "3"), notes=state("3", "5"))
    assert rewarded(missed).value < value
    # and the formula of the specification does pay for fetching everything
    spec = Combined(formula="spec")
    assert rewarded(strategies["fetches all"], spec=spec).value == rewarded(honest, spec=spec).value == 1.5


def test_weights_move_the_value_and_no_diagnostic() -> None:
    made = attempt(said("Oslo", "3"), notes=state("3", "5"))
    usual = rewarded(made)
    heavier = rewarded(made, **(USUAL | {"citation": Citation(metric="f1", weight=5.3)}))
    assert heavier.value == pytest.approx(usual.value + 5.0 * usual.parts["citation"])
    assert heavier.diagnostics == usual.diagnostics


def test_the_parts_score_tasks_with_documents() -> None:
    for part in (*USUAL.values(), Hops()):
        part.check_run(run("complete", has_documents=True))
        with pytest.raises(ConfigError, match=f"type {part.name} scores tasks with documents .* not task=mine; use te"):
            part.check_run(run())


def test_a_perfect_episode_is_worth_the_sum_of_the_weights() -> None:
    perfect = rewarded(attempt(said("Oslo", "3", "12"), notes=state("3", "12")))
    assert perfect.value == pytest.approx(1.6)
    assert perfect.status == "scored"
    assert perfect.diagnostics == {
        "hops": 2.0,
        "answer_em": 1.0,
        "answer_f1": 1.0,
        **{f"{kind}_{metric}": 1.0 for kind in ("citation", "paragraphs") for metric in ("recall", "precision", "f1")},
    }


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        *((["3", "12"], ["3", "12"]), ([3, 12.0], ["3", "12"]), ("12", ["12"]), ("3, 12 ,", ["3", "12"])),
        *(('["3", 12]', ["3", "12"]), ("[3", ["[3"]), (12, ["12"]), ([], []), ("", []), ([" m7 "], ["m7"])),
    ],
)
def test_ids_as_models_write_them(value: Any, ids: list[str]) -> None:
    assert as_ids(value) == ids


def test_the_first_readable_completion_counts_and_ids_once() -> None:
    calls = [
        ToolCall(id="0", name="complete", arguments={"final_answer": None}),
        ToolCall(id="1", name="complete", arguments={"final_answer": "malformed"}, problem="no JSON"),
        ToolCall(id="2", name="Complete", arguments={"final_answer": "another tool"}),
        ToolCall(id="3", name="complete", arguments=said("right", "3", "3", "12")),
        ToolCall(id="4", name="complete", arguments=said("late")),
    ]
    found = find_completion(calls)
    assert found is not None
    assert (found.answer, found.cited) == ("right", ("3", "12"))
    assert find_completion(calls[:3]) is None


NAMES = st.sampled_from(["reasoning", "final_answer", "cited_doc_ids", "more"])
COMPLETE = make_tool(complete, timeout_s=1.0, inline=True, final=True)


@given(st.dictionaries(NAMES, JSON, max_size=4))
def test_the_tool_accepts_exactly_what_the_rewards_can_read(arguments: dict[str, Any]) -> None:
    try:
        json.dumps(arguments, allow_nan=False)
    except ValueError:
        return  # no JSON can say it
    result = finished(COMPLETE.call(arguments, None))
    assert (result.failure is None) == (read_completion(arguments) is not None), result.text
