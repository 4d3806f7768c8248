"""Rewards -> advantages."""

from dataclasses import replace

import pytest
import torch

from rlvr.core.algorithms.advantages import (
    is_dead_group,
    normalize_over_tokens,
    normalize_within_groups,
    reward_at_end,
    soft_overlong,
    subtract_leave_one_out,
)
from rlvr.types import TokenBatch
from tests.unit.core.algorithms.cases import NAMES, algorithm, batch_of, ragged_batch

EPSILON = 1e-4


def one_group(*rewards: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, groups and valid of one group, float32 as in the product."""
    r = torch.tensor(rewards)
    return r, torch.zeros(len(r), dtype=torch.long), torch.ones(len(r), dtype=torch.bool)


def advantages_of(name: str, batch: TokenBatch, **overrides: object) -> torch.Tensor:
    """Just the advantages."""
    found = algorithm(name, **overrides).advantages(batch).advantages
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("normalization", "std"), [("sample", 0.5), ("population", 0.1875**0.5), ("none", 1.0 - EPSILON)]
)
def test_pitfall_12_both_choices_of_ddof_by_hand(normalization: str, std: float):
    found = normalize_within_groups(*one_group(1.0, 0.0, 0.0, 0.0), normalization)
    torch.testing.assert_close(found, torch.tensor([0.75, -0.25, -0.25, -0.25]) / (std + EPSILON))
    through_settings = advantages_of(
        "grpo", batch_of([[0, 1]] * 4, [1.0, 0.0, 0.0, 0.0]), std_normalization=normalization
    )
    torch.testing.assert_close(through_settings[:, 1].float(), found)


@pytest.mark.parametrize("name", NAMES)
def test_pitfall_12_a_group_of_one_is_finite(name: str):
    for normalization in ("sample", "population", "none"):
        overrides = {"std_normalization": normalization} if name in ("grpo", "dapo", "gspo", "cispo") else {}
        found = advantages_of(name, batch_of([[0, 1, 1]], [1.0]), **overrides)
        assert found.isfinite().all()
        if name not in ("ppo",):
            assert (found == 0).all()


@pytest.mark.parametrize("reward", [0.1, 1 / 3, -0.7, 1e6 / 3])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "ppo"])
def test_pitfall_13_equal_rewards_give_exactly_zero_advantage(name: str, reward: float):
    for size in (2, 3, 7, 8, 11):
        batch = batch_of([[0, 1, 1, 1]] * size, [reward] * size)
        batch = replace(batch, rewards=batch.rewards.float(), behavior_logprobs=batch.behavior_logprobs.float())
        assert (advantages_of(name, batch) == 0).all()


def test_pitfall_13_dead_groups_are_recognized():
    assert is_dead_group([0.1] * 8)
    assert is_dead_group([1 / 3, float("nan"), 1 / 3])
    assert is_dead_group([1.0])
    assert is_dead_group([])
    assert not is_dead_group([0.0, 1.0, 0.0])


def test_leave_one_out_by_hand():
    found = subtract_leave_one_out(*one_group(1.0, 0.0, 0.0, 0.5))
    torch.testing.assert_close(found, torch.tensor([1 - 0.5 / 3, -1.5 / 3, -1.5 / 3, 0.5 - 1 / 3]))


def test_groups_are_told_apart_by_number_and_need_not_be_contiguous():
    rewards = torch.tensor([1.0, 5.0, 0.0, 7.0])
    groups = torch.tensor([40, -2, 40, -2])
    found = normalize_within_groups(rewards, groups, torch.ones(4, dtype=torch.bool), "none")
    assert found.tolist() == [0.5, -1.0, -0.5, 1.0]


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_a_verdict_are_in_no_statistic_and_have_no_advantage(name: str):
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
        assert keep.trainable(keep.advantages(batch)).tolist() == [True, True]
        left = leave.advantages(batch)
        assert leave.trainable(left).tolist() == [True, False] if name != "reinforce_pp" else [False, False]
        assert (leave.weights(left)[0] > 0).all()
        assert (leave.weights(left)[1] == 0).all()
        assert left.advantages is not None
        assert (left.advantages[1] == 0).all()


def test_a_truncated_row_stays_in_its_groups_mean():
    batch = batch_of([[0, 1]] * 2, [1.0, 0.0], truncated=torch.tensor([False, True]))
    assert advantages_of("dr_grpo", batch, truncated="mask").tolist() == [[0.0, 0.5], [0.0, 0.0]]


def test_soft_overlong_penalty_by_hand():
    lengths = torch.tensor([5, 80, 90, 100, 130])
    found = soft_overlong(
        torch.ones(5), lengths, max_completion_tokens=100, overlong_buffer_tokens=20, overlong_penalty=0.5
    )
    assert found.tolist() == [1.0, 1.0, 0.75, 0.5, 0.5]
    none = soft_overlong(
        torch.ones(5), lengths, max_completion_tokens=100, overlong_buffer_tokens=0, overlong_penalty=0.5
    )
    assert none.tolist() == [1.0] * 5


def test_dapo_shapes_rewards_before_the_group_statistics():
    batch = batch_of([[1] * 16, [1] * 4 + [0] * 12], [1.0, 1.0])  # 16 sampled tokens of 16, buffer 4: penalty 1
    found = advantages_of("dapo", batch, std_normalization="none")
    assert found[:, 0].tolist() == [-0.5, 0.5]
    assert (advantages_of("grpo", batch) == 0).all()


def test_reward_comes_at_the_last_sampled_token():
    mask = torch.tensor([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    assert reward_at_end(torch.tensor([7.0, 3.0]), mask).tolist() == [[0, 0, 0, 7, 0], [0] * 5]


def test_normalization_over_tokens_by_hand():
    x = torch.tensor([[1.0, 2.0], [3.0, float("nan")]])
    mask = torch.tensor([[True, True], [True, False]])
    found = normalize_over_tokens(x, mask)
    torch.testing.assert_close(found, torch.tensor([[-1.0, 0.0], [1.0, 0.0]]) / ((2 / 3) ** 0.5 + EPSILON))


def test_kl_in_the_reward_is_subtracted_from_the_sequence_before_the_statistics():
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

    def spoil(x: torch.Tensor | None) -> torch.Tensor:
        assert x is not None
        return torch.where(batch.loss_mask, x, float("nan"))

    spoiled = replace(
        batch,
        old_logprobs=spoil(batch.old_logprobs),
        reference_logprobs=spoil(batch.reference_logprobs),
        values=spoil(batch.values),
    )
    for name in NAMES:
        assert torch.equal(advantages_of(name, batch, **settings), advantages_of(name, spoiled, **settings))


def test_a_missing_tensor_is_an_error_not_a_guess():
    batch = replace(ragged_batch(), values=None)
    with pytest.raises(ValueError, match="values"):
        algorithm("ppo").advantages(batch)
