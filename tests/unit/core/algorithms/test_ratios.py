"""Bounded ratios, sequence ratios, mismatch weights."""

import math

import pytest
import torch

from rlvr.core.algorithms.ratios import (
    CORRECTIONS,
    MAX_LOG_RATIO,
    banded_weight,
    bounded_log_ratio,
    geometric_weight,
    masked_weight,
    mismatch_log_weight,
    sequence_log_ratio,
    sequence_weight,
    token_weight,
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


@pytest.mark.parametrize(("num_tokens", "product"), [(3, 1.0304545), (300, 20.0855369)])
def test_pitfall_23_weights_of_tokens_sequences_and_their_mean_by_hand(num_tokens: int, product: float):
    log_weight = torch.full((2, 400), 5.0, dtype=torch.float64)  # what is masked counts nowhere
    mask = torch.zeros(2, 400, dtype=torch.bool)
    mask[:, 10 : 10 + num_tokens] = True
    log_weight[0, mask[0]] = 0.01
    log_weight[1, mask[1]] = -0.01
    for row, sign in ((0, 1), (1, -1)):
        expected = {token_weight: 1.010050167, geometric_weight: 1.010050167, sequence_weight: product}
        for function, value in expected.items():
            found = function(log_weight, mask)[row, mask[row]]
            torch.testing.assert_close(found, torch.full_like(found, value**sign), rtol=1e-7, atol=0)


def test_pitfall_23_a_product_that_overflows_is_bounded():
    found = sequence_weight(torch.full((1, 300), 20.0), torch.ones(1, 300, dtype=torch.bool))
    assert found.isfinite().all()
    assert found[0, 0].item() == pytest.approx(math.exp(MAX_LOG_RATIO), rel=1e-5)


def test_pitfall_23_each_correction_has_the_weight_and_the_limit_of_its_name():
    log_weight = torch.tensor([[2.0, 0.6, 1.0]]).log()  # product 1.2, mean 1.0627
    mask = torch.ones(1, 3, dtype=torch.bool)
    found = {}
    for name, correction in CORRECTIONS.items():
        found[name] = correction.factor(correction.weight(log_weight, mask), 1.1)[0].tolist()
    assert found == {
        "none": [1, 1, 1],
        "truncate": pytest.approx([1.1, 0.6, 1.0]),
        "mask": pytest.approx([0, 0.6, 1.0]),
        "sequence_truncate": pytest.approx([1.1] * 3),
        "sequence_mask": [0, 0, 0],
        "geometric_mask": pytest.approx([1.2 ** (1 / 3)] * 3),
    }


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
    assert uncorrected(weight, 2.0).tolist() == [1, 1, 1, 1]
    torch.testing.assert_close(truncated_weight(weight, 2.0), torch.tensor([0.1, 1.0, 2.0, 2.0]))
    torch.testing.assert_close(masked_weight(weight, 2.0), torch.tensor([0.1, 1.0, 2.0, 0.0]))
    torch.testing.assert_close(banded_weight(weight, 2.0), torch.tensor([0.0, 1.0, 2.0, 0.0]))
    assert banded_weight(torch.tensor([0.5, 0.49]), 2.0).tolist() == [0.5, 0.0]
