"""Bounded ratios, sequence ratios, mismatch weights."""

import math

import pytest
import torch

from rlvr.algorithms.ratios import (
    MAX_LOG_RATIO,
    bounded_log_ratio,
    masked_weight,
    mismatch_log_weight,
    sequence_log_ratio,
    truncated_weight,
    uncorrected,
)

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("num_tokens", [3, 300])
def test_pitfall_23_sequence_ratio_is_the_exponential_of_the_mean(num_tokens: int):
    log_ratio = torch.zeros(2, 400, dtype=torch.float64)
    log_ratio[0, 10 : 10 + num_tokens] = 0.01
    log_ratio[1, 10] = 0.3
    mask = torch.zeros(2, 400, dtype=torch.bool)
    mask[:, 10 : 10 + num_tokens] = True
    found = sequence_log_ratio(log_ratio, mask).exp()
    torch.testing.assert_close(found[0, mask[0]], torch.full((num_tokens,), 1.010050167, dtype=torch.float64))
    by_hand = {3: 1.105170918, 300: 1.0010005}[num_tokens]
    torch.testing.assert_close(found[1, 0].item(), by_hand, rtol=1e-8, atol=0)
    total = (log_ratio * mask).sum(1).exp()[0].item()  # what exp(sum) would give
    assert total == pytest.approx({3: 1.0304545, 300: 20.0855369}[num_tokens])


def test_bounds_and_their_count():
    p = torch.tensor([-1.0, -INF, -1.0, -INF, -1.0, -500.0])
    q = torch.tensor([-1.5, -1.0, -INF, -INF, -40.0, -500.5])
    log_ratio, clamped = bounded_log_ratio(p, q)
    assert log_ratio.tolist() == [0.5, -MAX_LOG_RATIO, MAX_LOG_RATIO, 0.0, MAX_LOG_RATIO, 0.5]
    assert clamped.tolist() == [False, True, True, False, True, False]
    assert math.isfinite(log_ratio.exp().max().item())


def test_a_nan_of_the_model_is_not_hidden():
    log_ratio, _ = bounded_log_ratio(torch.tensor([NAN]), torch.tensor([-1.0]))
    assert log_ratio.isnan().all()


def test_a_missing_behavior_logprob_counts_as_equal_and_is_counted():
    log_weight, odd = mismatch_log_weight(torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([NAN, -INF, -1.5]))
    assert log_weight.tolist() == [0.0, MAX_LOG_RATIO, 0.5]
    assert odd.tolist() == [True, True, False]


def test_corrections_by_hand():
    weight = torch.tensor([0.1, 1.0, 2.0, 2.5])
    assert uncorrected(weight).tolist() == [1, 1, 1, 1]
    torch.testing.assert_close(truncated_weight(weight, mismatch_cap=2.0), torch.tensor([0.1, 1.0, 2.0, 2.0]))
    torch.testing.assert_close(masked_weight(weight, mismatch_cap=2.0), torch.tensor([0.1, 1.0, 2.0, 0.0]))
