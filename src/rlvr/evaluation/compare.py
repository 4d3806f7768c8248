"""Two evaluations of the same examples, and the sentence that says what their difference is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlvr.evaluation.intervals import Interval
from rlvr.evaluation.paired import mcnemar, paired_bootstrap
from rlvr.tracking.evaluations import EvaluationRecord

ALPHA = 0.05
"""A difference is called real where chance alone gives such a one less often than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """`second` against `first` on the examples that both were judged on, greedily.

    `Comparison(task="rpn", split="test", first="runs/a", second="runs/b", num_common=500,
    difference=Interval(value=0.032, low=0.004, high=0.061), only_first=("3 4 +", ...), only_second=(...),
    p_value=0.03, ...)`

    `difference`: accuracy of `second` minus that of `first`, with its paired bootstrap interval. `only_first`: ids of
    the examples that only `first` gets right. `p_value`: McNemar's exact test. `adjusted_p_value`: Holm's correction
    for all `num_comparisons` that were made at once. `sampled`: the difference of the accuracies of the samples, where
    both have some, over the examples whose samples were all judged. `num_changed`: examples of the same id whose gold
    answers differ; they are left out. `disagreeing`: some of the examples that one of them gets right, both answers.
    """

    task: str
    split: str
    first: str
    second: str
    num_common: int
    difference: Interval
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    p_value: float
    adjusted_p_value: float = math.nan
    num_comparisons: int = 1
    sampled: Interval | None = None
    num_changed: int = 0
    disagreeing: tuple[tuple[EvaluationRecord, EvaluationRecord], ...] = ()

    @property
    def is_real(self) -> bool:
        """Whether chance is a poor explanation, all comparisons considered."""
        return self.adjusted_p_value < ALPHA

    @property
    def sentence(self) -> str:
        """For a reader: who is better by how much, and on what evidence."""
        where = f"on {self.task}" + (f" ({self.split})" if self.split != "test" else "")
        sign = -1 if self.is_real and self.difference.value < 0 else 1
        evidence = f"McNemar p {_p(self.p_value)}"
        if self.num_comparisons > 1:
            evidence += f" ({_p(self.adjusted_p_value).removeprefix('= ')} corrected for {self.num_comparisons})"
        evidence += f", on {self.num_common:,} common examples"
        if self.sampled is not None:
            evidence += f"; sampled {_points(self.sampled, sign, '+')}"
        if self.is_real:
            better, worse = (self.second, self.first)[::sign]
            return f"{better} is better than {worse} {where} by {_points(self.difference, sign, '')}, {evidence}."
        return (
            f"{self.second} against {self.first} {where}: no difference that chance would not explain, "
            f"{_points(self.difference, sign, '+')}, {evidence}."
        )


def _points(difference: Interval, sign: int, plus: str) -> str:
    """`3.2 points (0.4 to 6.1)`, or with `plus="+"` `+3.2 points (+0.4 to +6.1)`; `sign=-1`: the other way round."""
    low, high = sorted((sign * difference.low, sign * difference.high))
    value, low, high = (f"{share * 100:{plus}.1f}" for share in (sign * difference.value, low, high))
    return f"{value} points ({low} to {high})"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.2g}" if value < 0.1 else f"= {value:.2f}"


def judged_greedily(records: Sequence[EvaluationRecord]) -> dict[str, EvaluationRecord]:
    """The greedy answers that the metric could judge, by example."""
    return {one.example_id: one for one in records if one.sample_index == 0 and one.failure is None}


def compare(
    first: Sequence[EvaluationRecord],
    second: Sequence[EvaluationRecord],
    *,
    names: tuple[str, str],
    seed: int,
    num_shown: int = 3,
) -> Comparison | None:
    """The comparison of two evaluations of one task; None if no example was judged greedily in both."""
    one, two = judged_greedily(first), judged_greedily(second)
    shared = [example for example in one if example in two]
    common = [example for example in shared if one[example].expected == two[example].expected]
    if not common:
        return None
    only_first = tuple(example for example in common if one[example].correct and not two[example].correct)
    only_second = tuple(example for example in common if two[example].correct and not one[example].correct)
    return Comparison(
        task=first[0].task,
        split=first[0].split,
        first=names[0],
        second=names[1],
        num_common=len(common),
        difference=paired_bootstrap(
            [one[example].correct for example in common], [two[example].correct for example in common], seed=seed
        ),
        only_first=only_first,
        only_second=only_second,
        p_value=mcnemar(len(only_first), len(only_second)),
        sampled=_sampled(first, second, set(shared) - set(common), seed),
        num_changed=len(shared) - len(common),
        disagreeing=tuple((one[id], two[id]) for id in (*only_first[:num_shown], *only_second[:num_shown])),
    )


def _sampled(
    first: Sequence[EvaluationRecord], second: Sequence[EvaluationRecord], changed: set[str], seed: int
) -> Interval | None:
    one, two = sampled_accuracies(first), sampled_accuracies(second)
    common = [example for example in one if example in two and example not in changed]
    if not common:
        return None
    return paired_bootstrap([one[example] for example in common], [two[example] for example in common], seed=seed)


def sampled_accuracies(records: Sequence[EvaluationRecord]) -> Mapping[str, float]:
    """The share of right samples of each example whose samples were all judged."""
    samples: dict[str, list[EvaluationRecord]] = {}
    for record in records:
        if record.sample_index > 0:
            samples.setdefault(record.example_id, []).append(record)
    return {
        example: sum(one.correct for one in of_one) / len(of_one)
        for example, of_one in samples.items()
        if all(one.failure is None for one in of_one)
    }
