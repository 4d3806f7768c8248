"""Potential-based shaping: it moves returns by what was there already, and no optimum."""

import itertools
from dataclasses import replace

import pytest
import torch

from rlvr.core.algorithms.gae import discounted_returns, potential_shaping
from rlvr.core.algorithms.masking import sampled_tokens
from tests.unit.core.algorithms.cases import NAMES, algorithm, batch_of, ragged_batch


def test_the_example_of_the_docstring() -> None:
    mask = torch.tensor([[1, 1, 0, 0, 1, 1, 0, 1, 1]], dtype=torch.bool)
    potentials = torch.tensor([[0.0, 0, 9, 9, 1, 1, 9, 1, 1]])
    assert potential_shaping(potentials, mask, 1.0).tolist() == [[0, 1, 0, 0, 0, 0, 0, 0, -1]]


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_pitfall_08_returns_are_lower_by_the_potential_of_the_state(gamma: float) -> None:
    batch = ragged_batch()
    mask = sampled_tokens(batch)
    potentials = torch.rand(mask.shape, dtype=torch.float64)
    shaped = discounted_returns(potential_shaping(potentials, mask, gamma), mask, gamma)
    torch.testing.assert_close(shaped, torch.where(mask, -potentials, 0.0))


def test_the_order_of_all_policies_stays_the_same() -> None:
    """All plans of a walk of 4 steps: find (worth 1 at the end, once) or waste. Shaping adds the same to every plan."""

    def value(plan: tuple[bool, ...], coef: float, gamma: float) -> float:
        found = [min(1, sum(plan[:step])) for step in range(len(plan))]
        mask = torch.ones(1, len(plan), dtype=torch.bool)
        rewards = torch.zeros(1, len(plan), dtype=torch.float64)
        rewards[0, -1] = float(any(plan)) - 0.1 * sum(plan)
        rewards += potential_shaping(coef * torch.tensor([found], dtype=torch.float64), mask, gamma)
        return float(discounted_returns(rewards, mask, gamma)[0, 0])

    plans = list(itertools.product([False, True], repeat=4))
    for gamma in (1.0, 0.8):
        plain = [value(plan, 0.0, gamma) for plan in plans]
        assert [value(plan, 5.0, gamma) for plan in plans] == pytest.approx(plain)


def test_going_back_and_forth_earns_nothing() -> None:
    mask = torch.ones(1, 5, dtype=torch.bool)
    there_and_back = torch.tensor([[0.0, 1, 0, 1, 0]])
    assert potential_shaping(there_and_back, mask, 1.0).sum() == 0


@pytest.mark.parametrize("name", NAMES)
def test_only_algorithms_with_returns_for_tokens_are_shaped(name: str) -> None:
    """The token that found something is credited at once, by ppo and reinforce_pp; groups see no difference."""
    options = {"whiten_advantages": False, "gae_lambda": 0.0} if name == "ppo" else {}
    batch = batch_of([[0, 1, 1, 0, 1], [0, 1, 1, 0, 1]], [1.0, 0.0])
    potentials = torch.tensor([[0.0, 0, 0, 0, 1], [0.0, 0, 0, 0, 0]], dtype=torch.float64)
    plain = algorithm(name, **options).advantages(batch).advantages
    shaped = algorithm(name, **options).advantages(replace(batch, potentials=potentials)).advantages
    assert plain is not None
    assert shaped is not None
    if name not in ("ppo", "reinforce_pp"):
        assert torch.equal(plain, shaped)
    elif name == "ppo":
        assert (shaped - plain)[0].tolist() == [0, 0, 1, 0, -1]
    else:
        assert not torch.allclose(plain, shaped)
