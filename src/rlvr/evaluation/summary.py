"""From judged episodes to the metrics of docs/metrics.md, each with its 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlvr.evaluation.intervals import Interval, bootstrap, wilson
from rlvr.evaluation.pass_at_k import majority_vote, pass_at_k, powers_of_two
from rlvr.rollout.metrics import facts, tool_metrics
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


def summarize(task_name: str, records: Sequence[EvaluationRecord], *, seed: int) -> dict[str, float]:
    """All metrics of an evaluation; `seed` is the bootstrap's.

    Completions that could not be judged count in `error_share` only: a greedy one is left out of every other metric,
    a sample takes its example out of the sampled ones. Without a judged greedy completion, or sample, there are no
    metrics of that kind.
    """
    greedy = [record for record in records if record.sample_index == 0]
    judged = [record for record in greedy if record.failure is None]
    metrics = {"num_examples": float(len(judged))}
    if judged:
        metrics |= _greedy(judged)
    if greedy:
        metrics["error_share"] = _mean([record.failure is not None or math.isnan(record.reward) for record in greedy])
    if complete := judged_samples(records):
        metrics |= _sampled(list(complete.values()), seed)
    return {f"eval/{task_name}/{name}": value for name, value in metrics.items()}


def _greedy(judged: Sequence[EvaluationRecord]) -> dict[str, float]:
    """Accuracy, behavior, parts and facts, in all and by tag."""
    tags = sorted({tag for record in judged for tag in record.tags})
    tagged = {tag: [record for record in judged if tag in record.tags] for tag in tags}
    metrics = _accuracy("accuracy", judged)
    for tag, records in tagged.items():
        metrics |= _accuracy(f"accuracy_{tag}", records)
    metrics |= {
        "invalid_share": _mean([record.answer is None for record in judged]),
        "truncated_share": _mean([record.stop_reason == StopReason.LENGTH for record in judged]),
        "completion_tokens_mean": _mean([record.num_completion_tokens for record in judged]),
    }
    rewards = [record.reward for record in judged if not math.isnan(record.reward)]
    if rewards:
        metrics["reward"] = _mean(rewards)
    metrics |= {f"part_{name}": _mean(values) for name, values in _parts(judged).items()}
    metrics |= tool_metrics([record.diagnostics for record in judged], [record.stop_reason for record in judged])
    metrics |= facts([record.diagnostics for record in judged])
    for tag, records in tagged.items():
        metrics |= {f"part_{name}_{tag}": _mean(values) for name, values in _parts(records).items()}
        metrics |= {f"{name}_{tag}": value for name, value in facts([one.diagnostics for one in records]).items()}
    return metrics


def _accuracy(name: str, records: Sequence[EvaluationRecord]) -> dict[str, float]:
    return _with_bounds(name, wilson(sum(record.correct for record in records), len(records)))


def _with_bounds(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _sampled(samples: Sequence[Sequence[EvaluationRecord]], seed: int) -> dict[str, float]:
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
    metrics: dict[str, float] = {}
    for name, values in per_example.items():
        metrics |= _with_bounds(name, bootstrap(values, seed=seed))
    return metrics | {"samples_per_example": float(size)}


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
    num = {"num_examples": sum(part["num_examples"] for part in found)}
    return {f"eval/{task_name}/{name}": value for name, value in (num | _with_bounds("accuracy", interval)).items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
