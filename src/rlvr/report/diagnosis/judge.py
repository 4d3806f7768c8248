"""Which cause most likely keeps a curve flat.

Learning is a chain: the question reaches the model, its completion ends, is read, is paid for what is right, differs
from its neighbors, is trained on, and the step is neither too large nor too small. Each cause breaks one link, with a
`strength` from 0 (no evidence) to 1 (this link lets nothing pass). Its score is the share of the signal that
is lost there: strength x what the links before it let pass x how flat the curve is. So a broken link explains what
comes after it, scores add up to at most 1, and what is left is "I do not know".
"""

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rlvr.report.diagnosis.record import Record
from rlvr.tracking.signals import between

TABLE: Mapping[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))
NAMED = 0.25
"""A cause with at least this score is named; below it the answer is "I do not know"."""
ROSE = 0.5  # of `Diagnosis.learned`: from here on a curve is not flat
LISTED = 0.05  # causes with less are not worth a line


@dataclass(frozen=True, kw_only=True)
class Found:
    """The evidence for a cause. `overrides` of the run's configuration that should fix it, if settings can; `says` and
    `remedy` where the table's do not suit what was found."""

    strength: float
    evidence: Sequence[str] = ()
    overrides: Sequence[str] = ()
    remedy: str | None = None
    says: str | None = None


@dataclass(frozen=True, kw_only=True)
class Cause:
    """`Cause(name="truncated", score=0.93, says=..., evidence=[...], remedy=..., overrides=[...], in_code=False)`"""

    name: str
    score: float
    says: str
    evidence: Sequence[str]
    remedy: str
    overrides: Sequence[str]
    in_code: bool  # the remedy is in the user's code, data or model, not in a setting


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Of the remedy to the unchanged run, with its 95 % interval."""

    name: str  # `held-out accuracy`, or `rise of the reward`
    unchanged: float
    remedy: float
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.remedy - self.unchanged

    def __str__(self) -> str:
        return (
            f"{self.name} {self.unchanged:.3f} -> {self.remedy:.3f}, {self.value:+.3f} "
            f"(95 % interval {self.low:+.3f} to {self.high:+.3f})"
        )


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A remedy tried beside the unchanged run."""

    cause: str
    overrides: Sequence[str]
    start: int  # updates behind the weights that both start from
    steps: int
    folder: str  # with `unchanged` and `remedy`
    differences: Sequence[Difference]
    moved: bool = field(init=False)  # a difference is above 0 by more than chance, and none below

    def __post_init__(self) -> None:
        is_worse = any(one.high < 0 for one in self.differences)
        object.__setattr__(self, "moved", any(one.low > 0 for one in self.differences) and not is_worse)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """`causes`, the likeliest first. `learned`: from 0, flat, to 1, the held-out metric rises by more than chance
    (without two evaluations: the reward); `rewarded`: the same of the reward."""

    run: str
    steps: int
    learned: float
    rewarded: float
    curve: str  # a sentence about it
    named: str | None  # the likeliest cause; None: nothing is wrong, or it is not known
    verdict: str  # a sentence
    causes: Sequence[Cause]
    notes: Sequence[str] = field(default_factory=list)
    trial: Trial | None = None

    @property
    def top(self) -> Cause | None:
        return next((cause for cause in self.causes if cause.name == self.named), None)


def verdict_of(causes: Sequence[Cause], learned: float, rewarded: float) -> tuple[str | None, str]:
    """The name of the likeliest cause, if one is likely, and a sentence."""
    if causes and causes[0].score >= NAMED:
        return causes[0].name, causes[0].says
    if learned >= ROSE:
        return None, "It learns; nothing looks wrong."
    if rewarded >= ROSE:
        return None, "The reward rises, the held-out metric not by more than chance; nothing else stands out."
    return None, "I do not know why this curve is flat: nothing that is recorded stands out."


Judge = Callable[[Record], Found]


def weight(cause: str, level: str, value: float | None) -> float:
    """0 at the level's `fine`, 1 at `wrong`, in between on its scale; 0 for what was not recorded."""
    limits = TABLE[cause]["levels"][level]
    return between(value, limits["fine"], limits["wrong"], log=limits.get("scale") == "log")


def judged(record: Record, judges: Mapping[str, Judge]) -> list[Cause]:
    """Every cause with evidence, the likeliest first; ties in the order of the chain."""
    of_metric, of_reward = rise_of_metric(record) or 0.0, rise_of_reward(record)
    passed, found = 1.0, list[Cause]()
    for name, judge in judges.items():
        told, about = judge(record), TABLE[name]
        flat = 1 - (of_metric if about.get("of_reward") else max(of_metric, of_reward))
        score = told.strength * passed * flat
        passed *= 1 - told.strength
        if score >= LISTED:
            found.append(
                Cause(
                    name=name,
                    score=round(score, 3),
                    says=told.says or about["says"],
                    evidence=list(told.evidence),
                    remedy=told.remedy or about["remedy"],
                    overrides=list(told.overrides),
                    in_code=bool(about.get("in_code")) or not told.overrides,
                )
            )
    return sorted(found, key=lambda one: -one.score)


def rise_of_metric(record: Record) -> float | None:
    """Whether the held-out metric rises, from 0 to 1: by more than chance, and by a part of what there was to gain;
    None with fewer than two evaluations."""
    if len(record.evaluations) < 2:
        return None
    first, last = record.evaluations[0], record.evaluations[-1]
    gained = last.value - first.value
    return _certain(gained / math.hypot(first.error, last.error)) * _gained(gained, 1 - first.value)


def rise_of_reward(record: Record) -> float:
    """The same of the reward, from the first third of the steps to the last; 0 below 6 steps."""
    values = [row["reward/mean"] for row in record.updates if math.isfinite(row["reward/mean"])]
    third = len(values) // 3
    if third < 2:
        return 0.0
    first, last = values[:third], values[-third:]
    spread = max(math.sqrt((stdev(first) ** 2 + stdev(last) ** 2) / third), 1e-3)
    gained = fmean(last) - fmean(first)
    best = max((one.reward or 0.0 for one in record.episodes), default=fmean(last))
    return _certain(gained / spread) * _gained(gained, best - fmean(first))


def _certain(errors: float) -> float:
    return weight("common", "certain", errors)


def _gained(gained: float, possible: float) -> float:
    return weight("common", "gained", gained / possible) if possible > 0 else 1.0


def about_the_curve(record: Record) -> str:
    """A sentence: what rose, from where to where."""
    parts = []
    if record.evaluations:
        first, last = record.evaluations[0], record.evaluations[-1]
        name = record.headline.replace("_", " ")
        parts.append(
            f"held-out {name} {first.value:.3f} in step {first.step} -> {last.value:.3f} in step {last.step} "
            f"(95 % interval {last.low:.3f} to {last.high:.3f})"
        )
    if record.updates:
        first, last = record.updates[0], record.updates[-1]
        parts.append(f"reward {first['reward/mean']:.3f} in step {first['step']:g} -> {last['reward/mean']:.3f}")
    return "; ".join(parts)
