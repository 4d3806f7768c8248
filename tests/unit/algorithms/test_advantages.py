"""Rewards -> advantages."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.algorithms.advantages import (
    discounted_suffix_sums,
    is_dead_group,
    normalize_over_tokens,
    potential_shaping,
    token_returns,
)
from rlvr.types import TokenBatch
from tests.unit.algorithms.cases import NAMES, algorithm, batch_of, ragged_batch, without

EPSILON = 1e-4
GROUPS = ("grpo", "dr_grpo", "dapo", "rloo", "gspo", "cispo")


def advantages_of(name: str, batch: TokenBatch, **overrides: object) -> torch.Tensor:
    """Just the advantages."""
    return algorithm(name, **overrides).advantages(batch).advantages


@pytest.mark.parametrize(
    ("normalization", "std"), [("sample", 0.5), ("population", 0.1875**0.5), ("none", 1.0 - EPSILON)]
)
def test_pitfall_12_both_choices_of_ddof_by_hand(normalization: str, std: float):
    batch = batch_of([[0, 1]] * 4, [1.0, 0.0, 0.0, 0.0])
    found = advantages_of("grpo", batch, std_normalization=normalization)[:, 1]
    torch.testing.assert_close(found, torch.tensor([0.75, -0.25, -0.25, -0.25]).double() / (std + EPSILON))


def test_the_std_of_the_batch_keeps_the_weight_of_a_groups_spread():
    """Deviations +-1 and +-0.1 of two groups: std (2.02 / 3)^0.5, over both."""
    batch = replace(batch_of([[0, 1]] * 4, [1.0, -1.0, 0.1, -0.1]), groups=torch.tensor([0, 0, 1, 1]))
    found = advantages_of("grpo", batch, std_normalization="batch")[:, 1]
    std = (2.02 / 3) ** 0.5
    torch.testing.assert_close(found, torch.tensor([1.0, -1.0, 0.1, -0.1]).double() / (std + EPSILON))


@pytest.mark.parametrize("name", NAMES)
def test_pitfall_12_a_group_of_one_is_finite(name: str):
    for normalization in ("sample", "population", "batch", "none"):
        overrides = {"std_normalization": normalization} if name in ("grpo", "dapo", "gspo", "cispo") else {}
        found = advantages_of(name, batch_of([[0, 1, 1]], [1.0]), **overrides)
        assert found.isfinite().all()
        if name != "ppo":
            assert (found == 0).all()


@pytest.mark.parametrize("reward", [0.1, 1 / 3, -0.7, 1e6 / 3])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "ppo"])
def test_pitfall_13_equal_rewards_give_exactly_zero_advantage(name: str, reward: float):
    for size in (2, 3, 7, 8, 11):
        batch = batch_of([[0, 1, 1, 1]] * size, [reward] * size)
        batch = replace(batch, rewards=batch.rewards.float(), behavior_logprobs=batch.behavior_logprobs.float())
        assert (advantages_of(name, batch) == 0).all()


@pytest.mark.parametrize(
    ("rewards", "dead"),
    [([0.1] * 8, True), ([1 / 3, float("nan"), 1 / 3], True), ([1.0], True), ([], True), ([0.0, 1.0, 0.0], False)],
)
def test_pitfall_13_dead_groups_are_recognized(rewards: list[float], dead: bool):
    assert is_dead_group(rewards) == dead


THIRD = 1 / 3


@pytest.mark.parametrize(
    ("name", "rewards", "batch", "expected"),
    [
        ("rloo", [1, 0, 0, 0.5], {}, [1 - 0.5 / 3, -1.5 / 3, -1.5 / 3, 0.5 - THIRD]),
        ("dr_grpo", [1, 5, 0, 7], {"groups": [40, -2, 40, -2]}, [0.5, -1, -0.5, 1]),
        ("dr_grpo", [1, 1, 0, 0], {"episodes": [0, 0, 1, 2]}, [2 * THIRD, 2 * THIRD, -THIRD, -THIRD]),
    ],
    ids=["leave one out", "groups need not be contiguous", "an episode of two rows counts once"],
)
def test_group_advantages_by_hand(name: str, rewards: list[float], batch: dict[str, list[int]], expected: list[float]):
    tensors = {key: torch.tensor(values) for key, values in batch.items()}
    found = advantages_of(name, batch_of([[1]] * 4, rewards, **tensors))[:, 0]
    torch.testing.assert_close(found, torch.tensor(expected).double())


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_a_grade_are_in_no_statistic(name: str):
    mask, good = [[0, 1, 1]] * 4, torch.tensor([True, True, False, True])
    batch = batch_of(mask, [1.0, 0.0, float("nan"), 0.0], valid=good)
    alone = batch_of(mask[:3], [1.0, 0.0, 0.0])
    found = advantages_of(name, batch)
    assert (found[2] == 0).all()
    torch.testing.assert_close(found[good], advantages_of(name, alone))


def test_advantages_are_zero_outside_the_loss_mask():
    for name in NAMES:
        batch = ragged_batch()
        found = advantages_of(name, batch)
        assert (found[~batch.loss_mask] == 0).all()
        assert found.abs().sum() > 0


def test_pitfall_14_truncation_is_the_flag_not_the_length():
    """Row 0 fills max_completion_tokens and stops by itself; row 1 is short and was cut off."""
    mask = [[1] * 16, [1] * 3 + [0] * 13]
    batch = batch_of(mask, [3.0, 0.0], truncated=torch.tensor([False, True]))
    for name in NAMES:
        keep, leave = algorithm(name, truncated="keep"), algorithm(name, truncated="mask")
        assert keep.has_gradient(keep.advantages(batch)).tolist() == [True, True]
        left = leave.advantages(batch)
        assert leave.has_gradient(left).tolist() == [True, False] if name != "reinforce_pp" else [False, False]
        assert (leave.loss_weights(left)[0] > 0).all()
        assert (leave.loss_weights(left)[1] == 0).all()
        assert (left.advantages[1] == 0).all()


def test_a_truncated_row_stays_in_its_groups_mean():
    batch = batch_of([[0, 1]] * 2, [1.0, 0.0], truncated=torch.tensor([False, True]))
    assert advantages_of("dr_grpo", batch, truncated="mask").tolist() == [[0.0, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize(("buffer", "expected"), [(20, [1.0, 1.0, 0.75, 0.5, 0.5]), (0, [1.0] * 5)])
def test_soft_overlong_penalty_by_hand(buffer: int, expected: list[float]):
    dapo = algorithm("dapo", overlong_buffer_tokens=buffer, overlong_penalty=0.5).algorithm
    lengths = torch.tensor([5, 80, 90, 100, 130])
    assert dapo.shaped_rewards(torch.ones(5), lengths, 100).tolist() == expected


def test_dapo_penalizes_the_longest_turn_not_the_sum():
    two_turns, short = [1] * 8 + [0] + [1] * 8, [1] * 4 + [0] * 13  # 8 + 8 sampled tokens of at most 16 a turn
    assert not advantages_of("dapo", batch_of([two_turns, short], [1.0, 1.0])).any()


def test_dapo_shapes_rewards_before_the_group_statistics():
    batch = batch_of([[1] * 16, [1] * 4 + [0] * 12], [1.0, 1.0])  # 16 sampled tokens of 16, buffer 4: penalty 1
    found = advantages_of("dapo", batch, std_normalization="none")
    assert found[:, 0].tolist() == [-0.5, 0.5]
    assert (advantages_of("grpo", batch) == 0).all()


def test_normalization_over_tokens_by_hand():
    x = torch.tensor([[1.0, 2.0], [3.0, float("nan")]])
    mask = torch.tensor([[True, True], [True, False]])
    found = normalize_over_tokens(x, mask)
    torch.testing.assert_close(found, torch.tensor([[-1.0, 0.0], [1.0, 0.0]]) / ((2 / 3) ** 0.5 + EPSILON))


def test_kl_in_the_reward_comes_before_the_statistics():
    old = torch.tensor([[0.0, -1.0, -1.0], [0.0, -1.0, -1.0]]).double()
    reference = torch.tensor([[9.0, -1.5, -2.0], [9.0, -1.0, -1.0]]).double()  # log ratio 0.5 and 1; 0 and 0
    batch = batch_of([[0, 1, 1]] * 2, [1.0, 0.0], old_logprobs=old, reference_logprobs=reference)
    found = advantages_of("dr_grpo", batch, kl_coef=0.1, kl_estimator="k1", kl_placement="reward")
    torch.testing.assert_close(found[:, 1], torch.tensor([0.425, -0.425]).double())  # rewards .85 and 0
    in_loss = advantages_of("dr_grpo", batch, kl_coef=0.1, kl_estimator="k1", kl_placement="loss")
    assert in_loss[:, 1].tolist() == [0.5, -0.5]


def test_kl_in_the_reward_is_charged_token_by_token():
    old = torch.full((1, 4), -1.0).double()
    reference = torch.tensor([[9.0, -1.5, 9.0, -2.0]]).double()
    batch = batch_of([[0, 1, 0, 1]], [1.0], old_logprobs=old, reference_logprobs=reference)
    settings = {"kl_coef": 0.1, "kl_estimator": "k1", "kl_placement": "reward"}
    found = advantages_of("ppo", batch, whiten_advantages=False, gae_lambda=1.0, **settings)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.85, 0.0, 0.9]]).double())


def test_pitfall_05_tool_positions_change_no_advantage():
    settings = {"kl_coef": 0.1, "kl_placement": "reward"}
    batch = ragged_batch()

    spoiled = batch.with_columns(**{n: torch.where(batch.loss_mask, x, float("nan")) for n, x in batch.columns.items()})
    for name in NAMES:
        assert torch.equal(advantages_of(name, batch, **settings), advantages_of(name, spoiled, **settings))


def test_a_missing_tensor_is_an_error_not_a_guess():
    batch = without(ragged_batch(), "values")
    with pytest.raises(ValueError, match="values"):
        algorithm("ppo").advantages(batch)


def by_hand(rewards: list[float], values: list[float], gamma: float, gae_lambda: float) -> list[list[float]]:
    """Advantages and returns by the textbook loop over one sequence of trainable tokens."""
    advantages, advantage, next_value = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + gamma * next_value - value + gamma * gae_lambda * advantage
        next_value = value
        advantages.insert(0, advantage)
    return [advantages, [a + v for a, v in zip(advantages, values, strict=True)]]


def test_generalized_advantages_by_hand():
    values = torch.tensor([[9.0, 0.5, 0.25, 9.0, 0.75]])
    batch = batch_of([[0, 1, 1, 0, 1]], [1.0])
    advantages, returns = token_returns(batch, torch.zeros(1, 5), values, gamma=1.0, gae_lambda=0.5)
    # deltas: .25 - .5 = -.25,  .75 - .25 = .5,  1 - .75 = .25
    assert advantages.tolist() == [[0.0, 0.0625, 0.625, 0.0, 0.25]]
    assert returns.tolist() == [[0.0, 0.5625, 0.875, 0.0, 1.0]]


def test_the_reward_comes_at_the_last_sampled_token():
    batch = batch_of([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0]], [7.0, 3.0])
    found, _ = token_returns(batch, torch.zeros(2, 5), None, gamma=0.0, gae_lambda=1.0)
    assert found.tolist() == [[0, 0, 0, 7, 0], [0] * 5]


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
    batch = batch_of(mask.long().tolist(), [0.0] * 3)
    advantages, returns = token_returns(batch, -rewards, spoiled, gamma, gae_lambda)
    plain, _ = token_returns(batch, -rewards, None, gamma, 1.0)
    assert (advantages[~mask] == 0).all()
    assert (returns[~mask] == 0).all()
    for row, own in enumerate(mask):
        reward, value = rewards[row, own].tolist(), values[row, own].tolist()
        found = [advantages[row, own].tolist(), returns[row, own].tolist()]
        torch.testing.assert_close(found, by_hand(reward, value, gamma, gae_lambda))
        no_critic, _ = by_hand(reward, [0.0] * len(value), gamma, 1.0)
        torch.testing.assert_close(plain[row, own].tolist(), no_critic)


def test_pitfall_08_returns_do_not_reset_at_a_tool_reply():
    mask = [[0, 1, 1, 0, 0, 1], [0, 1, 1, 1, 0, 0]]
    # three tokens with return 1, three with return 0: mean 1/2, std 1/2
    expected = torch.tensor([[0, 1, 1, 0, 0, 1], [0, -1, -1, -1, 0, 0]], dtype=torch.float64) * 0.5 / 0.5001
    torch.testing.assert_close(advantages_of("reinforce_pp", batch_of(mask, [1.0, 0.0])), expected)


@pytest.mark.parametrize("truncated", [False, True])
def test_nothing_is_bootstrapped_at_the_end(truncated: bool):
    batch = batch_of([[0, 1, 1]], [1.0], truncated=torch.tensor([truncated]), values=torch.full((1, 3), 0.25).double())
    scored = algorithm("ppo", whiten_advantages=False, gae_lambda=1.0).advantages(batch)
    assert scored.advantages.tolist() == [[0.0, 0.75, 0.75]]
    assert scored.returns.tolist() == [[0.0, 1.0, 1.0]]


def test_shaping_of_the_docstring() -> None:
    assert potential_shaping(torch.tensor([[0.0, 0, 1, 1, 1, 1]]), 1.0).tolist() == [[0, 1, 0, 0, 0, -1]]
    assert potential_shaping(torch.tensor([[0.0, 1, 0, 1, 0]]), 1.0).sum() == 0  # going back and forth earns nothing


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_pitfall_08_returns_are_lower_by_the_potential(gamma: float) -> None:
    batch = ragged_batch()
    mask = batch.loss_mask & batch.valid[:, None]
    potentials = torch.rand(mask.shape, dtype=torch.float64)
    batch = replace(batch, rewards=torch.zeros_like(batch.rewards), potentials=potentials)
    shaped, _ = token_returns(batch, torch.zeros_like(potentials), None, gamma, 1.0)
    torch.testing.assert_close(shaped, torch.where(mask, -potentials, 0.0))


@pytest.mark.parametrize("name", NAMES)
def test_only_algorithms_with_returns_for_tokens_are_shaped(name: str) -> None:
    """The token that found something is credited at once, by ppo and reinforce_pp; groups see no difference."""
    options = {"whiten_advantages": False, "gae_lambda": 0.0} if name == "ppo" else {}
    batch = batch_of([[0, 1, 1, 0, 1], [0, 1, 1, 0, 1]], [1.0, 0.0])
    potentials = torch.tensor([[0.0, 0, 0, 0, 1], [0.0, 0, 0, 0, 0]], dtype=torch.float64)
    plain = advantages_of(name, batch, **options)
    shaped = advantages_of(name, replace(batch, potentials=potentials), **options)
    if name in GROUPS:
        assert torch.equal(plain, shaped)
    elif name == "ppo":
        assert (shaped - plain)[0].tolist() == [0, 0, 1, 0, -1]
    else:
        assert not torch.allclose(plain, shaped)
