"""Weights that no text reaches stay as they are, as in torch; those reached on any rank move on all."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from rlvr.core.world import World
from tests.ranks import Ranks
from tests.unit.core.tiny import tiny_batch, tiny_policy, tiny_trainer, update

SETTINGS = ("trainer.weight_decay=0.1", "trainer.learning_rate=0.01")


class Sometimes(nn.Module):
    """An input embedding with a weight that only rank 0 uses, as an expert that is hit there alone."""

    def __init__(self, plain: nn.Module, used: bool) -> None:
        super().__init__()
        self.plain, self.used = plain, used
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = self.plain(ids)
        return found + self.weight.sum() * 1e-3 if self.used else found


def with_tower(used: bool | None = None):
    policy = tiny_policy(tie_word_embeddings=False)
    policy.model.tower = nn.Linear(4, 4)
    if used is not None:
        policy.model.set_input_embeddings(Sometimes(policy.model.get_input_embeddings(), used))
    return policy


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def moved(before: dict[str, torch.Tensor], model: nn.Module) -> set[str]:
    return {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}


def test_a_tower_that_text_never_reaches_does_not_decay() -> None:
    policy = with_tower()
    batch, trainer, before = tiny_batch(policy), tiny_trainer(policy, *SETTINGS), weights(policy.model)
    update(trainer, batch)
    reached = {name for name in before if "tower" not in name}
    assert moved(before, policy.model) == reached
    before = weights(policy.model)
    update(trainer, replace(batch, rewards=torch.ones_like(batch.rewards)))  # no spread: moments go on, weights decay
    assert moved(before, policy.model) == reached
    assert policy.model.tower.weight not in trainer.optimizer.state


def _updated(world: World) -> tuple[list[float], list[float]]:
    policy = with_tower(used=world.is_first)
    batch = tiny_batch(policy)
    trainer = tiny_trainer(policy, *SETTINGS, "trainer.strategy=ddp", world=world)
    update(trainer, batch)
    update(trainer, batch)
    weights = policy.model.get_input_embeddings().weight, policy.model.tower.weight
    return tuple(weight.detach().flatten().tolist() for weight in weights)


@pytest.mark.slow
def test_a_weight_that_one_rank_reaches_moves_alike_on_all(ranks: Ranks) -> None:
    (first, tower), other = ranks(2, "ddp", _updated)
    assert (first, tower) == other
    assert all(weight != 1.0 for weight in first)


def test_a_step_without_gradient_at_the_start_is_as_it_was() -> None:
    """Moments count it, so that a run goes on as before; what is reached is not yet known."""
    policy = with_tower()
    batch, trainer, before = tiny_batch(policy), tiny_trainer(policy, *SETTINGS), weights(policy.model)
    update(trainer, replace(batch, rewards=torch.ones_like(batch.rewards)))
    assert "model.layers.0.mlp.up_proj.weight" in moved(before, policy.model)
    before = weights(policy.model)
    update(trainer, batch)
    assert moved(before, policy.model) == {name for name in before if "tower" not in name}
