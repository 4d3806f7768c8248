import itertools
from math import comb

import numpy as np
import pytest

from rlvr.evaluation.intervals import holm, mcnemar, paired_bootstrap, wilson


def test_pitfall_38_mcnemar_is_the_share_of_uneven_throws() -> None:
    """All 2^n outcomes of n fair coins, counted; they are symmetric, so no less likely means no more even."""
    for b, c in [*itertools.product(range(7), repeat=2), (40, 61), (0, 30)]:
        n = b + c
        as_uneven = sum(comb(n, heads) for heads in range(n + 1) if abs(heads - n / 2) >= abs(b - n / 2))
        assert mcnemar(b, c) == pytest.approx(as_uneven / 2**n), (b, c)


def test_paired_bootstrap_agrees_with_all_resamples() -> None:
    first, second = np.array([0.0, 1.0, 0.5, 0.0, 1.0]), np.array([1.0, 1.0, 0.25, 1.0, 0.0])
    means = [np.mean(list(drawn)) for drawn in itertools.product(second - first, repeat=5)]
    low, high = np.quantile(means, [0.025, 0.975])
    found = paired_bootstrap(first, second, seed=0, num_resamples=50_000)
    assert found.value == pytest.approx((second - first).mean())
    assert (found.low, found.high) == (pytest.approx(low, abs=0.02), pytest.approx(high, abs=0.02))


def test_pitfall_38_shared_difficulty_widens_no_difference() -> None:
    """Only 10 of 400 examples tell the models apart: drawing the models apart would not see any difference."""
    first = np.array([1.0] * 200 + [0.0] * 200)
    second = first.copy()
    second[200:210] = 1.0
    found = paired_bootstrap(first, second, seed=0)
    assert 0 < found.low < 0.025 < found.high < 0.05


@pytest.mark.slow
def test_pitfall_38_the_paired_bootstrap_covers_the_truth() -> None:
    """1,000 evaluations of two models on 200 examples: one answer each, and four samples each."""
    rng = np.random.default_rng(5)
    for num_samples in (1, 4):
        covered = []
        for _ in range(1000):
            ability = rng.beta(1.0, 1.0, 200)
            first = rng.binomial(num_samples, ability) / num_samples
            second = rng.binomial(num_samples, ability**0.8) / num_samples  # E[x^0.8] = 1 / 1.8 for a uniform x
            found = paired_bootstrap(first, second, seed=int(rng.integers(2**31)), num_resamples=1000)
            covered.append(found.low <= 1 / 1.8 - 0.5 <= found.high)
        assert 0.93 <= np.mean(covered) <= 0.97, num_samples


def test_pitfall_38_equal_differences_still_have_a_width() -> None:
    same = paired_bootstrap([1.0, 0.0, 1.0], [1.0, 0.0, 1.0], seed=0)
    assert (same.low, same.value, same.high) == (-wilson(0, 3).high, 0.0, wilson(0, 3).high)
    always = paired_bootstrap([0.0] * 50, [1.0] * 50, seed=0)
    assert (always.value, always.high) == (1.0, 1.0)
    assert always.low == pytest.approx(wilson(50, 50).low)


def test_a_paired_bootstrap_draws_five_thousand_times_with_the_seed_of_all() -> None:
    first, second = np.random.default_rng(0).random((2, 40))
    assert paired_bootstrap(first, second) == paired_bootstrap(first, second, seed=0, num_resamples=5000)
    assert paired_bootstrap(first, second) != paired_bootstrap(first, second, seed=0, num_resamples=5001)


@pytest.mark.parametrize(("first", "second"), [([0.5], [0.5, 0.5]), ([], [])])
def test_a_paired_bootstrap_needs_pairs(first: list[float], second: list[float]) -> None:
    with pytest.raises(ValueError, match=r"."):
        paired_bootstrap(first, second)


def test_equal_differences_end_at_one() -> None:
    """Nine tenths of a point for each of two examples: the width of what was never seen reaches beyond 1."""
    found = paired_bootstrap([0.0, 0.0], [0.9, 0.9])
    assert (found.value, found.high) == (0.9, 1.0)
    assert found.low == pytest.approx(0.9 - wilson(0, 2).high)
    found = paired_bootstrap([0.9, 0.9], [0.0, 0.0])
    assert (found.value, found.low) == (-0.9, -1.0)
    assert found.high == pytest.approx(wilson(0, 2).high - 0.9)


def test_paired_bootstrap_is_a_function_of_its_seed() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.random(4000), rng.random(4000)
    one, again = (paired_bootstrap(first, second, seed=3) for _ in range(2))
    assert one == again
    assert one.high - one.low == pytest.approx(2 * 1.96 * np.std(second - first) / np.sqrt(4000), rel=0.05)


def test_pitfall_38_many_comparisons_need_smaller_p_values() -> None:
    """The textbook's steps: smallest x 4, next x 3, never below the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert (holm([0.9, 0.8]), holm([0.03]), holm([])) == ((1.0, 1.0), (0.03,), ())


def test_holm_agrees_with_statsmodels() -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p_values = np.random.default_rng(0).random(30) ** 3
    assert holm(list(p_values)) == pytest.approx(multitest.multipletests(p_values, method="holm")[1])
