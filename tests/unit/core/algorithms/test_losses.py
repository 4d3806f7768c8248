"""Surrogates and the critic's loss, per token."""

import pytest
import torch

from rlvr.core.algorithms.losses import clipped_value_loss, detached_clip, sequence_clip, token_clip

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


@pytest.mark.parametrize(("ratio", "advantage", "loss", "slope"), TOKEN_CLIP)
def test_pitfall_22_table_of_ratio_and_advantage(ratio: float, advantage: float, loss: float, slope: float):
    log_ratio = torch.tensor([[ratio]], dtype=torch.float64).log().requires_grad_()
    advantages, mask = torch.tensor([[advantage]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    for surrogate in (token_clip, sequence_clip):  # the same for a sequence of one token
        log_ratio.grad = None
        found = surrogate(log_ratio, log_ratio, advantages, mask, clip_low=0.2, clip_high=0.5)
        found.loss.sum().backward()
        assert log_ratio.grad is not None
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
    log_ratio = logprobs - logprobs.detach() + torch.tensor(ratio, dtype=torch.float64).log()
    found = detached_clip(
        log_ratio, logprobs, torch.tensor([[advantage]]).double(), torch.ones(1, 1).bool(), clip_high=0.5
    )
    found.loss.sum().backward()
    assert logprobs.grad is not None
    assert found.loss.item() == pytest.approx(slope * -0.7)
    assert logprobs.grad.item() == pytest.approx(slope)
    assert found.clipped_high.item() == (ratio > 1.5)


def test_gspo_gradient_shares_one_ratio_over_the_row():
    log_ratio = torch.tensor([[0.3, 9.0, -0.1, 0.1]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False, True, True]])
    advantages = mask * torch.tensor(2.0).double()
    found = sequence_clip(log_ratio, log_ratio, advantages, mask, clip_low=0.2, clip_high=0.5)
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
    assert values.grad is not None
    assert found.item() == pytest.approx(loss)
    assert values.grad.item() == pytest.approx(slope, abs=1e-6)
    plain = clipped_value_loss(values, torch.tensor(old), torch.tensor(target), value_clip=None)
    assert plain.item() == pytest.approx((value - target) ** 2 / 2)
