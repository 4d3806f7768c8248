"""Returns and generalized advantages over the trainable tokens only."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.core.algorithms.gae import discounted_returns, discounted_suffix_sums, generalized_advantage_estimate
from tests.unit.core.algorithms.cases import algorithm, batch_of


def by_hand(
    rewards: list[float], values: list[float], gamma: float, gae_lambda: float
) -> tuple[list[float], list[float]]:
    """The textbook loop over one sequence of trainable tokens."""
    advantages, advantage, next_value = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + gamma * next_value - value + gamma * gae_lambda * advantage
        next_value = value
        advantages.insert(0, advantage)
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def test_worked_example():
    mask = torch.tensor([[0, 1, 1, 0, 1]], dtype=torch.bool)
    rewards = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]])
    values = torch.tensor([[9.0, 0.5, 0.25, 9.0, 0.75]])
    advantages, returns = generalized_advantage_estimate(rewards, values, mask, gamma=1.0, gae_lambda=0.5)
    # deltas: .25 - .5 = -.25,  .75 - .25 = .5,  1 - .75 = .25
    torch.testing.assert_close(advantages, torch.tensor([[0.0, 0.0625, 0.625, 0.0, 0.25]]))
    torch.testing.assert_close(returns, torch.tensor([[0.0, 0.5625, 0.875, 0.0, 1.0]]))


def test_suffix_sums_of_the_docstring():
    sums = discounted_suffix_sums(torch.ones(1, 4), 0.5)
    assert sums.tolist() == [[1.875, 1.75, 1.5, 1.0]]
    assert discounted_suffix_sums(torch.zeros(2, 0), 0.5).shape == (2, 0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.sampled_from([0.9, 1.0]), st.sampled_from([0.0, 0.95, 1.0]))
def test_pitfall_08_tool_tokens_are_no_steps(seed: int, gamma: float, gae_lambda: float):
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(3, 11, generator=draw) < 0.6
    rewards, values = torch.randn(2, 3, 11, generator=draw, dtype=torch.float64)
    spoiled = torch.where(mask, values, torch.tensor([100.0, float("nan"), float("inf")])[:, None].double())
    advantages, returns = generalized_advantage_estimate(rewards, spoiled, mask, gamma, gae_lambda)
    plain = discounted_returns(rewards, mask, gamma)
    assert (advantages[~mask] == 0).all()
    assert (returns[~mask] == 0).all()
    for row in range(3):
        own = mask[row]
        expected = by_hand(rewards[row, own].tolist(), values[row, own].tolist(), gamma, gae_lambda)
        torch.testing.assert_close(advantages[row, own].tolist(), expected[0])
        torch.testing.assert_close(returns[row, own].tolist(), expected[1])
        no_critic = by_hand(rewards[row, own].tolist(), [0.0] * int(own.sum()), gamma, 1.0)[0]
        torch.testing.assert_close(plain[row, own].tolist(), no_critic)


def test_pitfall_08_reinforce_pp_returns_do_not_reset_at_a_tool_reply():
    mask = [[0, 1, 1, 0, 0, 1], [0, 1, 1, 1, 0, 0]]
    advantages = algorithm("reinforce_pp").advantages(batch_of(mask, [1.0, 0.0])).advantages
    # three tokens with return 1, three with return 0: mean 1/2, std 1/2
    expected = torch.tensor([[0, 1, 1, 0, 0, 1], [0, -1, -1, -1, 0, 0]], dtype=torch.float64) * 0.5 / 0.5001
    torch.testing.assert_close(advantages, expected)


@pytest.mark.parametrize("truncated", [False, True])
def test_nothing_is_bootstrapped_at_the_end(truncated: bool):
    batch = batch_of([[0, 1, 1]], [1.0], truncated=torch.tensor([truncated]), values=torch.full((1, 3), 0.25).double())
    scored = algorithm("ppo", whiten_advantages=False, gae_lambda=1.0).advantages(batch)
    assert scored.advantages is not None
    assert scored.returns is not None
    assert scored.advantages.tolist() == [[0.0, 0.75, 0.75]]
    assert scored.returns.tolist() == [[0.0, 1.0, 1.0]]
