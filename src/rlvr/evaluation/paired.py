"""Two models on the same examples: the size of their difference, and whether chance would explain it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlvr.evaluation.intervals import CONFIDENCE, Interval, percentile_interval, wilson

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def paired_bootstrap(
    first: ArrayLike, second: ArrayLike, *, seed: int, num_resamples: int = 5000, confidence: float = CONFIDENCE
) -> Interval:
    """Percentile bootstrap of mean(second) - mean(first); both [N], one value in [0, 1] for each common example.

    Examples are drawn with both of their values: difficulty is shared, and drawing the models apart would make the
    interval too wide. If all differences are equal, resampling would give an interval without width; it then reaches as
    far as Wilson's for an event never seen in N examples. ValueError for different lengths, or none.
    """
    import numpy as np

    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != two.shape or one.ndim != 1 or len(one) == 0:
        raise ValueError(f"two values per example and at least one example are needed, not {one.shape} and {two.shape}")
    difference: NDArray[np.float64] = two - one
    if difference.min() == difference.max():
        value, unseen = float(difference.mean()), wilson(0, len(difference), confidence).high
        return Interval(value=value, low=max(-1.0, value - unseen), high=min(1.0, value + unseen))
    return percentile_interval(difference, num_resamples, seed, confidence)


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value of McNemar's test (Psychometrika 1947).

    Of two equally good models each is equally likely to be the one that gets a discordant example right: a fair coin,
    thrown `only_first + only_second` times. ValueError for a negative count.
    """
    from scipy.stats import binomtest

    if min(only_first, only_second) < 0:
        raise ValueError(f"counts of examples cannot be negative: {only_first} and {only_second}")
    if only_first + only_second == 0:
        return 1.0
    return float(binomtest(only_first, only_first + only_second, 0.5).pvalue)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's adjusted p-values (Scandinavian Journal of Statistics 1979), in the given order.

    Rejecting where the adjusted value is below 0.05 keeps the chance of any false rejection at 5 %, whatever the
    dependence of the tests.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)
