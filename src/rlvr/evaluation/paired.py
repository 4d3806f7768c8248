"""Two models on the same examples: how large their difference is, and whether chance would explain it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlvr.evaluation.intervals import CONFIDENCE, Interval, quantiles, resampled_means, wilson

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def paired_bootstrap(
    first: ArrayLike, second: ArrayLike, *, seed: int, num_resamples: int = 5000, confidence: float = CONFIDENCE
) -> Interval:
    """Percentile bootstrap of mean(second) - mean(first); both [N], one value in [0, 1] for each common example.

    Examples are drawn with both of their values: what makes an example hard is hard for both, and drawing the models
    apart would make the interval too wide. If the difference is the same for every example no resample can differ;
    then the interval reaches as far as Wilson's does for something that was never seen in N examples.

    Raises:
        ValueError: not the same number of values, or none.
    """
    import numpy as np

    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != two.shape or one.ndim != 1 or len(one) == 0:
        raise ValueError(f"two values per example and at least one example are needed, not {one.shape} and {two.shape}")
    difference: NDArray[np.float64] = two - one
    value = float(difference.mean())
    if difference.min() == difference.max():
        unseen = wilson(0, len(difference), confidence).high
        return Interval(value=value, low=max(-1.0, value - unseen), high=min(1.0, value + unseen))
    low, high = quantiles(resampled_means(difference, num_resamples, seed), confidence)
    return Interval(value=value, low=low, high=high)


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value of McNemar's test (Psychometrika 1947).

    If two models are equally good, an example that only one of them gets right is as likely the one's as the other's:
    a fair coin, thrown `only_first + only_second` times. Examples that both get right, or wrong, say nothing.

    Raises:
        ValueError: a negative count.
    """
    from scipy.stats import binomtest

    if min(only_first, only_second) < 0:
        raise ValueError(f"counts of examples cannot be negative: {only_first} and {only_second}")
    if only_first + only_second == 0:
        return 1.0
    return float(binomtest(only_first, only_first + only_second, 0.5).pvalue)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's adjusted p-values (Scandinavian Journal of Statistics 1979), in the order given.

    Of 20 comparisons of equal models one has p < 0.05 by chance. Called real only where the adjusted value is below
    0.05, the chance of a single false one among all is at most 5 %, whatever they have to do with each other.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)
