from collections.abc import Sequence
from dataclasses import replace

import pytest
from scipy import stats

from rlvr.evaluation.compare import Comparison, compare
from rlvr.evaluation.intervals import Interval
from rlvr.records.graded import EvaluationRecord
from tests.unit.evaluation.records import greedy, record


def compared(first: Sequence[EvaluationRecord], second: Sequence[EvaluationRecord]) -> Comparison:
    found = compare(first, second, names=("a", "b"))
    assert found is not None
    return found


def test_pitfall_38_models_are_compared_on_common_examples() -> None:
    first = greedy([1, 1, 0, 0, 1])
    second = greedy([0, 1, 1, 1, 0, 1, 1], model="b")  # e5 and e6 were never asked of a
    second[4] = replace(second[4], failure="timed out")  # and e4 could not be graded
    found = compared(first, second)
    assert (found.num_common, found.only_first, found.only_second) == (4, ("e0",), ("e2", "e3"))
    assert found.difference.value == pytest.approx(3 / 4 - 2 / 4)
    assert found.p_value == pytest.approx(stats.binomtest(1, 3).pvalue)
    disagreeing = [(one.example_id, one.correct, two.correct) for one, two in found.disagreeing]
    assert disagreeing == [("e0", True, False), ("e2", False, True), ("e3", False, True)]


def test_pitfall_38_an_example_with_another_gold_is_another() -> None:
    first, second = greedy([1, 1, 0]), greedy([1, 0, 1], model="b")
    second[1] = replace(second[1], expected="9")
    found = compared(first, second)
    assert (found.num_common, found.num_changed, found.only_first) == (2, 1, ())


def test_a_comparison_is_the_only_one_of_examples_that_did_not_change_unless_it_says_otherwise() -> None:
    ends = Interval(value=0.0, low=0.0, high=0.0)
    names = {"task": "rpn", "split": "test", "first": "a", "second": "b"}
    found = Comparison(**names, num_common=1, difference=ends, only_first=(), only_second=(), p_value=1.0)
    assert (found.num_comparisons, found.num_changed, found.sampled, dict(found.scores)) == (1, 0, None, {})
    assert not found.is_real  # without an adjusted p-value


def test_samples_are_compared_by_their_means_over_examples() -> None:
    first = greedy([0, 0]) + [record(f"e{n}", right, sample=s) for n, s, right in [(0, 1, True), (0, 2, False)]]
    second = greedy([0, 0], model="b") + [record("e0", True, sample=s, model="b") for s in (1, 2, 3)]
    found = compared(first, second)
    assert found.sampled is not None
    assert found.sampled.value == pytest.approx(1.0 - 0.5)
    assert compared(greedy([0]), second).sampled is None


def test_equal_accuracies_do_not_hide_a_difference_in_f1() -> None:
    def of(model: str, f1: float) -> list[EvaluationRecord]:
        facts = {"answer_f1": f1, "corpus_recall": 0.5, "corpus_precision": 0.5, "hops": 2.0}
        return greedy([0] * 40, model=model, diagnostics=facts)

    second = of("b", 0.8)
    second[0] = replace(second[0], diagnostics={"error": "the verifier failed"})
    found = compared(of("a", 0.1), second)
    scores = {name: round(one.value, 6) for name, one in found.scores.items()}
    assert scores == {"answer_f1": 0.7, "corpus_recall": 0.0, "corpus_precision": 0.0}
    assert "on 40 common examples; answer f1 +70.0 points (+61.0 to +79.0); corpus recall +0.0" in found.sentence
    assert "precision" not in found.sentence


def said(value: float, p_value: float, *, adjusted: float | None = None, **values: object) -> str:
    ends = {"low": value - 0.02, "high": value + 0.03}
    found = Comparison(
        task="rpn",
        split="test",
        first="a",
        second="b",
        num_common=500,
        difference=Interval(value=value, **ends),
        only_first=("e1",),
        only_second=("e2",),
        p_value=p_value,
        adjusted_p_value=p_value if adjusted is None else adjusted,
        num_comparisons=1 if adjusted is None else 3,
    )
    return replace(found, **values).sentence  # type: ignore[arg-type]


def test_the_sentence_names_the_better_one_first_whichever_it_is() -> None:
    assert said(0.032, 0.03) == (
        "b is better than a on rpn by 3.2 points (1.2 to 6.2), McNemar p = 0.03, on 500 common examples."
    )
    assert said(-0.032, 0.0001) == (
        "a is better than b on rpn by 3.2 points (0.2 to 5.2), McNemar p < 0.001, on 500 common examples."
    )
    sampled = Interval(value=-0.05, low=-0.07, high=-0.01)
    assert said(-0.032, 0.01, sampled=sampled).endswith("; sampled +5.0 points (+1.0 to +7.0).")


@pytest.mark.parametrize(
    ("p_value", "text"),
    [(0.00099, "< 0.001"), (0.001, "= 0.001"), (0.0994, "= 0.099"), (0.1, "= 0.10"), (1.0, "= 1.00")],
)
def test_a_p_value_is_written_with_the_digits_that_matter(p_value: float, text: str) -> None:
    assert f"McNemar p {text}, on 500" in said(0.032, p_value)


def test_pitfall_38_no_winner_is_named_where_chance_explains_it() -> None:
    assert said(0.012, 0.4, split="train") == (
        "b against a on rpn (train): no difference in accuracy that chance would not explain, +1.2 points "
        "(-0.8 to +4.2), McNemar p = 0.40, on 500 common examples."
    )
    assert "better" not in said(0.032, 0.03, adjusted=0.09)
    assert "McNemar p = 0.03 (0.09 corrected for 3)" in said(0.032, 0.03, adjusted=0.09)


def test_pitfall_26_samples_that_failed_are_not_compared() -> None:
    first = greedy([0, 0, 0]) + [record(f"e{n}", False, sample=1) for n in range(3)]
    second = greedy([0, 0, 0], model="b") + [record(f"e{n}", True, sample=1, model="b") for n in range(3)]
    second[1] = replace(second[1], expected="9")
    second[4] = replace(second[4], expected="9", correct=False)
    second[5] = replace(second[5], failure="timed out", correct=False)
    found = compared(first, second)
    assert found.sampled is not None
    assert found.sampled.value == 1.0  # of e0 alone
