"""Computes the metrics of docs/metrics.md from graded episodes, with 95 % intervals."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlvr.evaluation.intervals import Interval, bootstrap, wilson
from rlvr.records.graded import EvaluationRecord
from rlvr.rewards.text import normalize
from rlvr.tracking.rollout_metrics import facts, tool_metrics
from rlvr.types import StopReason


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationResult:
    """`metrics`: `{"eval/rpn/accuracy": 0.95, "eval/rpn/accuracy_low": 0.93, "eval/rpn/accuracy_high": 0.97, ...}`."""

    metrics: Mapping[str, float]
    records: tuple[EvaluationRecord, ...]


def samples_by_example(records: Sequence[EvaluationRecord]) -> dict[str, list[EvaluationRecord]]:
    """The sampled (not greedy) records of each example."""
    samples: dict[str, list[EvaluationRecord]] = {}
    for record in records:
        if record.sample_index > 0:
            samples.setdefault(record.example_id, []).append(record)
    return samples


def graded_samples(records: Sequence[EvaluationRecord]) -> dict[str, list[EvaluationRecord]]:
    """`samples_by_example` of the examples with all samples graded."""
    samples = samples_by_example(records)
    return {example: of_one for example, of_one in samples.items() if all(one.failure is None for one in of_one)}


def graded_greedily(records: Sequence[EvaluationRecord]) -> dict[str, EvaluationRecord]:
    """The graded greedy records, by example."""
    return {one.example_id: one for one in records if one.sample_index == 0 and one.failure is None}


SCORE = re.compile(r".+_(?:em|f1|recall|precision)|hop_answers|evidence")
"""Verifier facts that are scores: reported with intervals and paired differences."""

Measured = dict[tuple[str, str], Interval | float]
"""Values by name and tag: `("accuracy", "")` for all examples, `("accuracy", "2_hops")` for those with the tag."""


def summarize(task_name: str, records: Sequence[EvaluationRecord]) -> dict[str, float]:
    """All metrics of an evaluation by name; see `measure`."""
    metrics: dict[str, float] = {}
    for (name, tag), value in measure(records).items():
        metrics |= _named(f"eval/{task_name}/{name}_{tag}" if tag else f"eval/{task_name}/{name}", value)
    return metrics


def _named(name: str, value: Interval | float) -> dict[str, float]:
    if isinstance(value, Interval):
        return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
    return {name: value}


def measure(records: Sequence[EvaluationRecord]) -> Measured:
    """All metrics of an evaluation.

    Ungraded completions count in `error_share` only: an ungraded greedy one is excluded from all other metrics, an
    ungraded sample excludes its example from the sampled ones. Without a graded greedy completion, or sample, the
    metrics of that kind are missing.
    """
    greedy = [record for record in records if record.sample_index == 0]
    graded = [record for record in greedy if record.failure is None]
    measures: Measured = {("num_examples", ""): float(len(graded))}
    if graded:
        measures |= _greedy(graded)
    if greedy:
        failed = [record.failure is not None or math.isnan(record.reward) for record in greedy]
        measures["error_share", ""] = _mean(failed)
    if complete := graded_samples(records):
        measures |= {(name, ""): value for name, value in _sampled(list(complete.values())).items()}
    return measures


def _greedy(graded: Sequence[EvaluationRecord]) -> Measured:
    """Accuracy, behavior, parts and facts, overall and by tag."""
    tags = sorted({tag for record in graded for tag in record.tags})
    tagged = {"": graded} | {tag: [record for record in graded if tag in record.tags] for tag in tags}
    measures: Measured = {}
    for tag, records in tagged.items():
        measures["accuracy", tag] = wilson(sum(record.correct for record in records), len(records))
    numbers = {
        "invalid_share": _mean([record.answer is None for record in graded]),
        "truncated_share": _mean([record.stop_reason == StopReason.LENGTH for record in graded]),
        "completion_tokens_mean": _mean([record.num_completion_tokens for record in graded]),
    }
    rewards = [record.reward for record in graded if not math.isnan(record.reward)]
    if rewards:
        numbers["reward"] = _mean(rewards)
    tools = tool_metrics([record.diagnostics for record in graded], [record.stop_reason for record in graded])
    for tag, records in tagged.items():
        numbers |= {f"part_{name}": _mean(values) for name, values in _parts(records).items()}
        numbers |= tools | facts([record.diagnostics for record in records])
        measures |= {(name, tag): value for name, value in numbers.items()}
        if not tag:
            values = {name: fact_values(graded, name) for name in numbers if SCORE.fullmatch(name)}
            measures |= {(name, ""): bootstrap(of_all) for name, of_all in values.items() if of_all}
        numbers, tools = {}, {}  # only for all examples, without tag
    return measures


def _sampled(samples: Sequence[Sequence[EvaluationRecord]]) -> dict[str, Interval | float]:
    """avg@k (`sampled_accuracy`), pass@2, 4, ... and maj@k; `samples` holds the k records of each example."""
    size = len(samples[0])
    correct = [sum(record.correct for record in of_one) for of_one in samples]
    per_example = {"sampled_accuracy": [c / size for c in correct]}
    for name in _parts([record for of_one in samples for record in of_one]):
        per_example[f"sampled_part_{name}"] = [_mean(values) for one in samples if (values := _parts(one).get(name))]
    for k in powers_of_two(size)[1:]:  # pass@1 is sampled_accuracy
        per_example[f"pass_at_{k}"] = [pass_at_k(size, c, k) for c in correct]
    if size > 1:
        ballots = [([r.answer for r in of_one], [r.correct for r in of_one]) for of_one in samples]
        per_example[f"maj_at_{size}"] = [majority_vote(*ballot) for ballot in ballots]
        f1 = [fact_values(of_one, "answer_f1") for of_one in samples]
        if all(len(values) == size for values in f1):
            votes = [majority_vote(*ballot, worth) for ballot, worth in zip(ballots, f1, strict=True)]
            per_example[f"maj_answer_f1_at_{size}"] = votes
    scores = {name: bootstrap(values) for name, values in per_example.items()}
    return scores | {"samples_per_example": float(size)}


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate of the probability that at least one of k samples is correct, arXiv:2107.03374 equation 1.

    1 - C(n - c, k) / C(n, k): the share of k-subsets of the n samples with a correct one. Averaging 1 - (1 - c/n)^k
    instead is biased downward. ValueError for k > n or impossible counts.
    """
    if not 0 <= num_correct <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} is undefined for {num_correct} right ones of {num_samples} samples")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def majority_vote(
    answers: Sequence[str | None], correct: Sequence[bool], worth: Sequence[float] | None = None
) -> float:
    """1.0 if the most frequent answer is correct, averaged over ties: 0.5 when a right and a wrong one tie.

    Answers with the same normalized text and grade count together: `The Beatles` and `beatles.` are one. An answer of
    None (not parsed) has no vote; without votes the result is 0. With `worth`, the mean worth (e.g. F1) of the winning
    votes.
    """
    classes: dict[tuple[str, bool], list[float]] = {}
    for answer, is_right, value in zip(answers, correct, correct if worth is None else worth, strict=True):
        if answer is not None:
            classes.setdefault((normalize(answer), is_right), []).append(value)
    if not classes:
        return 0.0
    most = max(map(len, classes.values()))
    return _mean([_mean(values) for values in classes.values() if len(values) == most])


def powers_of_two(limit: int) -> list[int]:
    """`powers_of_two(10) == [1, 2, 4, 8]`: the k of reported pass@k."""
    return [1 << i for i in range(limit.bit_length()) if 1 << i <= limit]


def fact_values(records: Iterable[EvaluationRecord], name: str) -> list[float]:
    values = (record.diagnostics.get(name) for record in records)
    return [float(value) for value in values if isinstance(value, int | float)]


def _parts(records: Sequence[EvaluationRecord]) -> dict[str, list[float]]:
    """The values of each reward part by name, where the verifier gave one."""
    names = sorted({name for record in records for name in record.parts})
    return {name: [record.parts[name] for record in records if name in record.parts] for name in names}


def combine(task_name: str, parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The headline of several tasks: the unweighted mean of their accuracies.

    The tasks are independent, so the half-width of the interval is the root of the summed squares of theirs, over n.
    """
    measures = [{name.rpartition("/")[2]: value for name, value in part.items()} for part in parts]
    mean = _mean([part["accuracy"] for part in measures])
    below = math.hypot(*(part["accuracy"] - part["accuracy_low"] for part in measures)) / len(measures)
    above = math.hypot(*(part["accuracy_high"] - part["accuracy"] for part in measures)) / len(measures)
    interval = Interval(value=mean, low=max(0.0, mean - below), high=min(1.0, mean + above))
    num = sum(part["num_examples"] for part in measures)
    return {f"eval/{task_name}/num_examples": num} | _named(f"eval/{task_name}/accuracy", interval)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
