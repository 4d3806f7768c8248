"""KL estimators on a categorical policy small enough to enumerate."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from rlvr.core.algorithms.kl import ESTIMATORS, k1, k2, k3
from tests.unit.core.algorithms.cases import algorithm, batch_of

START = torch.tensor([1.0, -0.5, 0.2, 0.0], dtype=torch.float64)
REFERENCE = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64).log()


def exact_kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of two categorical distributions given as log-probabilities."""
    return (p.exp() * (p - q)).sum()


def enumerated_loss_gradient(estimator: str, logits: Tensor) -> Tensor:
    """E over all tokens, weighted by their probability, of the product's gradient with only the KL term in the loss."""
    logits = logits.clone().requires_grad_()
    logprobs = logits.log_softmax(0)[:, None]  # [4 rows, 1 token]: row i sampled token i
    now = logprobs.detach()
    batch = batch_of([[1]] * 4, [0.0] * 4, old_logprobs=now, behavior_logprobs=now)
    batch = replace(batch, reference_logprobs=REFERENCE[:, None], advantages=torch.zeros(4, 1).double())
    chosen = algorithm("grpo", kl_coef=1.0, kl_estimator=estimator, num_epochs=1)
    chosen.loss(batch, now.exp(), logprobs, torch.zeros(4, 1).double(), None).loss.backward()
    assert logits.grad is not None
    return logits.grad


def gradient_of(divergence: str, logits: Tensor) -> Tensor:
    """Of KL(pi || ref) ("reverse") or KL(ref || pi) ("forward"), exactly."""
    logits = logits.clone().requires_grad_()
    p = logits.log_softmax(0)
    (exact_kl(p, REFERENCE) if divergence == "reverse" else exact_kl(REFERENCE, p)).backward()
    assert logits.grad is not None
    return logits.grad


def test_pitfall_15_enumerated_gradient_in_the_loss_is_as_documented():
    reverse, forward = gradient_of("reverse", START), gradient_of("forward", START)
    torch.testing.assert_close(enumerated_loss_gradient("k1", START), torch.zeros(4).double())
    torch.testing.assert_close(enumerated_loss_gradient("k2", START), reverse)
    torch.testing.assert_close(enumerated_loss_gradient("k3", START), forward)
    assert (forward - reverse).abs().max() > 0.05


def test_pitfall_15_k3_agrees_with_k2_to_first_order_at_the_reference():
    near = REFERENCE + 1e-3 * START
    torch.testing.assert_close(
        enumerated_loss_gradient("k3", near), enumerated_loss_gradient("k2", near), rtol=0, atol=1e-6
    )
    assert enumerated_loss_gradient("k2", near).abs().max() > 1e-4


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_pitfall_15_descending_the_loss_alone_lowers_the_exact_kl(estimator: str):
    logits = START.clone()
    values = [exact_kl(logits.log_softmax(0), REFERENCE).item()]
    for _ in range(200):
        logits = logits - 0.5 * enumerated_loss_gradient(estimator, logits)
        values.append(exact_kl(logits.log_softmax(0), REFERENCE).item())
    assert values[0] > 0.2
    assert values[-1] < 1e-4
    assert all(later < earlier for earlier, later in pairwise(values[:20]))


def test_pitfall_15_k1_in_the_reward_has_the_gradient_of_the_reverse_kl():
    """Enumerated policy gradient: one row per token, weighted by its probability; the baseline is the same for all."""
    logits = START.clone().requires_grad_()
    logprobs = logits.log_softmax(0)[:, None]
    now = logprobs.detach()
    batch = batch_of([[1]] * 4, [0.0] * 4, old_logprobs=now, behavior_logprobs=now)
    batch = replace(batch, reference_logprobs=REFERENCE[:, None])
    chosen = algorithm("dr_grpo", kl_coef=1.0, kl_estimator="k1", kl_placement="reward", num_epochs=1)
    scored = chosen.advantages(batch)
    chosen.loss(scored, now.exp(), logprobs, torch.zeros(4, 1).double(), None).loss.backward()
    torch.testing.assert_close(logits.grad, gradient_of("reverse", START))


def test_estimates_in_expectation():
    p = START.log_softmax(0)
    mean = {name: (p.exp() * estimator(p - REFERENCE)).sum() for name, estimator in ESTIMATORS.items()}
    torch.testing.assert_close(mean["k1"], exact_kl(p, REFERENCE))
    torch.testing.assert_close(mean["k3"], exact_kl(p, REFERENCE))
    assert abs(mean["k2"] - exact_kl(p, REFERENCE)) > 1e-3


def test_by_hand_at_log_two():
    log_ratio = torch.tensor(2.0).log()
    assert k1(log_ratio).item() == pytest.approx(0.6931472)
    assert k2(log_ratio).item() == pytest.approx(0.2402265)
    assert k3(log_ratio).item() == pytest.approx(0.5 - 1 + 0.6931472)
