"""The space of a search, from Hydra's grammar of sweeps."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, Sweep
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from rlvr.config.overrides import parse_overrides
from rlvr.errors import ConfigError
from rlvr.lines import inclusive_range
from rlvr.search.values import swept_values

Value = str | int | float
Distribution = CategoricalDistribution | FloatDistribution | IntDistribution


@dataclass(frozen=True, kw_only=True)
class Axis:
    """`Axis(key="seed", line="seed=range(1,4)", distribution=IntDistribution(1, 3))`; choices are texts."""

    key: str
    line: str
    distribution: Distribution

    def override(self, value: Value) -> str:
        """`trainer.learning_rate=0.00031`, which reads back as exactly this value."""
        return f"{self.key}={value}"

    def rounded(self, value: Value) -> Value:
        """A proposed number with four significant digits, so that people can read it, inside of its interval."""
        found = self.distribution
        if isinstance(found, FloatDistribution):
            return min(max(float(f"{value:.4g}"), found.low), found.high)
        return value

    @property
    def samples(self) -> list[Value]:
        """All choices; of numbers both ends and one in between."""
        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            return [str(choice) for choice in distribution.choices]
        if isinstance(distribution, IntDistribution):
            return [distribution.low, distribution.high]
        return [
            distribution.low,
            distribution.low + 0.37 * (distribution.high - distribution.low)
            if distribution.step is None
            else distribution.low,
            distribution.high,
        ]

    @property
    def size(self) -> float:
        found = self.distribution
        if isinstance(found, CategoricalDistribution):
            return len(found.choices)
        return math.inf if found.step is None else round((found.high - found.low) / found.step) + 1


@dataclass(frozen=True, kw_only=True)
class Space:
    axes: tuple[Axis, ...]
    fixed: tuple[str, ...]  # the other overrides

    @property
    def size(self) -> float:
        """The number of its points."""
        return math.prod(axis.size for axis in self.axes)

    def overrides(self, point: dict[str, Value]) -> list[str]:
        """The overrides that a point adds to the fixed ones."""
        return [axis.override(point[axis.key]) for axis in self.axes]


def read_space(overrides: Sequence[str]) -> Space:
    """ConfigError for what cannot be searched, or if nothing is."""
    axes, fixed = [], []
    for override in map(_parsed, overrides):
        line = override.input_line or ""
        if not override.is_sweep_override():
            fixed.append(line)
        elif override.get_key_element() == "seed":
            raise ConfigError(
                f"{line}: a search would keep the luckiest seed; give one, and train the best point with several after "
                "the search."
            )
        else:
            axes.append(Axis(key=override.get_key_element(), line=line, distribution=_distribution(override, line)))
    if not axes:
        raise ConfigError(
            "sweep.trials: there is nothing to search; give a setting several values, e.g. "
            "'trainer.learning_rate=tag(log,interval(1e-4,1e-2))' or algorithm=grpo,rloo."
        )
    return Space(axes=tuple(axes), fixed=tuple(fixed))


def _parsed(line: str) -> Override:
    try:
        return parse_overrides([inclusive_range(line)])[0]
    except ConfigError:
        if not re.search(r"\b(interval|range)\(", line):
            raise
        raise ConfigError(
            f"{line}: cannot be read; an interval has two numbers, e.g. interval(1e-5,1e-3), and a range two or three."
        ) from None


def _distribution(override: Override, line: str) -> Distribution:
    sweep = override.value()
    if not isinstance(sweep, Sweep):  # glob(...)
        raise ConfigError(f"{line}: cannot be searched; list the values of a setting, or give an interval.")
    unknown = sweep.tags - {"log"}
    if unknown:
        raise ConfigError(f"{line}: there is no tag {min(unknown)}; there is log.")
    is_log = "log" in sweep.tags
    if isinstance(sweep, IntervalSweep):
        return _interval(sweep.start, sweep.end, line, is_log=is_log)
    if isinstance(sweep, RangeSweep):
        return _range(sweep, line, is_log=is_log)
    if is_log:
        raise ConfigError(f"{line}: a choice has no logarithm; take the tag away, or write interval(LOW,HIGH).")
    return CategoricalDistribution(swept_values(override))


def _interval(low: float | None, high: float | None, line: str, *, is_log: bool) -> Distribution:
    assert low is not None
    assert high is not None
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"{line}: both ends of an interval are finite numbers.")
    if low >= high:
        raise ConfigError(f"{line}: the interval is empty; write the smaller end first.")
    _check_log(low, line, is_log=is_log)
    if isinstance(low, int) and isinstance(high, int):  # int(interval(...))
        return IntDistribution(low, high, log=is_log)
    return FloatDistribution(low, high, log=is_log)


def _range(sweep: RangeSweep, line: str, *, is_log: bool) -> Distribution:
    step = abs(sweep.step)
    values = list(sweep.range()) if step else []
    if not values:
        raise ConfigError(f"{line}: the range is empty; write range(FIRST,END,STEP), where END is not included.")
    low, high = min(values), max(values)
    _check_log(low, line, is_log=is_log)
    is_whole = all(isinstance(value, int) for value in values)
    if is_log and not (is_whole and step == 1):
        raise ConfigError(f"{line}: on a log scale a range has whole steps of 1; write interval(LOW,HIGH).")
    if is_whole:
        return IntDistribution(int(low), int(high), log=is_log, step=int(step))
    return FloatDistribution(low, high, step=float(step))


def _check_log(low: float, line: str, *, is_log: bool) -> None:
    if is_log and low <= 0:
        raise ConfigError(f"{line}: on a log scale all numbers are above 0; raise the smaller end.")
