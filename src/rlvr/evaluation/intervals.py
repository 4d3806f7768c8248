"""95 % confidence intervals: Wilson for proportions, bootstrap over examples for several samples of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95

_FEW = 32
"""Up to this many distinct values multinomial counts are faster than drawing every example."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate and its confidence interval: `Interval(value=0.95, low=0.92, high=0.97)`"""

    value: float
    low: float
    high: float


def wilson(num_correct: int, num_examples: int, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's score interval of a proportion (JASA 1927); unlike the normal one it is right near 0 and 1.

    ValueError without examples, or for more correct ones than examples.
    """
    from scipy.stats import binomtest

    interval = binomtest(num_correct, num_examples).proportion_ci(confidence, method="wilson")
    return Interval(value=num_correct / num_examples, low=float(interval.low), high=float(interval.high))


def bootstrap(
    per_example: ArrayLike, *, seed: int, num_resamples: int = 2000, confidence: float = CONFIDENCE
) -> Interval:
    """Percentile bootstrap of the mean of `per_example` [N], one value per example in [0, 1].

    Examples are drawn, not samples: samples of one example are correlated, and treating them as independent makes
    intervals too narrow. With 200 examples the coverage is 93 to 96 %; with 50 and a rate under 5 % or over 95 % only
    about 80 %, because the few exceptions may be missing. If every value is 0, or every one is 1, resampling would give
    an interval without width; Wilson's interval over the examples is returned instead. ValueError without examples.
    """
    import numpy as np

    values: NDArray[np.float64] = np.asarray(per_example, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"bootstrap needs one value per example and at least one example, not shape {values.shape}")
    if values.min() == values.max() and values[0] in (0.0, 1.0):
        return wilson(int(values.sum()), len(values), confidence)
    return percentile_interval(values, num_resamples, seed, confidence)


def percentile_interval(values: NDArray[np.float64], num_resamples: int, seed: int, confidence: float) -> Interval:
    """The mean of `values` [N] and the middle `confidence` of its bootstrap distribution."""
    import numpy as np

    rng = np.random.default_rng(seed)
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= _FEW:  # the same distribution: how often each value is drawn is multinomial
        means = rng.multinomial(len(values), counts / len(values), num_resamples) @ distinct / len(values)
    else:
        means = np.array([values[rng.integers(0, len(values), len(values))].mean() for _ in range(num_resamples)])
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value=float(values.mean()), low=float(low), high=float(high))
