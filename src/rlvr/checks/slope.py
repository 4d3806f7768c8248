"""The slope of a function that can only be evaluated, with rounding, and that may bend and jump."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

SHRINK = 4
NUM_STEPS = 7  # the larger bend, the smallest are rounding
AGREE = 0.005  # two slopes that differ by less are where the gradient is compared


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
        if (limit := _limit(quotients["both"], order=2)) is not None:
            return limit, quotients
    for side in ("up", "down"):
        for count in range(2, NUM_STEPS + 1):
            if (limit := _limit(quotients[side][:count], order=1)) is not None:
                return limit, quotients
    every = [one for side in quotients.values() for one in side if math.isfinite(one)]
    return min(every, key=lambda one: abs(one - 1), default=math.nan), quotients


def _limit(quotients: Sequence[float], order: int) -> float | None:
    """What they tend to if their error shrinks with that power of the step (Richardson's extrapolation); None as long
    as neither the last two agree, nor the last two extrapolated ones."""
    factor = SHRINK**order
    better = [(factor * second - first) / (factor - 1) for first, second in pairwise(quotients)]
    agree = any(len(one) > 1 and abs(one[-1] - one[-2]) < AGREE for one in (quotients, better))
    return better[-1] if agree else None
