"""Lines, lengths and sizes for `costs.py`."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from scipy.optimize import nnls

UNKNOWN_NOISE = 0.1

Size = tuple[int, int, int]  # prompts, completions of each, and tokens of these at most


def line(inputs: Any, seconds: Any) -> list[float]:
    """Factors >= 0 of the inputs, by least squares: seconds = factors . inputs."""
    matrix = np.array(inputs, dtype=float)
    scale = np.maximum(matrix.max(0), 1e-300)
    return [float(x) for x in nnls(matrix / scale, np.array(seconds))[0] / scale]


def robust_line(inputs: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """As `line`, but by the least sum of relative errors: one point that something else on the machine delayed counts
    little."""
    matrix, wanted = np.array(inputs, dtype=float), np.maximum(np.array(seconds), 1e-7)
    weights, found = 1 / wanted, list[float]()
    for _ in range(20):
        found = line(matrix * weights[:, None], wanted * weights)
        errors = np.abs(matrix @ found - wanted) / wanted
        weights = 1 / (wanted * np.sqrt(np.maximum(errors, 1e-3)))
    return found


def noise(steps: Sequence[tuple[Size, float]]) -> float:
    """Standard deviation of the logarithm of the seconds of steps of one size; of sizes that were made once nothing is
    known."""
    by_size: dict[Size, list[float]] = {}
    for size, seconds in steps:
        by_size.setdefault(size, []).append(math.log(max(1e-9, seconds)))
    repeated = [values for values in by_size.values() if len(values) > 1]
    count = sum(len(values) - 1 for values in repeated)
    gaps = sum((value - fmean(values)) ** 2 for values in repeated for value in values)
    return math.sqrt(gaps / count) if count else UNKNOWN_NOISE


def larger(size: Size, places: Sequence[int], limits: Size) -> Iterator[Size]:
    """Sizes that double at these places, one place after the other: `1 2 8` -> `1 4 8`, `2 4 8` up to `2 4 64`."""
    now = list(size)
    for place in places:
        while now[place] < limits[place]:
            now[place] = min(2 * now[place], limits[place])
            yield (now[0], now[1], now[2])


def exponential(rate: float, longest: int) -> list[tuple[int, ...]]:
    """Completions of 1 to `longest` tokens that end with this probability after each token, at 64 quantiles."""
    quantiles = [(k + 0.5) / 64 for k in range(64)]
    return [(longest if rate == 0 else max(1, min(longest, round(-math.log(q) / rate))),) for q in quantiles]


def share(found: int, of: int, group: int) -> float:
    """As found among these rows, and in a group more that has it and one that has not; a group of 0: exactly."""
    return (found + group) / (of + 2 * group)
