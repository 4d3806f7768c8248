"""95 % confidence intervals, and significance tests for two models on the same examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95

SEED = 0  # of all resampling, so that the same records give the same intervals
_FEW = 32  # with few distinct values, multinomial counts are faster than drawing examples


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate and its confidence interval: `Interval(value=0.95, low=0.92, high=0.97)`"""

    value: float
    low: float
    high: float

    def is_below(self, other: Interval) -> bool:
        """Whether it lies wholly below the other one; two that touch do not."""
        return self.high < other.low

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def wilson(num_correct: int, num_examples: int) -> Interval:
    """Wilson's score interval of a proportion (JASA 1927); correct near 0 and 1, unlike the normal one."""
    from scipy.stats import binomtest

    interval = binomtest(num_correct, num_examples).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(value=num_correct / num_examples, low=float(interval.low), high=float(interval.high))


def bootstrap(per_example: ArrayLike, *, seed: int = SEED, num_resamples: int = 2000) -> Interval:
    """Percentile bootstrap of the mean of `per_example` [N], one value per example in [0, 1].

    Resamples examples, not samples: samples of one example are correlated, and treating them as independent makes
    intervals too narrow. With 200 examples the coverage is 93 to 96 %; with 50 and a rate under 5 % or over 95 % only
    about 80 %, because rare outcomes may be missing. If all values are 0, or all are 1, the bootstrap interval would
    have no width; Wilson's interval is returned instead.
    """
    import numpy as np

    values: NDArray[np.float64] = np.asarray(per_example, dtype=np.float64)
    if values.min() == values.max() and values[0] in (0.0, 1.0):
        return wilson(int(values.sum()), len(values))
    return _percentiles(values, num_resamples, seed)


def _percentiles(values: NDArray[np.float64], num_resamples: int, seed: int) -> Interval:
    """The mean of `values` [N] and the middle 95 % of its bootstrap distribution."""
    import numpy as np

    rng = np.random.default_rng(seed)
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= _FEW:  # same distribution: counts of the values are multinomial
        means = rng.multinomial(len(values), counts / len(values), num_resamples) @ distinct / len(values)
    else:
        means = np.array([values[rng.integers(0, len(values), len(values))].mean() for _ in range(num_resamples)])
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value=float(values.mean()), low=float(low), high=float(high))


def paired_bootstrap(first: ArrayLike, second: ArrayLike, *, seed: int = SEED, num_resamples: int = 5000) -> Interval:
    """Percentile bootstrap of mean(second) - mean(first); both [N], one value in [0, 1] for each common example.

    Resamples examples with both values: the models share each example's difficulty, and separate resampling would make
    the interval too wide. If all differences are equal, the half-width is that of Wilson's interval for an event never
    seen in N examples. ValueError for different lengths, or none.
    """
    import numpy as np

    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != two.shape:  # numpy would repeat a single value
        raise ValueError(f"pairs of {one.size:,} and {two.size:,} values")
    difference: NDArray[np.float64] = two - one
    if difference.min() == difference.max():
        value, unseen = float(difference.mean()), wilson(0, len(difference)).high
        return Interval(value=value, low=max(-1.0, value - unseen), high=min(1.0, value + unseen))
    return _percentiles(difference, num_resamples, seed)


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value of McNemar's test (Psychometrika 1947).

    Under the null hypothesis each model is equally likely to be the right one on a discordant example: a binomial test
    with `only_first + only_second` trials.
    """
    from scipy.stats import binomtest

    num = only_first + only_second
    return float(binomtest(only_first, num, 0.5).pvalue) if num else 1.0


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's adjusted p-values (Scandinavian Journal of Statistics 1979), in the given order.

    Rejecting at adjusted values below 0.05 keeps the probability of any false rejection at 5 %, for any dependence of
    the tests.
    """
    import numpy as np

    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(len(values), 0, -1) * values[order]))
    return tuple(adjusted.tolist())
