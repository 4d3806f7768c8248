"""From judged episodes to the numbers of docs/metrics.md, each with its 95 % interval."""

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


def summarize(task_name: str, records: Sequence[EvaluationRecord], *, seed: int) -> dict[str, float]:
    """All metrics of an evaluation. `seed` is the one of the bootstrap.

    What could not be judged is in `error_share` only, and out of every other number: greedily its completion, among
    samples its example. Where nothing was judged greedily, or sampled, there are no numbers of it.
    """
    greedy = [record for record in records if record.sample_index == 0]
    judged = [record for record in greedy if record.failure is None]
    metrics = {"num_examples": float(len(judged))}
    if judged:
        metrics |= _greedy(judged)
    if greedy:
        metrics["error_share"] = _mean([record.failure is not None or math.isnan(record.reward) for record in greedy])
    samples: dict[str, list[EvaluationRecord]] = {}
    for record in records:
        if record.sample_index > 0:
            samples.setdefault(record.example_id, []).append(record)
    complete = [of_one for of_one in samples.values() if all(record.failure is None for record in of_one)]
    if complete:
        metrics |= _sampled(complete, seed)
    return {f"eval/{task_name}/{name}": value for name, value in metrics.items()}


def _greedy(judged: Sequence[EvaluationRecord]) -> dict[str, float]:
    """Accuracy, behavior and facts, together and for each tag."""
    metrics = _accuracy("accuracy", judged)
    tags = sorted({tag for record in judged for tag in record.tags})
    for tag in tags:
        metrics |= _accuracy(f"accuracy_{tag}", [record for record in judged if tag in record.tags])
    metrics |= _behavior(judged)
    for tag in tags:
        tagged = [record for record in judged if tag in record.tags]
        of_tag = {f"part_{name}": _mean(found) for name, found in _parts(tagged).items()}
        of_tag |= facts([record.diagnostics for record in tagged])
        metrics |= {f"{name}_{tag}": value for name, value in of_tag.items()}
    return metrics


def _accuracy(name: str, records: Sequence[EvaluationRecord]) -> dict[str, float]:
    return _with_bounds(name, wilson(sum(record.correct for record in records), len(records)))


def _with_bounds(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _behavior(records: Sequence[EvaluationRecord]) -> dict[str, float]:
    """How the greedy answers look: what accuracy alone does not show."""
    metrics = {
        "invalid_share": _mean([record.answer is None for record in records]),
        "truncated_share": _mean([record.stop_reason == StopReason.LENGTH for record in records]),
        "completion_tokens_mean": _mean([record.num_completion_tokens for record in records]),
    }
    rewards = [record.reward for record in records if not math.isnan(record.reward)]
    if rewards:
        metrics["reward"] = _mean(rewards)
    for name, found in _parts(records).items():
        metrics[f"part_{name}"] = _mean(found)
    metrics |= tool_metrics([record.diagnostics for record in records], [record.stop_reason for record in records])
    return metrics | facts([record.diagnostics for record in records])


def _sampled(samples: Sequence[Sequence[EvaluationRecord]], seed: int) -> dict[str, float]:
    """avg@k (`sampled_accuracy`), pass@1, 2, 4, ... and maj@k; `samples` holds one list of k records per example."""
    size = len(samples[0])
    flat = [record for of_one in samples for record in of_one]
    correct = [sum(record.correct for record in of_one) for of_one in samples]
    metrics = _with_bounds("sampled_accuracy", bootstrap([c / size for c in correct], seed=seed))
    for name in _parts(flat):
        means = [_mean(found) for of_one in samples if (found := _parts(of_one).get(name))]
        metrics |= _with_bounds(f"sampled_part_{name}", bootstrap(means, seed=seed))
    for k in powers_of_two(size)[1:]:  # pass@1 is sampled_accuracy
        metrics |= _with_bounds(f"pass_at_{k}", bootstrap([pass_at_k(size, c, k) for c in correct], seed=seed))
    votes = [majority_vote([r.answer for r in of_one], [r.correct for r in of_one]) for of_one in samples]
    if size > 1:
        metrics |= _with_bounds(f"maj_at_{size}", bootstrap(votes, seed=seed))
    return metrics | {"samples_per_example": float(size)}


def _parts(records: Sequence[EvaluationRecord]) -> dict[str, list[float]]:
    """The values of each part of the reward, by name, where the verifier gave one."""
    names = sorted({name for record in records for name in record.parts})
    return {name: [record.parts[name] for record in records if name in record.parts] for name in names}


def combine(task_name: str, parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The headline of several tasks: the mean of their accuracies, each counted once.

    The parts are independent, so half the width of the interval is the root of the summed squares of theirs, over n.
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
