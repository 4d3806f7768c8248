import itertools
import math
from dataclasses import replace

import pytest

from rlvr.evaluation.summary import combine, majority_vote, pass_at_k, summarize
from rlvr.records.graded import EvaluationRecord
from rlvr.tracking.signals import undocumented
from rlvr.types import StopReason
from tests.unit.evaluation import records as shared


def record(example: str, sample: int, parts: dict[str, float], *, correct: bool = False) -> EvaluationRecord:
    return shared.record(example, correct, sample=sample, parts=parts, reward=0.0, num_completion_tokens=1)


def metrics_of(*records: EvaluationRecord) -> dict[str, float]:
    """Without `eval/musique/`; all documented."""
    metrics = summarize("musique", records)
    assert undocumented(metrics) == []
    return {name.removeprefix("eval/musique/"): value for name, value in metrics.items()}


def test_parts_of_the_reward_stand_beside_the_metric() -> None:
    parts = {("a", 0): 1.0, ("a", 1): 1.0, ("a", 2): 0.0, ("b", 0): 0.0, ("b", 1): 0.0}
    records = [record(*key, {"format": value}) for key, value in parts.items()]
    metrics = metrics_of(*records, record("b", 2, {}))  # its verifier failed
    assert metrics["part_format"] == 0.5
    assert metrics["sampled_part_format"] == pytest.approx((0.5 + 0.0) / 2)
    assert metrics["sampled_part_format_low"] <= 0.25 <= metrics["sampled_part_format_high"]
    assert metrics["accuracy"] == 0.0


def test_pitfall_38_an_answer_whose_reward_failed_still_counts() -> None:
    failed = replace(record("a", 0, {}, correct=True), reward=math.nan)
    metrics = metrics_of(failed, record("b", 0, {"format": 1.0}))
    assert metrics["num_examples"] == 2  # the metric is no part of the reward
    assert metrics["accuracy"] == 0.5
    assert metrics["error_share"] == 0.5
    assert metrics["reward"] == 0.0


def test_pitfall_26_a_failed_grade_is_neither_right_nor_wrong() -> None:
    failed = replace(record("a", 0, {"format": 1.0}), answer=None, failure="timed out after 1 s", reward=math.nan)
    graded = [record("b", 0, {"format": 0.0}, correct=True), record("c", 0, {}, correct=True)]
    metrics = metrics_of(failed, *graded)
    assert metrics["num_examples"] == 2
    assert metrics["accuracy"] == 1.0
    assert metrics["error_share"] == 1 / 3
    assert metrics["invalid_share"] == 0.0
    assert metrics["part_format"] == 0.0


def test_pitfall_26_a_failed_sample_leaves_its_example_out() -> None:
    greedy = [record("a", 0, {}), record("b", 0, {})]
    samples = [record(example, sample, {}, correct=example == "a") for example in "ab" for sample in (1, 2)]
    assert metrics_of(*greedy, *samples)["sampled_accuracy"] == 0.5
    samples[3] = replace(samples[3], failure="timed out after 1 s")
    assert metrics_of(*greedy, *samples)["sampled_accuracy"] == 1.0
    samples[0] = replace(samples[0], failure="timed out after 1 s")
    assert "sampled_accuracy" not in metrics_of(*greedy, *samples)


def test_pitfall_38_each_kind_of_example_has_its_numbers() -> None:
    def of(example: str, tag: str, part: float, em: float) -> EvaluationRecord:
        made = record(example, 0, {"citation": part})
        return replace(made, tags=(tag,), diagnostics={"answer_em": em, "note": "x"})

    records = [of("a", "2_hops", 1.0, 1.0), of("b", "2_hops", 0.0, 1.0), of("c", "4_hops", 0.25, 0.0)]
    metrics = metrics_of(*records)
    assert (metrics["part_citation_2_hops"], metrics["part_citation_4_hops"]) == (0.5, 0.25)
    assert (metrics["answer_em_2_hops"], metrics["answer_em_4_hops"]) == (1.0, 0.0)


def test_a_vote_by_f1_needs_that_of_every_sample() -> None:
    facts = {"answer_f1": 1.0}
    samples = [replace(record(example, n, {}, correct=True), diagnostics=facts) for example in "ab" for n in (1, 2)]
    greedy = [record("a", 0, {}), record("b", 0, {})]
    assert metrics_of(*greedy, *samples)["maj_answer_f1_at_2"] == 1.0
    samples[3] = replace(samples[3], diagnostics={"error": "the verifier failed"})
    assert "maj_answer_f1_at_2" not in metrics_of(*greedy, *samples)


def test_f1_and_recall_have_intervals() -> None:
    def of(example: str, sample: int, answer: str, f1: float) -> EvaluationRecord:
        facts = {"answer_f1": f1, "answer_em": float(f1 == 1), "corpus_recall": 0.5, "hops": 2.0, "hop_answers": 0.25}
        return replace(record(example, sample, {}, correct=f1 == 1), answer=answer, diagnostics=facts)

    greedy = [of("a", 0, "Paris", 1.0), of("b", 0, "Lyon", 0.5)]
    samples = [of("a", 1, "The Beatles", 1.0), of("a", 2, "beatles", 1.0), of("a", 3, "Queen", 0.0)]
    samples += [of("b", 1, "x", 0.4), of("b", 2, "y", 0.0), of("b", 3, "X.", 0.4)]
    metrics = metrics_of(*greedy, *samples)
    found = {"answer_f1": 0.75, "corpus_recall": 0.5, "hop_answers": 0.25, "maj_answer_f1_at_3": 0.7, "maj_at_3": 0.5}
    for name, value in found.items():
        assert metrics[name] == pytest.approx(value)
        assert metrics[f"{name}_low"] <= metrics[name] + 1e-9 <= metrics[f"{name}_high"] + 2e-9
    assert "hops_low" not in metrics


def test_pitfall_38_tool_calls_are_summed_up_as_in_training() -> None:
    diagnostics = {"turns": 3.0, "tool_calls": 4.0, "tool_errors": 1.0, "malformed_calls": 1.0}
    greedy = replace(record("a", 0, {}), diagnostics=diagnostics, stop_reason=StopReason.MAX_TURNS)
    sampled = replace(record("a", 1, {}), diagnostics={"turns": 9.0, "tool_calls": 9.0})
    metrics = metrics_of(greedy, sampled)
    assert metrics["turns_mean"] == 3.0
    assert metrics["tool_calls_mean"] == 4.0
    assert metrics["tool_error_share"] == metrics["malformed_call_share"] == 0.25
    assert metrics["max_turns_share"] == 1.0
    assert "tool_calls" not in metrics


def test_the_headline_of_several_tasks_counts_each_once() -> None:
    one = {"eval/a/accuracy": 0.5, "eval/a/accuracy_low": 0.2, "eval/a/accuracy_high": 0.8, "eval/a/num_examples": 10.0}
    two = {"eval/b/accuracy": 0.9, "eval/b/accuracy_low": 0.5, "eval/b/accuracy_high": 1.0, "eval/b/num_examples": 1.0}
    assert combine("mix", [one, two]) == {
        "eval/mix/num_examples": 11.0,
        "eval/mix/accuracy": 0.7,
        "eval/mix/accuracy_low": pytest.approx(0.7 - math.hypot(0.3, 0.4) / 2),
        "eval/mix/accuracy_high": pytest.approx(0.7 + math.hypot(0.3, 0.1) / 2),
    }


def test_pitfall_14_only_the_token_limit_truncates() -> None:
    records = [replace(record(str(n), 0, {}), stop_reason=reason) for n, reason in enumerate(StopReason)]
    assert metrics_of(*records)["truncated_share"] == 1 / len(StopReason)


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(n: int) -> None:
    for correct, k in itertools.product(range(n + 1), range(1, n + 1)):
        samples = [True] * correct + [False] * (n - correct)
        subsets = list(itertools.combinations(samples, k))
        assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_is_unbiased() -> None:
    """Over all outcomes of n draws with success p, its expectation is 1 - (1 - p)^k; the plug-in estimate is below."""
    n, k, p = 6, 3, 0.3
    expected = plug_in = 0.0
    for outcome in itertools.product([True, False], repeat=n):
        correct = sum(outcome)
        probability = p**correct * (1 - p) ** (n - correct)
        expected += probability * pass_at_k(n, correct, k)
        plug_in += probability * (1 - (1 - correct / n) ** k)
    assert expected == pytest.approx(1 - (1 - p) ** k, abs=1e-12)
    assert plug_in < expected - 0.02


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_pass_at_k_refuses_what_is_undefined(n: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"undefined|makes no sense"):
        pass_at_k(n, correct, k)


@pytest.mark.parametrize(
    ("answers", "correct", "expected"),
    [
        *((["7", "7", "3"], [1, 1, 0], 1.0), (["7", "3", "3"], [1, 0, 0], 0.0), (["7", "3"], [1, 0], 0.5)),
        *((["7", "3", "4"], [1, 0, 0], 1 / 3), ([None, None, "7"], [0, 0, 1], 1.0), ([None, None], [0, 0], 0.0)),
        (["The Beatles", "Beatles", "the Beatles.", "Queen", "Queen"], [1, 1, 1, 0, 0], 1.0),
        (["a", "A", "b"], [1, 0, 0], 1 / 3),  # a metric that tells them from each other
    ],
)
def test_majority_vote_by_hand(answers: list[str | None], correct: list[int], expected: float) -> None:
    assert majority_vote(answers, [bool(one) for one in correct]) == pytest.approx(expected)


def test_a_ballot_has_a_grade_for_each_answer() -> None:
    with pytest.raises(ValueError, match=r"longer|shorter"):
        majority_vote(["a", "b"], [True])
    with pytest.raises(ValueError, match=r"longer|shorter"):
        majority_vote(["a", "b"], [True, False], [0.5])
