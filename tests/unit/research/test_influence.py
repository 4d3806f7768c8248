"""Influence is its formula by hand: gradients with and without each episode, taken back through AdamW and the clip."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from rlvr.core.batch import to_batch
from rlvr.errors import UserError
from rlvr.research.influence import directions, influences, optimizer_steps, slope_after
from tests.unit.research.replayed import ByHand, Case, Weights, made_step

STEPS = 1e-4  # of a central difference, of the gradient's length


@pytest.fixture(scope="module")
def case() -> Case:
    return made_step()


@pytest.fixture(scope="module")
def hand(case: Case) -> ByHand:
    found = ByHand(case)
    found.run()
    return found


@pytest.fixture(scope="module")
def slope(hand: ByHand) -> Weights:
    """Gradient of the whole batch's loss after the update."""
    return hand.grads(hand.model, range(len(hand.rows)), hand.advantages())


def dot(one: Weights, other: Weights) -> float:
    return sum(float((one[name] * other[name]).sum()) for name in one)


def along(hand: ByHand, slope: Weights, ways: list[Weights]) -> float:
    """By how much the loss after the update falls if the gradients move along `ways`."""

    def after(distance: float) -> float:
        pairs = zip(hand.gradients, ways, strict=True)
        moved = [{name: one[name] + distance * way[name] for name in one} for one, way in pairs]
        return dot(slope, hand.updated(moved))

    return -(after(STEPS) - after(-STEPS)) / (2 * STEPS)


def without(hand: ByHand, number: int) -> list[Weights]:
    """Gradients of the steps as they would have been, at the same weights."""
    rows = hand.rows
    hand.rows = [replace(row, valid=row.valid and row.episode != number) for row in rows]
    advantages, found = hand.advantages(), []
    for weights, chosen in zip(hand.weights, hand.order(), strict=True):
        hand.model.load_state_dict(dict(weights), strict=False)
        found.append(hand.grads(hand.model, chosen, advantages))
    hand.rows = rows
    return found


def minus(one: Weights, other: Weights) -> Weights:
    return {name: one[name] - other[name] for name in one}


def test_as_by_hand(case: Case, hand: ByHand, slope: Weights) -> None:
    found = influences(case.made, lambda done, total: None)
    wanted = [
        along(hand, slope, [minus(one, less) for one, less in zip(hand.gradients, without(hand, number), strict=True)])
        for number in range(12)
    ]
    largest = max(map(abs, wanted))
    assert [one.change for one in found] == pytest.approx(wanted, rel=5e-3, abs=5e-3 * largest)
    total = sum(map(abs, wanted))
    assert [one.share for one in found] == pytest.approx([one / total for one in wanted], abs=2e-3)
    assert wanted[10] == found[10].change == 0.0  # its verifier had failed


def test_of_which_episode(case: Case) -> None:
    seen: list[tuple[int, int]] = []
    found = influences(case.made, lambda done, total: seen.append((done, total)))
    assert [(one.episode, one.group, one.sample_index) for one in found] == [(n, n // 4, 0) for n in range(12)]
    episodes = [e for group in case.made.sampled.groups for e in group.episodes]
    assert [repr(one.reward) for one in found] == [repr(e.score.value) for e in episodes]
    assert seen == [(n, 12) for n in range(1, 13)]


def test_the_steps_are_those_of_the_update(case: Case, hand: ByHand) -> None:
    """To the last digit: the weights after them are the run's."""
    trainer, groups = case.made.run.trainer, case.made.sampled.groups
    case.made.before.restore(trainer, case.made.step)
    batch = trainer.objective.advantages(trainer.score(to_batch(groups), groups))
    trainer.update(batch, case.made.step - 1)
    after = {name: p.detach().clone() for name, p in trainer.policy.named_parameters()}
    case.made.before.restore(trainer, case.made.step)
    steps = list(optimizer_steps(trainer, batch, case.made.step))
    for name, p in trainer.policy.named_parameters():
        assert torch.equal(p, after[name])
    assert [list(step.rows) for step in steps] == hand.order()
    for step, weights, gradient in zip(steps, hand.weights, hand.gradients, strict=True):
        compare(step.weights, weights, rel=1e-5)
        compare(step.gradient, gradient, rel=1e-4)


def test_the_slope_and_its_way_back(case: Case, hand: ByHand, slope: Weights) -> None:
    """u_k . d is what the loss loses along d, for directions that share nothing with the gradients."""
    trainer, groups = case.made.run.trainer, case.made.sampled.groups
    case.made.before.restore(trainer, case.made.step)
    batch = trainer.objective.advantages(trainer.score(to_batch(groups), groups))
    steps = list(optimizer_steps(trainer, batch, case.made.step))
    found = slope_after(case.made, batch)
    compare(found, slope, rel=1e-3)
    ways = directions(trainer, case.made.before, [step.gradient for step in steps], found)
    generator = torch.Generator().manual_seed(0)
    for number in range(len(steps)):
        drawn = {
            name: one.abs().mean() * torch.randn(one.shape, generator=generator, dtype=one.dtype)
            for name, one in hand.gradients[number].items()
        }
        none = [{name: torch.zeros_like(one) for name, one in drawn.items()} for _ in steps]
        wanted = along(hand, slope, [*none[:number], drawn, *none[number + 1 :]])
        # `along` is the fall of the loss: - slope . db/dg_k d = u_k . d
        size = sum(float((way.double() * drawn[name]).abs().sum()) for name, way in ways[number].items())
        assert dot({n: w.double() for n, w in ways[number].items()}, drawn) == pytest.approx(wanted, abs=1e-3 * size)


def test_after_a_single_update_the_loss_has_a_ratio_to_the_policy_before() -> None:
    case = made_step("algorithm.num_epochs=1", "algorithm.num_minibatches=1")
    hand = ByHand(case, single=True)
    hand.run()
    trainer = case.made.run.trainer
    batch = trainer.objective.advantages(trainer.score(to_batch(case.made.sampled.groups), case.made.sampled.groups))
    wanted = hand.grads(hand.model, range(len(hand.rows)), hand.advantages())
    compare(slope_after(case.made, batch), wanted, rel=1e-3)
    assert trainer.objective is case.made.run.objective


def compare(found: Mapping[str, torch.Tensor], wanted: Weights, rel: float) -> None:
    """By the length of their difference."""
    gap = sum(float((found[name].double() - wanted[name]).square().sum()) for name in wanted) ** 0.5
    assert gap <= rel * sum(float(one.square().sum()) for one in wanted.values()) ** 0.5


def test_a_step_of_another_optimizer_is_refused(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = case.made.run.trainer
    monkeypatch.setattr(trainer, "settings", trainer.settings.model_copy(update={"optimizer": "muon"}))
    with pytest.raises(UserError, match=r"trainer\.optimizer=muon: influence is computed for AdamW alone"):
        influences(case.made, lambda done, total: None)
