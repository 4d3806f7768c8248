"""Surrogates, the critic's loss, KL estimators, ratios and the mismatch correction, per token."""

import math
from itertools import pairwise
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from rlvr.algorithms.losses import (
    MAX_LOG_RATIO,
    Estimator,
    bounded_log_ratio,
    clip,
    clipped_value_loss,
    detached_clip,
    kl_estimate,
    mismatch_factor,
    mismatch_weight,
    sequence_log_ratio,
)
from rlvr.types import Predictions
from tests.unit.algorithms.cases import algorithm, batch_of, changed

INF = float("inf")

# (ratio, advantage) -> (loss, d loss / d log ratio), by hand, for clip_low 0.2 and clip_high 0.5
TOKEN_CLIP = [
    (0.5, 1.0, -0.5, -0.5),
    (0.9, 1.0, -0.9, -0.9),
    (1.4, 1.0, -1.4, -1.4),  # inside clip_high, outside clip_low
    (1.6, 1.0, -1.5, 0.0),  # clipped above
    (0.5, -2.0, 1.6, 0.0),  # clipped below
    (0.7, -2.0, 1.6, 0.0),  # outside clip_low, inside clip_high
    (0.9, -2.0, 1.8, 1.8),
    (1.6, -2.0, 3.2, 3.2),
    (5.0, -2.0, 10.0, 10.0),  # no dual clip
]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [(5.0, -1.0, 3.0, 0.0), (2.0, -1.0, 2.0, 1.0), (0.5, -1.0, 0.8, 0.0), (5.0, 1.0, -1.3, 0.0), (5.0, 0.0, 0.0, 0.0)],
)
def test_a_dual_clip_bounds_the_loss_of_bad_tokens(ratio: float, advantage: float, loss: float, slope: float):
    """arXiv:1912.09729, eq. 5, with c = 3, low 0.2 and high 0.3."""
    moving = torch.tensor([[ratio]], dtype=torch.float64, requires_grad=True)
    found = clip(moving, torch.tensor([[advantage]]).double(), 0.2, 0.3, dual_clip=3.0)
    found.loss.sum().backward()
    assert found.loss.item() == pytest.approx(loss)
    assert moving.grad.item() == pytest.approx(slope)
    assert found.clipped_high.item() == (ratio == 5 and advantage != 0)


@pytest.mark.parametrize(("ratio", "advantage", "loss", "slope"), TOKEN_CLIP)
def test_pitfall_22_table_of_ratio_and_advantage(ratio: float, advantage: float, loss: float, slope: float):
    log_ratio = torch.tensor([[ratio]], dtype=torch.float64).log().requires_grad_()
    found = clip(log_ratio.exp(), torch.tensor([[advantage]], dtype=torch.float64), clip_low=0.2, clip_high=0.5)
    found.loss.sum().backward()
    assert found.loss.item() == pytest.approx(loss)
    assert log_ratio.grad.item() == pytest.approx(slope)
    assert found.ratio.item() == pytest.approx(ratio)
    assert found.clipped_high.item() == (slope == 0 and advantage > 0)
    assert found.clipped_low.item() == (slope == 0 and advantage < 0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [(0.5, 1.0, -0.5), (1.4, 1.0, -1.4), (9.0, 1.0, -1.5), (0.1, -2.0, 0.2), (9.0, -2.0, 3.0)],
)
def test_cispo_gradient_is_the_clipped_ratio_times_advantage(ratio: float, advantage: float, slope: float):
    logprobs = torch.tensor([[-0.7]], dtype=torch.float64, requires_grad=True)
    moving = (logprobs - logprobs.detach()).exp() * ratio
    found = detached_clip(moving, logprobs, torch.tensor([[advantage]]).double(), clip_high=0.5)
    found.loss.sum().backward()
    assert found.loss.item() == pytest.approx(slope * -0.7)
    assert logprobs.grad.item() == pytest.approx(slope)
    assert found.clipped_high.item() == (ratio > 1.5)


def test_gspo_has_the_dual_clip_too():
    log_ratio, mask = torch.full((1, 3), math.log(5.0)).double(), torch.ones(1, 3, dtype=torch.bool)
    advantages = -torch.ones(1, 3).double()
    for dual_clip, loss in ((None, 5.0), (3.0, 3.0)):
        found = algorithm("gspo", dual_clip=dual_clip).algorithm.surrogate(log_ratio, log_ratio, advantages, mask)
        assert found.loss.tolist() == [pytest.approx([loss] * 3)]


def test_gspo_gradient_shares_one_ratio_over_the_row():
    log_ratio = torch.tensor([[0.3, 9.0, -0.1, 0.1]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False, True, True]])
    advantages = mask * torch.tensor(2.0).double()
    found = algorithm("gspo").algorithm.surrogate(log_ratio, log_ratio, advantages, mask)
    (found.loss * mask / 3).sum().backward()
    ratio = torch.tensor(0.1).double().exp()
    torch.testing.assert_close(found.ratio[mask], ratio.expand(3))
    expected = torch.tensor([[1.0, 0.0, 1.0, 1.0]]).double() * -2 * ratio / 3
    torch.testing.assert_close(log_ratio.grad, expected)


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "slope"),
    [
        (1.0, 1.0, 3.0, 2.0, -2.0),
        (1.1, 1.0, 3.0, 1.805, -1.9),  # inside the clip range
        (2.0, 1.0, 3.0, 1.62, 0.0),  # moved too far towards the target: clipped at 1.2, no gradient
        (0.0, 1.0, -1.0, 1.62, 0.0),  # the same downwards: clipped at 0.8
        (0.0, 1.0, 3.0, 4.5, -3.0),  # moved away from it: the unclipped error is the larger one
    ],
)
def test_pitfall_22_clipped_value_loss_by_hand(value: float, old: float, target: float, loss: float, slope: float):
    values = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    found = clipped_value_loss(values, torch.tensor(old), torch.tensor(target), value_clip=0.2)
    found.backward()
    assert found.item() == pytest.approx(loss)
    assert values.grad.item() == pytest.approx(slope, abs=1e-6)
    plain = clipped_value_loss(values, torch.tensor(old), torch.tensor(target), value_clip=None)
    assert plain.item() == pytest.approx((value - target) ** 2 / 2)


# a categorical policy that is small enough to enumerate
START = torch.tensor([1.0, -0.5, 0.2, 0.0], dtype=torch.float64)
REFERENCE = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64).log()


def exact_kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of two categorical distributions given as log-probabilities."""
    return (p.exp() * (p - q)).sum()


def enumerated_gradient(logits: Tensor, name: str = "grpo", **settings: Any) -> Tensor:
    """E over all tokens, weighted by their probability, of the product's gradient with nothing but the KL term."""
    logits = logits.clone().requires_grad_()
    logprobs = logits.log_softmax(0)[:, None]  # [4 rows, 1 token]: row i sampled token i
    now = logprobs.detach()
    batch = batch_of([[1]] * 4, [0.0] * 4, old_logprobs=now, behavior_logprobs=now)
    chosen = algorithm(name, kl_coef=1.0, num_epochs=1, **settings)
    scored = chosen.advantages(batch.with_columns(reference_logprobs=REFERENCE[:, None]))
    chosen.loss(scored, now.exp(), Predictions(logprobs, torch.zeros(4, 1).double())).loss.backward()
    return logits.grad


def gradient_of(divergence: str, logits: Tensor) -> Tensor:
    """Of KL(pi || ref) ("reverse") or KL(ref || pi) ("forward"), exactly."""
    logits = logits.clone().requires_grad_()
    p = logits.log_softmax(0)
    (exact_kl(p, REFERENCE) if divergence == "reverse" else exact_kl(REFERENCE, p)).backward()
    return logits.grad


def test_pitfall_15_the_enumerated_gradient_is_as_documented():
    reverse, forward = gradient_of("reverse", START), gradient_of("forward", START)
    torch.testing.assert_close(enumerated_gradient(START, kl_estimator="k1"), torch.zeros(4).double())
    torch.testing.assert_close(enumerated_gradient(START, kl_estimator="k2"), reverse)
    torch.testing.assert_close(enumerated_gradient(START, kl_estimator="k3"), forward)
    assert (forward - reverse).abs().max() > 0.05
    for estimator in ("k1", "k3"):
        torch.testing.assert_close(enumerated_gradient(START, kl_estimator=estimator, kl_unbiased=True), reverse)


# TRL 1.16.0, GRPOTrainer._compute_loss: loss_type="dapo", beta=0.3, epsilon=0.2, two rows with advantages 1 and -0.5
LOGPROBS = torch.tensor([[-0.5, -1.0, -2.0], [-0.3, -0.7, -1.1]], dtype=torch.float64)
OF_TRL = {  # use_bias_correction_kl: loss, gradient
    False: (
        -0.16543443365796187,
        [[-0.16771115531438988, -0.15760320432056577, -0.23672032776227883],
         [0.07807478742955096, 0.12370360444773185, 0.10178356318001415]],
    ),
    True: (
        -0.16654781920817027,
        [[-0.16209173465109494, -0.15666666666666668, -0.19604810724112456],
         [0.07833333333333334, 0.14735612241008633, 0.10178356318001415]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("unbiased", [False, True])
def test_the_kl_in_the_loss_is_that_of_trl(unbiased: bool):
    old = torch.tensor([[-0.6, -1.0, -1.9], [-0.3, -0.8, -1.3]]).double()
    reference = torch.tensor([[-0.9, -1.2, -1.0], [-0.2, -1.7, -1.1]]).double()
    advantages = torch.tensor([[1.0], [-0.5]]).double().expand(2, 3)
    batch = batch_of([[1] * 3] * 2, [0.0] * 2, old_logprobs=old, behavior_logprobs=old)
    batch = changed(batch, reference_logprobs=reference, advantages=advantages)
    chosen = algorithm("grpo", kl_coef=0.3, kl_estimator="k3", kl_unbiased=unbiased, num_epochs=2)
    logprobs = LOGPROBS.clone().requires_grad_()
    found = chosen.loss(batch, chosen.loss_weights(batch), Predictions(logprobs, torch.zeros(2, 3).double())).loss
    found.backward()
    loss, gradient = OF_TRL[unbiased]
    assert found.item() == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(logprobs.grad, torch.tensor(gradient).double(), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_pitfall_15_descending_the_loss_lowers_the_exact_kl(estimator: str):
    logits = START.clone()
    values = [exact_kl(logits.log_softmax(0), REFERENCE).item()]
    for _ in range(200):
        logits = logits - 0.5 * enumerated_gradient(logits, kl_estimator=estimator)
        values.append(exact_kl(logits.log_softmax(0), REFERENCE).item())
    assert values[0] > 0.2
    assert values[-1] < 1e-4
    assert all(later < earlier for earlier, later in pairwise(values[:20]))


def test_pitfall_15_k1_in_the_reward_is_the_reverse_kl():
    """Enumerated policy gradient: one row per token, weighted by its probability; the baseline is the same for all."""
    found = enumerated_gradient(START, "dr_grpo", kl_estimator="k1", kl_placement="reward")
    torch.testing.assert_close(found, gradient_of("reverse", START))


def test_estimates_in_expectation():
    p = START.log_softmax(0)
    mean = {name: (p.exp() * kl_estimate(p - REFERENCE, name)).sum() for name in get_args(Estimator)}
    torch.testing.assert_close(mean["k1"], exact_kl(p, REFERENCE))
    torch.testing.assert_close(mean["k3"], exact_kl(p, REFERENCE))
    assert abs(mean["k2"] - exact_kl(p, REFERENCE)) > 1e-3


@pytest.mark.parametrize(("estimator", "value"), [("k1", 0.6931472), ("k2", 0.2402265), ("k3", 0.5 - 1 + 0.6931472)])
def test_kl_estimates_at_log_two(estimator: Estimator, value: float):
    assert kl_estimate(torch.tensor(2.0).log(), estimator).item() == pytest.approx(value)


@pytest.mark.parametrize("num_tokens", [3, 300])
def test_pitfall_23_the_sequence_ratio_is_the_exp_of_the_mean(num_tokens: int):
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
def test_pitfall_23_token_and_sequence_weights_by_hand(num_tokens: int, product: float):
    log_weight = torch.full((2, 400), 5.0, dtype=torch.float64)  # what is masked counts nowhere
    mask = torch.zeros(2, 400, dtype=torch.bool)
    mask[:, 10 : 10 + num_tokens] = True
    log_weight[0, mask[0]] = 0.01
    log_weight[1, mask[1]] = -0.01
    for row, sign in ((0, 1), (1, -1)):
        expected = {"truncate": 1.010050167, "geometric_mask": 1.010050167, "sequence_mask": product}
        for correction, value in expected.items():
            found = mismatch_weight(log_weight, mask, correction)[row, mask[row]]
            torch.testing.assert_close(found, torch.full_like(found, value**sign), rtol=1e-7, atol=0)


def test_pitfall_23_a_product_that_overflows_is_bounded():
    found = mismatch_weight(torch.full((1, 300), 20.0), torch.ones(1, 300, dtype=torch.bool), "sequence_truncate")
    assert found.isfinite().all()
    assert found[0, 0].item() == pytest.approx(math.exp(MAX_LOG_RATIO), rel=1e-5)


def test_bounds_and_their_count():
    p = torch.tensor([-1.0, -INF, -1.0, -INF, -1.0, -500.0])
    q = torch.tensor([-1.5, -1.0, -INF, -INF, -40.0, -500.5])
    log_ratio, clamped = bounded_log_ratio(p, q)
    assert log_ratio.tolist() == [0.5, -MAX_LOG_RATIO, MAX_LOG_RATIO, 0.0, MAX_LOG_RATIO, 0.5]
    assert clamped.tolist() == [False, True, True, False, True, False]
    assert math.isfinite(log_ratio.exp().max().item())


def test_pitfall_23_each_correction_has_its_weight_and_limit():
    log_weight = torch.tensor([[2.0, 0.6, 1.0]]).log()  # product 1.2, mean 1.0627
    mask = torch.ones(1, 3, dtype=torch.bool)
    expected = {
        "none": [1, 1, 1],
        "truncate": pytest.approx([1.1, 0.6, 1.0]),
        "mask": pytest.approx([0, 0.6, 1.0]),
        "sequence_truncate": pytest.approx([1.1] * 3),
        "sequence_mask": [0, 0, 0],
        "geometric_mask": pytest.approx([1.2 ** (1 / 3)] * 3),
        "geometric_mask_tokens": pytest.approx([2.0, 0.6, 1.0]),
    }
    for name, factors in expected.items():
        assert mismatch_factor(mismatch_weight(log_weight, mask, name), log_weight, name, 1.1)[0].tolist() == factors


def test_corrections_by_hand():
    weight = torch.tensor([0.1, 0.49, 0.5, 1.0, 2.0, 2.5])
    for correction, factors in {
        "none": [1] * 6,
        "truncate": [0.1, 0.49, 0.5, 1.0, 2.0, 2.0],
        "mask": [0.1, 0.49, 0.5, 1.0, 2.0, 0],
        "geometric_mask": [0, 0, 0.5, 1.0, 2.0, 0],
        "icepop": [0, 0, 0.5, 1.0, 2.0, 0],
    }.items():
        assert mismatch_factor(weight, weight.log(), correction, 2.0).tolist() == pytest.approx(factors)


def test_seq_mask_tis_is_that_of_openrlhf():
    """As openrlhf/models/loss.py, `seq-mask-tis`: rows whose mean log weight is outside of the bounds go, the tokens of
    the others have their own untruncated weight. Bounds 1 / 1.2 and 1.2."""
    log_weight = 0.6 * torch.randn(64, 9, generator=torch.Generator().manual_seed(0)).double()
    mask = torch.rand(64, 9, generator=torch.Generator().manual_seed(1)) < 0.7
    mean = ((log_weight * mask).sum(1) / mask.sum(1)).exp()
    kept = (mean >= 1 / 1.2) & (mean <= 1.2)
    assert 10 < kept.sum() < 54
    weight = mismatch_weight(log_weight, mask, "geometric_mask_tokens")
    found = mismatch_factor(weight, log_weight, "geometric_mask_tokens", 1.2)
    torch.testing.assert_close(found, kept[:, None] * log_weight.exp())
