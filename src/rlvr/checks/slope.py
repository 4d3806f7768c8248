"""The slope of a function that can only be evaluated, with rounding, and that may bend and jump."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

SHRINK = 4
NUM_STEPS = 7  # the larger bend, the smallest are rounding
AGREE = 0.005  # two slopes that differ by less are where the gradient is compared
NEARLY = 0.02  # or else by less than this: a loss near 0 is rounded before it is straight


def slope_of(change: Callable[[float], float], largest: float) -> tuple[float, dict[str, list[float]]]:
    """The change of a loss over the change `x` that its gradient says, as `x` goes from `largest` to 0, and the
    quotients measured.

    At one size of step a quotient is bent (a pretrained model's loss bends soon) or rounded. So it is taken where
    quotients at two steps agree, or what they tend to does. Mixtures of experts jump where a token goes to another
    expert: on one side of the weights, so each side is looked at alone where both together never agree.
    """
    quotients: dict[str, list[float]] = {"both": [], "up": [], "down": []}
    for x in (largest / SHRINK**k for k in range(NUM_STEPS)):
        up, down = change(x), change(-x)
        for side, quotient in (("both", (up - down) / (2 * x)), ("up", up / x), ("down", -down / x)):
            quotients[side].append(quotient)
        gap, limit = _limit(quotients["both"][-3:], order=2)
        if gap < AGREE:
            return limit, quotients
    for side, order, near in (("both", 2, NEARLY), ("up", 1, AGREE), ("down", 1, AGREE)):
        for end in range(2, NUM_STEPS + 1):
            gap, limit = _limit(quotients[side][max(end - 3, 0) : end], order)
            if gap < near:
                return limit, quotients
    every = [quotient for side in quotients.values() for quotient in side if math.isfinite(quotient)]
    return min(every, key=lambda quotient: abs(quotient - 1), default=math.nan), quotients


def _limit(quotients: Sequence[float], order: int) -> tuple[float, float]:
    """By how much the last two of up to three quotients differ, or the last two that are extrapolated if that is less;
    and what the quotients tend to if their error shrinks with that power of the step (Richardson's extrapolation)."""
    factor = SHRINK**order
    better = [(factor * second - first) / (factor - 1) for first, second in pairwise(quotients)]
    gaps = [abs(second - first) for pairs in (quotients[-2:], better[-2:]) for first, second in pairwise(pairs)]
    finite = [gap for gap in gaps if math.isfinite(gap)]
    return min(finite, default=math.inf), better[-1] if better else math.nan
