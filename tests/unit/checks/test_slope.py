"""The slope of losses that bend, are rounded, and jump."""

import math
from collections.abc import Callable

import pytest

from rlvr.checks.slope import slope_of


def rounded(change: Callable[[float], float], unit: float) -> Callable[[float], float]:
    return lambda x: round(change(x) / unit) * unit


def bent(x: float) -> float:
    return math.expm1(x) + 3 * x**2 + 40 * x**3


def jumps(x: float) -> float:
    return x + 0.01 * (x > 0)


@pytest.mark.parametrize(
    ("change", "largest", "slope"),
    [
        (lambda x: 0.9 * x, 1e-2, 0.9),
        (bent, 0.3, 1.0),
        (rounded(bent, 5e-5), 0.3, 1.0),
        (lambda x: 0.9 * rounded(bent, 5e-5)(x), 0.3, 0.9),
        (jumps, 1e-2, 1.0),
        (lambda x: -x, 1e-2, -1.0),
    ],
    ids=["straight", "bent", "bent and rounded", "wrong, bent and rounded", "jumps on one side", "backwards"],
)
def test_the_slope_is_that_of_small_steps(change: Callable[[float], float], largest: float, slope: float) -> None:
    assert slope_of(change, largest)[0] == pytest.approx(slope, abs=0.01)


def test_a_loss_near_0_is_rounded_before_it_is_straight() -> None:
    """As measured on a small model in float32: the smallest steps agree best, by chance, and are wrong."""
    up = (952.36, 2.459, 1.2016, 1.03799, 0.96404, 0.83258, 0.70112)
    down = (-250.1, 0.5669, 0.8497, 0.96404, 1.06264, 1.0516824, 1.0516824)

    def change(x: float) -> float:
        return x * (up if x > 0 else down)[round(-math.log(abs(x), 4))]

    assert slope_of(change, 1.0)[0] == pytest.approx(1, abs=0.01)
