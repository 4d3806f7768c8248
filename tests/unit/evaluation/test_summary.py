"""From graded episodes to numbers: the parts of the reward beside the metric, and several tasks together."""

import math
from dataclasses import replace

import pytest

from rlvr.evaluation.summary import combine, summarize
from rlvr.tracking.evaluations import EvaluationRecord
from rlvr.tracking.metrics import undocumented
from rlvr.types import StopReason
from tests.unit.evaluation import records as shared


def record(example: str, sample: int, parts: dict[str, float], *, correct: bool = False) -> EvaluationRecord:
    return shared.record(example, correct, sample=sample, parts=parts, reward=0.0, num_completion_tokens=1)


def test_parts_of_the_reward_stand_beside_the_metric_greedy_and_sampled() -> None:
    records = [
        record("a", 0, {"format": 1.0}),
        record("a", 1, {"format": 1.0}),
        record("a", 2, {"format": 0.0}),
        record("b", 0, {"format": 0.0}),
        record("b", 1, {"format": 0.0}),
        record("b", 2, {}),  # its verifier failed
    ]
    metrics = summarize("gsm8k", records)
    assert metrics["eval/gsm8k/part_format"] == 0.5
    assert metrics["eval/gsm8k/sampled_part_format"] == pytest.approx((0.5 + 0.0) / 2)
    assert metrics["eval/gsm8k/sampled_part_format_low"] <= 0.25 <= metrics["eval/gsm8k/sampled_part_format_high"]
    assert metrics["eval/gsm8k/accuracy"] == 0.0


def test_pitfall_38_an_answer_whose_reward_failed_still_counts() -> None:
    failed = replace(record("a", 0, {}, correct=True), reward=math.nan)
    metrics = summarize("gsm8k", [failed, record("b", 0, {"format": 1.0})])
    assert metrics["eval/gsm8k/num_examples"] == 2  # the metric is no part of the reward
    assert metrics["eval/gsm8k/accuracy"] == 0.5
    assert metrics["eval/gsm8k/error_share"] == 0.5
    assert metrics["eval/gsm8k/reward"] == 0.0


def test_pitfall_26_what_the_metric_failed_on_is_neither_right_nor_wrong() -> None:
    failed = replace(record("a", 0, {"format": 1.0}), answer=None, failure="timed out after 1 s", reward=math.nan)
    graded = [record("b", 0, {"format": 0.0}, correct=True), record("c", 0, {}, correct=True)]
    metrics = summarize("math", [failed, *graded])
    assert metrics["eval/math/num_examples"] == 2
    assert metrics["eval/math/accuracy"] == 1.0
    assert metrics["eval/math/error_share"] == 1 / 3
    assert metrics["eval/math/invalid_share"] == 0.0
    assert metrics["eval/math/part_format"] == 0.0


def test_pitfall_26_an_example_with_a_sample_that_failed_is_out_of_the_sampled_scores() -> None:
    greedy = [record("a", 0, {}), record("b", 0, {})]
    samples = [record(example, sample, {}, correct=example == "a") for example in "ab" for sample in (1, 2)]
    assert summarize("math", greedy + samples)["eval/math/sampled_accuracy"] == 0.5
    samples[3] = replace(samples[3], failure="timed out after 1 s")
    assert summarize("math", greedy + samples)["eval/math/sampled_accuracy"] == 1.0
    samples[0] = replace(samples[0], failure="timed out after 1 s")
    assert "eval/math/sampled_accuracy" not in summarize("math", greedy + samples)


def test_pitfall_38_parts_and_facts_are_told_for_each_kind_of_example() -> None:
    def of(example: str, tag: str, part: float, em: float) -> EvaluationRecord:
        made = record(example, 0, {"citation": part})
        return replace(made, tags=(tag,), diagnostics={"answer_em": em, "note": "x"})

    records = [of("a", "2_hops", 1.0, 1.0), of("b", "2_hops", 0.0, 1.0), of("c", "4_hops", 0.25, 0.0)]
    metrics = summarize("musique", records)
    assert (metrics["eval/musique/part_citation_2_hops"], metrics["eval/musique/part_citation_4_hops"]) == (0.5, 0.25)
    assert (metrics["eval/musique/answer_em_2_hops"], metrics["eval/musique/answer_em_4_hops"]) == (1.0, 0.0)
    assert undocumented(metrics) == []


def test_f1_and_recall_have_intervals_and_the_majority_answer_an_f1() -> None:
    def of(example: str, sample: int, answer: str, f1: float) -> EvaluationRecord:
        facts = {"answer_f1": f1, "answer_em": float(f1 == 1), "corpus_recall": 0.5, "hops": 2.0}
        return replace(record(example, sample, {}, correct=f1 == 1), answer=answer, diagnostics=facts)

    greedy = [of("a", 0, "Paris", 1.0), of("b", 0, "Lyon", 0.5)]
    samples = [of("a", 1, "The Beatles", 1.0), of("a", 2, "beatles", 1.0), of("a", 3, "Queen", 0.0)]
    samples += [of("b", 1, "x", 0.4), of("b", 2, "y", 0.0), of("b", 3, "X.", 0.4)]
    metrics = summarize("musique", greedy + samples)
    for name, value in {"answer_f1": 0.75, "corpus_recall": 0.5, "maj_answer_f1_at_3": 0.7, "maj_at_3": 0.5}.items():
        name = f"eval/musique/{name}"
        assert metrics[name] == pytest.approx(value)
        assert metrics[f"{name}_low"] <= metrics[name] + 1e-9 <= metrics[f"{name}_high"] + 2e-9
    assert "eval/musique/hops_low" not in metrics
    assert undocumented(metrics) == []


def test_pitfall_38_tool_calls_are_summed_up_as_in_training() -> None:
    diagnostics = {"turns": 3.0, "tool_calls": 4.0, "tool_errors": 1.0, "malformed_calls": 1.0}
    greedy = replace(record("a", 0, {}), diagnostics=diagnostics, stop_reason=StopReason.MAX_TURNS)
    sampled = replace(record("a", 1, {}), diagnostics={"turns": 9.0, "tool_calls": 9.0})
    metrics = summarize("musique", [greedy, sampled])
    assert metrics["eval/musique/turns_mean"] == 3.0
    assert metrics["eval/musique/tool_calls_mean"] == 4.0
    assert metrics["eval/musique/tool_error_share"] == metrics["eval/musique/malformed_call_share"] == 0.25
    assert metrics["eval/musique/max_turns_share"] == 1.0
    assert "eval/musique/tool_calls" not in metrics
    assert undocumented(metrics) == []


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
    assert summarize("rpn", records)["eval/rpn/truncated_share"] == 1 / len(StopReason)
