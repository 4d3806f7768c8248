"""Which tokens are in the loss, and the weight of each."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from rlvr.algorithms.losses import kl_estimate
from rlvr.algorithms.weights import longest_turn, loss_weights
from rlvr.types import TokenBatch
from tests.unit.algorithms.cases import MODES, NAMES, algorithm, loss_of, noisy, ragged_batch, rows_of, take

EVERY_TERM = {"kl_coef": 0.1, "entropy_coef": 0.01, "mismatch_correction": "truncate", "truncated": "mask"}


@pytest.mark.parametrize(
    ("mode", "short", "long"),
    [
        ("token_mean", 1 / 110, 1 / 110),
        ("sequence_mean", 1 / 20, 1 / 200),
        ("sequence_sum", 1 / 2, 1 / 2),
        ("fixed_length", 1 / 32, 1 / 32),
    ],
)
def test_pitfall_11_weight_of_a_token_of_10_and_of_100(mode: str, short: float, long: float):
    batch = ragged_batch()
    position = torch.arange(101)
    mask = (position >= 1) & (position <= torch.tensor([10, 100])[:, None])
    two = replace(take(batch, torch.tensor([0, 1])), loss_mask=mask)
    weights = algorithm("grpo", aggregation=mode).loss_weights(two)
    torch.testing.assert_close(weights[0, 1:11], torch.full((10,), short, dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(weights[1, 1:], torch.full((100,), long, dtype=torch.float64), rtol=1e-6, atol=0)
    assert weights[:, 0].sum() == 0
    assert weights[0, 11:].sum() == 0


def test_a_prompt_counts_once_however_many_tokens_its_episodes_have():
    mask = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0], [0, 0, 0]], dtype=torch.bool)
    episodes, groups = torch.arange(4), torch.tensor([0, 0, 1, 2])  # no token of the third prompt is in the loss
    weights = loss_weights(mask, episodes, groups, "prompt_mean", 16)
    assert weights.tolist() == [[1 / 8, 0, 0], [1 / 8] * 3, [1 / 4, 1 / 4, 0], [0, 0, 0]]


def test_a_name_that_no_case_states_is_an_error():
    """A new one never falls into the default of another."""
    new: Any = "new"
    with pytest.raises(AssertionError, match="new"):
        loss_weights(torch.ones(1, 1, dtype=torch.bool), torch.zeros(1), torch.zeros(1), new, 16)
    with pytest.raises(AssertionError, match="new"):
        kl_estimate(torch.zeros(1), new)


STRAIGHT = list(range(8))


def gradients(name: str, mode: str, batch: TokenBatch, parts: list[list[int]], order: list[int]) -> list[torch.Tensor]:
    """Loss and gradients of a batch permuted, then cut into microbatches of rows, in the original order of rows."""
    chosen = algorithm(name, aggregation=mode, **EVERY_TERM)
    predicted, shuffled = noisy(batch), torch.tensor(order)
    batch = take(chosen.advantages(batch), shuffled)
    weights = chosen.loss_weights(batch)
    total = torch.zeros(())
    for part in parts:
        at = shuffled[part]
        loss = chosen.loss(take(batch, torch.tensor(part)), weights[part], rows_of(predicted, at)).loss
        loss.backward()
        total = total + loss.detach()
    return [total, *(leaf.grad for leaf in predicted[: 3 if name == "ppo" else 2])]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_pitfall_09_gradient_does_not_depend_on_the_split(name: str, mode: str):
    batch = ragged_batch()
    whole = gradients(name, mode, batch, [STRAIGHT], STRAIGHT)
    assert all(x.abs().sum() > 0 for x in whole)
    for parts in ([[0, 1, 2], [3], [4, 5, 6, 7]], [[0, 7], [1, 6], [2, 5], [3, 4]]):
        for order in (STRAIGHT, [3, 1, 4, 0, 5, 7, 2, 6]):
            for one, other in zip(whole, gradients(name, mode, batch, parts, order), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_pitfall_10_rows_outside_the_loss_count_nowhere(name: str, mode: str):
    batch = ragged_batch()
    kept = torch.tensor([row for row in STRAIGHT if batch.valid[row] and not batch.truncated[row]])
    chosen = algorithm(name, aggregation=mode, **EVERY_TERM)
    scored, predicted = chosen.advantages(batch), noisy(batch)
    full, part = (
        loss_of(chosen, rows, values)
        for rows, values in ((scored, predicted), (take(scored, kept), rows_of(predicted, kept)))
    )
    torch.testing.assert_close(full.loss, part.loss, rtol=1e-6, atol=0)
    assert full.sums.keys() == part.sums.keys()
    for key in full.sums:
        torch.testing.assert_close(full.sums[key], part.sums[key], msg=key)
    assert full.sums["tokens"] == batch.loss_mask[kept].sum()


@pytest.mark.parametrize("mode", MODES)
def test_a_minibatch_without_a_trained_token_has_loss_zero(mode: str):
    batch, chosen = ragged_batch(), algorithm("grpo", aggregation=mode)
    batch = chosen.advantages(replace(batch, valid=torch.zeros_like(batch.valid)))
    terms = loss_of(chosen, batch, noisy(batch))
    assert terms.loss == 0
    assert terms.sums["tokens"] == 0
    assert not chosen.has_gradient(batch).any()


def split_at_the_tool(batch: TokenBatch) -> TokenBatch:
    """Row 0, whose tool span is 5:8, as two rows of one episode: as if a template had rewritten history there."""
    rows = take(batch, torch.tensor([0, *range(8)]))
    position = torch.arange(batch.ids.shape[1])
    mask = rows.loss_mask.clone()
    mask[0] &= position < 6
    mask[1] &= position >= 6
    return replace(rows, loss_mask=mask)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("gspo", "ppo")])
def test_pitfall_07_two_rows_of_an_episode_count_as_one(name: str, mode: str):
    """A row is its own sequence where a ratio or a value spans it (gspo, ppo); everything else sees one episode."""
    chosen = algorithm(name, aggregation=mode, kl_coef=0.1, entropy_coef=0.01)
    whole, rows = ragged_batch(), torch.tensor([0, *range(8)])
    predicted = noisy(whole)
    expected = loss_of(chosen, chosen.advantages(whole), predicted)
    found = loss_of(chosen, chosen.advantages(split_at_the_tool(whole)), rows_of(predicted, rows))
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-6, atol=1e-12)
    assert found.sums["tokens"] == expected.sums["tokens"]


def test_pitfall_07_kl_is_summed_over_all_rows_of_an_episode():
    chosen = algorithm("grpo", kl_coef=0.1, kl_placement="reward")
    one, two = chosen.advantages(ragged_batch()), chosen.advantages(split_at_the_tool(ragged_batch()))
    torch.testing.assert_close(two.advantages[1:, -6:], one.advantages[:, -6:])
    torch.testing.assert_close(two.advantages[0, :6], one.advantages[0, :6])


def test_the_overlong_penalty_is_of_the_longest_turn():
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 0, 0], [0, 0, 1, 1, 0]], dtype=torch.bool)
    assert longest_turn(mask, torch.tensor([0, 1, 1])).tolist() == [2, 3, 3]
    assert longest_turn(torch.zeros(1, 3, dtype=torch.bool), torch.tensor([0])).tolist() == [0]
