"""Supervised training by the trainer: its gradient is that of the mean negative logprob, its order a function of the
seed."""

from collections import Counter

import pytest
import torch

from rlvr.algorithms.objective import Objective
from rlvr.core.batch import to_batch
from rlvr.core.supervised import Sft, everything, places, right_episode, train_supervised
from rlvr.core.trainer import Trainer
from rlvr.models.policy import HubPolicy
from rlvr.types import Episode
from tests.unit.core.fakes import group
from tests.unit.core.tiny import tiny_config, tiny_policy, update

EXAMPLES = [
    right_episode("a", [((1, 5, 3), (6, 2))]),
    right_episode("b", [((1, 5, 3), (7, 8, 2))]),
    # two turns, with a reply of two tokens
    right_episode("c", [((1, 4), (9, 2)), ((1, 4, 9, 2, 10, 11), (12, 2))]),
]


def trainer_of(policy: HubPolicy, max_steps: int = 2, optimizer: str = "adamw") -> Trainer:
    config = tiny_config("trainer.max_grad_norm=1e9", "trainer.warmup_steps=0", "trainer.learning_rate=1e-3")
    objective = Objective(algorithm=Sft(), max_completion_tokens=16, temperature=1.0)
    settings = config.trainer.model_copy(update={"max_steps": max_steps, "optimizer": optimizer})
    return Trainer(policy=policy, objective=objective, settings=settings, seed=0)


def by_hand(policy: HubPolicy, one: Episode) -> list[torch.Tensor]:
    """Negative logprobs of the completions' tokens, from a plain pass over the last turn."""
    last = one.turns[-1]
    ids = torch.tensor([last.prompt_ids + last.completion.token_ids])
    logprobs = torch.log_softmax(policy.model(input_ids=ids, use_cache=False).logits[0, :-1].float(), -1)
    places = [len(turn.prompt_ids) + n for turn in one.turns for n in range(len(turn.completion.token_ids))]
    return [-logprobs[place - 1, ids[0, place]] for place in places]


def test_the_gradient_is_that_of_the_mean_negative_logprob() -> None:
    policy, other = tiny_policy(), tiny_policy()
    metrics = update(trainer_of(policy), to_batch([group(*EXAMPLES)]))
    loss = torch.stack([x for one in EXAMPLES for x in by_hand(other, one)]).mean()
    loss.backward()
    assert metrics["loss/policy"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["policy/trained_tokens"] == 9
    for ours, theirs in zip(policy.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_all_tokens_but_the_first_are_learned_of_everything() -> None:
    """Also of a history that was rewritten, whose rows begin anew."""
    rewritten = right_episode("d", [((1, 4), (9, 2)), ((1, 7), (8, 2))])
    batch = to_batch([group(*map(everything, [*EXAMPLES, rewritten]))])
    assert batch.loss_mask.sum(1).tolist() == (batch.lengths - 1).tolist() == [4, 5, 7, 3, 3]
    assert not batch.loss_mask[:, 0].any()
    plain = to_batch([group(*EXAMPLES, rewritten)])
    assert batch.ids.equal(plain.ids)
    assert plain.loss_mask.sum(1).tolist() == [2, 3, 4, 2, 2]


def test_every_epoch_sees_every_example_once() -> None:
    steps = list(places(3, total=12, batch_size=2, seed=0))
    assert [len(step) for step in steps] == [2] * 6
    order = [place for step in steps for place in step]
    assert [Counter(order[first : first + 3]) for first in (0, 3, 6, 9)] == [Counter(range(3))] * 4
    assert steps == list(places(3, total=12, batch_size=2, seed=0)) != list(places(3, total=12, batch_size=2, seed=1))
    assert [len(step) for step in places(3, total=7, batch_size=4, seed=0)] == [4, 3]


def test_an_endless_stream_is_seen_in_order() -> None:
    assert list(places(None, total=5, batch_size=2, seed=0)) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_loss_falls(optimizer: str) -> None:
    losses = list(train_supervised(trainer_of(tiny_policy(), 20, optimizer), [EXAMPLES] * 20))
    assert losses[-1] < 0.5 * losses[0]
