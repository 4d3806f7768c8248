"""Comparison of two evaluations on the same examples: difference, significance and a summary sentence."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rlvr.evaluation.intervals import Interval, mcnemar, paired_bootstrap
from rlvr.evaluation.summary import SCORE, fact_values, graded_greedily, graded_samples
from rlvr.records.graded import EvaluationRecord

ALPHA = 0.05  # significance level of a difference, for the adjusted p-value
HEADLINE = re.compile(r".+_recall|(?:answer|citation)_f1")
"""Scores other than accuracy that the sentence reports."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """`second` against `first` on the examples with a greedy grade in both.

    `Comparison(task="rpn", split="test", first="runs/a", second="runs/b", num_common=500,
    difference=Interval(value=0.032, low=0.004, high=0.061), only_first=("3 4 +", ...), only_second=(...),
    p_value=0.03, ...)`
    """

    task: str
    split: str
    first: str
    second: str
    num_common: int
    difference: Interval  # accuracy of `second` minus that of `first`, paired bootstrap
    only_first: tuple[str, ...]  # ids of the examples that only `first` gets right
    only_second: tuple[str, ...]
    p_value: float  # McNemar's exact test
    adjusted_p_value: float = math.nan  # Holm's correction for all `num_comparisons`
    num_comparisons: int = 1
    scores: Mapping[str, Interval] = field(default_factory=dict)  # differences of F1, recall, ..., if both have one
    sampled: Interval | None = None  # difference of the sampled accuracies, of examples with all samples graded
    num_changed: int = 0  # examples whose gold answers differ, excluded
    disagreeing: tuple[tuple[EvaluationRecord, EvaluationRecord], ...] = ()  # examples that only one gets right

    @property
    def is_real(self) -> bool:
        """Whether the difference is significant after the correction."""
        return self.adjusted_p_value < ALPHA

    @property
    def sentence(self) -> str:
        """The better model, the difference and its evidence."""
        where = f"on {self.task}" + (f" ({self.split})" if self.split != "test" else "")
        sign = -1 if self.is_real and self.difference.value < 0 else 1
        evidence = f"McNemar p {_p(self.p_value)}"
        if self.num_comparisons > 1:
            evidence += f" ({_p(self.adjusted_p_value).removeprefix('= ')} corrected for {self.num_comparisons})"
        evidence += f", on {self.num_common:,} common examples"
        for name, difference in self.scores.items():
            if HEADLINE.fullmatch(name):
                evidence += f"; {name.replace('_', ' ')} {_points(difference, sign, '+')}"
        if self.sampled is not None:
            evidence += f"; sampled {_points(self.sampled, sign, '+')}"
        if self.is_real:
            better, worse = (self.second, self.first)[::sign]
            return f"{better} is better than {worse} {where} by {_points(self.difference, sign, '')}, {evidence}."
        return (
            f"{self.second} against {self.first} {where}: no difference in accuracy that chance would not explain, "
            f"{_points(self.difference, sign, '+')}, {evidence}."
        )


def _points(difference: Interval, sign: int, plus: str) -> str:
    """`3.2 points (0.4 to 6.1)`, or with `plus="+"` `+3.2 points (+0.4 to +6.1)`; `sign=-1` flips it."""
    low, high = sorted((sign * difference.low, sign * difference.high))
    value, low, high = (f"{share * 100:{plus}.1f}" for share in (sign * difference.value, low, high))
    return f"{value} points ({low} to {high})"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.2g}" if value < 0.1 else f"= {value:.2f}"


def compare(
    first: Sequence[EvaluationRecord],
    second: Sequence[EvaluationRecord],
    *,
    names: tuple[str, str],
    num_shown: int = 3,
) -> Comparison | None:
    """Compare two evaluations of one task; None if no example has a greedy grade in both."""
    before, after = graded_greedily(first), graded_greedily(second)
    shared = [example for example in before if example in after]
    changed = {example for example in shared if before[example].expected != after[example].expected}
    common = [example for example in shared if example not in changed]
    if not common:
        return None
    only_first = tuple(example for example in common if before[example].correct and not after[example].correct)
    only_second = tuple(example for example in common if after[example].correct and not before[example].correct)
    of_first, of_second = graded_samples(first), graded_samples(second)
    both = [example for example in of_first if example in of_second and example not in changed]
    rates = [[fmean(r.correct for r in samples[example]) for example in both] for samples in (of_first, of_second)]
    return Comparison(
        task=first[0].task,
        split=first[0].split,
        first=names[0],
        second=names[1],
        num_common=len(common),
        difference=paired_bootstrap([before[e].correct for e in common], [after[e].correct for e in common]),
        only_first=only_first,
        only_second=only_second,
        p_value=mcnemar(len(only_first), len(only_second)),
        scores=_scores([(before[e], after[e]) for e in common]),
        sampled=paired_bootstrap(*rates) if both else None,
        num_changed=len(changed),
        disagreeing=tuple((before[id], after[id]) for id in (*only_first[:num_shown], *only_second[:num_shown])),
    )


def _scores(pairs: Sequence[tuple[EvaluationRecord, EvaluationRecord]]) -> dict[str, Interval]:
    """Paired differences of the verifier's scores, over pairs where both records have the score."""
    scores = {}
    for name in dict.fromkeys(name for one, _ in pairs for name in one.diagnostics if SCORE.fullmatch(name)):
        both = [values for pair in pairs if len(values := fact_values(pair, name)) == 2]
        if both:
            scores[name] = paired_bootstrap(*zip(*both, strict=True))
    return scores
