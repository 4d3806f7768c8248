"""Lines through measurements."""

import pytest

from rlvr.commands.plan.fits import UNKNOWN_NOISE, exponential, larger, line, noise, share


def test_a_line_is_found() -> None:
    inputs = [(1.0, tokens) for tokens in (10, 20, 40)]
    assert line(inputs, [2 + 0.5 * tokens for _, tokens in inputs]) == pytest.approx([2, 0.5])


def test_factors_are_never_negative() -> None:
    """More tokens in less time: noise."""
    base, rate = line([(1.0, 10), (1.0, 20)], [2.0, 1.0])
    assert (base, rate) == (pytest.approx(1.5), 0.0)


def test_an_input_that_never_occurs_costs_nothing() -> None:
    assert line([(1.0, 0.0), (1.0, 0.0)], [3.0, 3.0]) == pytest.approx([3.0, 0.0])


def test_large_and_small_inputs_together() -> None:
    inputs = [(1.0, rows, rows * context) for rows in (1, 8, 64) for context in (10, 1000, 100_000)]
    wanted = [1e-2, 1e-4, 1e-9]
    seconds = [sum(a * b for a, b in zip(wanted, row, strict=True)) for row in inputs]
    assert line(inputs, seconds) == pytest.approx(wanted)


def test_lengths_from_completions_that_were_cut() -> None:
    """One of twenty tokens was an end: 20 tokens in the mean, less what the limit cuts off."""
    lengths = [n for (n,) in exponential(1 / 20, 100)]
    assert sum(lengths) / len(lengths) == pytest.approx(20 * (1 - 2.718 ** (-100 / 20)), rel=0.05)
    assert (min(lengths), max(lengths)) == (1, 97)
    assert set(exponential(0.0, 100)) == {(100,)}


def test_sizes_grow_one_after_the_other() -> None:
    assert [*larger((1, 2, 8), (1, 0), (3, 5, 64))] == [(1, 4, 8), (1, 5, 8), (2, 5, 8), (3, 5, 8)]
    assert [*larger((3, 5, 8), (2,), (3, 5, 64))] == [(3, 5, 16), (3, 5, 32), (3, 5, 64)]
    assert [*larger((3, 5, 64), (1, 0, 2), (3, 5, 64))] == []


def test_the_noise_is_that_of_steps_of_one_size() -> None:
    small, large = (1, 2, 8), (4, 8, 64)
    assert noise([(small, 1.0), (large, 9.0)]) == UNKNOWN_NOISE
    assert noise([(small, 1.0), (small, 1.0), (large, 9.0)]) == 0.0
    apart = [(small, 2.718281828), (small, 1.0), (large, 27.18281828), (large, 10.0), ((1, 1, 1), 5.0)]
    assert noise(apart) == pytest.approx(0.5**0.5)


def test_a_share_of_few_rows_is_never_none_or_all() -> None:
    """Unless each row has it by its nature, as with a KL term."""
    assert share(0, 16, 8) == 8 / 32
    assert share(16, 16, 8) == 24 / 32
    assert share(16, 16, 0) == 1.0
