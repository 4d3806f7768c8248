"""From judged episodes to the metrics of docs/metrics.md, each with its 95 % interval."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlvr.core.metrics import facts, tool_metrics
from rlvr.evaluation.intervals import Interval, bootstrap, wilson
from rlvr.tracking.evaluations import EvaluationRecord
from rlvr.types import StopReason


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationResult:
    """`metrics`: `{"eval/rpn/accuracy": 0.95, "eval/rpn/accuracy_low": 0.93, "eval/rpn/accuracy_high": 0.97, ...}`."""

    metrics: Mapping[str, float]
    records: tuple[EvaluationRecord, ...]


def samples_by_example(records: Sequence[EvaluationRecord]) -> dict[str, list[EvaluationRecord]]:
    """The drawn samples, without the greedy one, of each example."""
    samples: dict[str, list[EvaluationRecord]] = {}
    for record in records:
        if record.sample_index > 0:
            samples.setdefault(record.example_id, []).append(record)
    return samples


def judged_samples(records: Sequence[EvaluationRecord]) -> dict[str, list[EvaluationRecord]]:
    """`samples_by_example` of the examples whose samples were all judged."""
    samples = samples_by_example(records)
    return {example: of_one for example, of_one in samples.items() if all(one.failure is None for one in of_one)}


def judged_greedily(records: Sequence[EvaluationRecord]) -> dict[str, EvaluationRecord]:
    """The greedy completions that the metric could judge, by example."""
    return {one.example_id: one for one in records if one.sample_index == 0 and one.failure is None}


Measured = dict[tuple[str, str], Interval | float]
"""Values by name and tag: `("accuracy", "")` of all examples, `("accuracy", "2_hops")` of those with the tag."""


def summarize(task_name: str, records: Sequence[EvaluationRecord]) -> dict[str, float]:
    """All metrics of an evaluation by their names; see `measure`."""
    metrics: dict[str, float] = {}
    for (name, tag), value in measure(records).items():
        metrics |= _named(f"eval/{task_name}/{name}_{tag}" if tag else f"eval/{task_name}/{name}", value)
    return metrics


def _named(name: str, value: Interval | float) -> dict[str, float]:
    if isinstance(value, Interval):
        return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
    return {name: value}


def measure(records: Sequence[EvaluationRecord]) -> Measured:
    """All numbers of an evaluation.

    Completions that could not be judged count in `error_share` only: a greedy one is left out of every other metric,
    a sample takes its example out of the sampled ones. Without a judged greedy completion, or sample, there are no
    metrics of that kind.
    """
    greedy = [record for record in records if record.sample_index == 0]
    judged = [record for record in greedy if record.failure is None]
    found: Measured = {("num_examples", ""): float(len(judged))}
    if judged:
        found |= _greedy(judged)
    if greedy:
        failed = [record.failure is not None or math.isnan(record.reward) for record in greedy]
        found["error_share", ""] = _mean(failed)
    if complete := judged_samples(records):
        found |= {(name, ""): value for name, value in _sampled(list(complete.values())).items()}
    return found


def _greedy(judged: Sequence[EvaluationRecord]) -> Measured:
    """Accuracy, behavior, parts and facts, in all and by tag."""
    tags = sorted({tag for record in judged for tag in record.tags})
    tagged = {"": judged} | {tag: [record for record in judged if tag in record.tags] for tag in tags}
    found: Measured = {}
    for tag, records in tagged.items():
        found["accuracy", tag] = wilson(sum(record.correct for record in records), len(records))
    numbers = {
        "invalid_share": _mean([record.answer is None for record in judged]),
        "truncated_share": _mean([record.stop_reason == StopReason.LENGTH for record in judged]),
        "completion_tokens_mean": _mean([record.num_completion_tokens for record in judged]),
    }
    rewards = [record.reward for record in judged if not math.isnan(record.reward)]
    if rewards:
        numbers["reward"] = _mean(rewards)
    tools = tool_metrics([record.diagnostics for record in judged], [record.stop_reason for record in judged])
    for tag, records in tagged.items():
        numbers |= {f"part_{name}": _mean(values) for name, values in _parts(records).items()}
        numbers |= tools | facts([record.diagnostics for record in records])
        found |= {(name, tag): value for name, value in numbers.items()}
        numbers, tools = {}, {}  # those of all examples have no tag
    return found


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
        votes = [majority_vote([r.answer for r in of_one], [r.correct for r in of_one]) for of_one in samples]
        per_example[f"maj_at_{size}"] = votes
    scores = {name: bootstrap(values) for name, values in per_example.items()}
    return scores | {"samples_per_example": float(size)}


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate of the probability that at least one of k samples is correct, arXiv:2107.03374 equation 1.

    1 - C(n - c, k) / C(n, k): the share of the k-subsets of the n samples that hold a correct one. Averaging
    1 - (1 - c/n)^k instead is biased downward. ValueError for k > n or impossible counts.
    """
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"{num_correct} of {num_samples} samples correct makes no sense")
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} is undefined for {num_samples} samples; take at least {k} samples per example")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def majority_vote(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """1.0 if the most frequent answer is correct, shared among ties: 0.5 when a right and a wrong one tie.

    An answer of None could not be parsed and has no vote; without any vote the result is 0.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    tied = [answer for answer, count in votes.items() if count == most]
    right = {answer for answer, is_right in zip(answers, correct, strict=True) if is_right}
    return sum(answer in right for answer in tied) / len(tied)


def powers_of_two(limit: int) -> list[int]:
    """`powers_of_two(10) == [1, 2, 4, 8]`: the k of pass@k worth a column."""
    return [1 << i for i in range(limit.bit_length()) if 1 << i <= limit]


def _parts(records: Sequence[EvaluationRecord]) -> dict[str, list[float]]:
    """The values of each part of the reward, by name, where the verifier gave one."""
    names = sorted({name for record in records for name in record.parts})
    return {name: [record.parts[name] for record in records if name in record.parts] for name in names}


def combine(task_name: str, parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The headline of several tasks: the unweighted mean of their accuracies.

    The tasks are independent, so a half-width of the interval is the root of the summed squares of theirs, over n.
    """
    found = [{name.rpartition("/")[2]: value for name, value in part.items()} for part in parts]
    mean = _mean([part["accuracy"] for part in found])
    below = math.hypot(*(part["accuracy"] - part["accuracy_low"] for part in found)) / len(found)
    above = math.hypot(*(part["accuracy_high"] - part["accuracy"] for part in found)) / len(found)
    interval = Interval(value=mean, low=max(0.0, mean - below), high=min(1.0, mean + above))
    num = sum(part["num_examples"] for part in found)
    return {f"eval/{task_name}/num_examples": num} | _named(f"eval/{task_name}/accuracy", interval)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
