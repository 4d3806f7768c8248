import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from rlvr.evaluation.intervals import Interval, bootstrap, wilson
from tests.variants import variants


@pytest.mark.parametrize(("correct", "n"), [(0, 10), (1, 10), (5, 10), (10, 10), (0, 1), (1, 1), (475, 500), (3, 7)])
def test_wilson_solves_its_defining_equation(correct: int, n: int) -> None:
    """The bounds are the p with |p_hat - p| = z sqrt(p (1 - p) / n): the score test does not reject inside them."""
    interval = wilson(correct, n)
    z = stats.norm.ppf(0.975)
    for bound in (interval.low, interval.high):
        if 0 < bound < 1:
            assert abs(correct / n - bound) == pytest.approx(z * np.sqrt(bound * (1 - bound) / n))
    assert 0 <= interval.low <= interval.value <= interval.high <= 1
    assert interval.low < interval.high


@pytest.mark.parametrize(
    ("n", "rates", "high"),
    [(40, np.linspace(0.02, 0.98, 49), 0.965), *((n, (0.1, 0.3, 0.5, 0.8), 0.96) for n in (200, 201, 350, 500, 1000))],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_pitfall_38_wilson_covers_the_truth_95_times_in_100(n: int, rates: Sequence[float], high: float) -> None:
    """Exact, no simulation: the chance of every outcome, summed where its interval holds the truth."""
    intervals = [wilson(correct, n) for correct in range(n + 1)]
    coverage = []
    for p in rates:
        chances = stats.binom.pmf(np.arange(n + 1), n, p)
        coverage.append(sum(q for q, i in zip(chances, intervals, strict=True) if i.low <= p <= i.high))
    assert 0.94 <= np.mean(coverage) <= high


@pytest.mark.slow
@pytest.mark.parametrize("num_samples", variants([4, 1, 8]))
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (4.0, 4.0), (0.1, 0.9), (9.0, 0.3)])
def test_pitfall_38_the_bootstrap_covers_the_truth_95_in_100(a: float, b: float, num_samples: int) -> None:
    """600 evaluations on 200 examples, whose own rates are Beta(a, b): easy and hard ones, alike, rare, perfect."""
    rng = np.random.default_rng(2)
    rates = rng.beta(a, b, size=(600, 200))
    values = rng.binomial(num_samples, rates) / num_samples
    intervals = [bootstrap(of_one, seed=number, num_resamples=600) for number, of_one in enumerate(values)]
    coverage = np.mean([interval.low <= a / (a + b) <= interval.high for interval in intervals])
    assert 0.93 <= coverage <= 0.97


def test_bootstrap_agrees_with_the_enumeration_of_all_resamples() -> None:
    values = [0.0, 0.25, 0.5, 1.0, 1.0]
    means = [np.mean(resample) for resample in itertools.product(values, repeat=len(values))]
    low, high = np.quantile(means, [0.025, 0.975])
    interval = bootstrap(values, seed=0, num_resamples=20_000)
    assert interval.value == pytest.approx(np.mean(values))
    assert (interval.low, interval.high) == (pytest.approx(low, abs=0.03), pytest.approx(high, abs=0.03))


@pytest.mark.parametrize("num_distinct", [32, 33])
def test_the_bootstrap_is_that_of_numpy_with_the_same_seed(num_distinct: int) -> None:
    """Up to 32 distinct values by their counts, beyond by examples; numbers that were published stay what they are."""
    values = np.linspace(0.0, 1.0, num_distinct)
    values = np.concatenate([values, values[:5]])
    for found, seed, num in ((bootstrap(values), 0, 2000), (bootstrap(values, seed=3, num_resamples=100), 3, 100)):
        rng = np.random.default_rng(seed)
        if num_distinct <= 32:
            distinct, counts = np.unique(values, return_counts=True)
            means = rng.multinomial(len(values), counts / len(values), num) @ distinct / len(values)
        else:
            means = np.array([values[rng.integers(0, len(values), len(values))].mean() for _ in range(num)])
        assert found.value == values.mean()
        assert [found.low, found.high] == np.quantile(means, [(1 - 0.95) / 2, (1 + 0.95) / 2]).tolist()


@pytest.mark.parametrize(
    ("one", "other", "below"),
    [((0.1, 0.3), (0.31, 0.5), True), ((0.1, 0.3), (0.3, 0.5), False), ((0.4, 0.6), (0.1, 0.3), False)],
)
def test_intervals_that_touch_are_not_below_each_other(
    one: tuple[float, float], other: tuple[float, float], below: bool
) -> None:
    first, second = (Interval(value=low, low=low, high=high) for low, high in (one, other))
    assert first.is_below(second) == below
    assert str(first) == f"{one[0]:.3f} ({one[0]:.3f} to {one[1]:.3f})"


def test_equal_values_between_none_and_all_have_no_width() -> None:
    assert bootstrap([0.25] * 8) == Interval(value=0.25, low=0.25, high=0.25)


def test_bootstrap_is_a_function_of_its_seed() -> None:
    values = np.random.default_rng(0).random(50)
    assert bootstrap(values, seed=3) == bootstrap(values, seed=3)
    assert bootstrap(values, seed=3) != bootstrap(values, seed=4)


def test_bootstrap_over_examples_is_wider_than_over_samples() -> None:
    """25 examples with 8 equal samples each hold 25 facts, not 200."""
    examples = [1.0] * 15 + [0.0] * 10
    over_examples = bootstrap(examples, seed=0)
    over_samples = bootstrap(np.repeat(examples, 8), seed=0)
    ratio = (over_examples.high - over_examples.low) / (over_samples.high - over_samples.low)
    assert ratio == pytest.approx(np.sqrt(8), rel=0.1)


def test_pitfall_38_bootstrap_of_a_perfect_score_has_a_width() -> None:
    assert bootstrap([1.0] * 20, seed=0) == wilson(20, 20)
    assert bootstrap([0.0] * 20, seed=0) == wilson(0, 20)
