"""Supervised training by the trainer: its gradient is that of the mean negative logprob, its order a function of the
seed."""

import math
from collections import Counter

import pytest
import torch

from rlvr.algorithms.objective import Objective
from rlvr.core import supervised
from rlvr.core.batch import to_batch
from rlvr.core.supervised import Sft, num_steps, train_supervised
from rlvr.core.trainer import Trainer
from rlvr.models.policy import HubPolicy
from rlvr.types import Completion, Episode, StopReason
from tests.unit.core.fakes import episode, group
from tests.unit.core.tiny import tiny_config, tiny_policy, update


def said(*ids: int) -> Completion:
    unknown = (math.nan,) * len(ids)
    return Completion(
        token_ids=ids,
        behavior_logprobs=unknown,
        sampling_logprobs=unknown,
        stop_reason=StopReason.STOP,
        policy_version=0,
    )


EXAMPLES = [
    episode(((1, 5, 3), said(6, 2))),
    episode(((1, 5, 3), said(7, 8, 2))),
    episode(((1, 4), said(9, 2)), ((1, 4, 9, 2, 10, 11), said(12, 2))),  # two turns, with a reply of two tokens
]


def trainer_of(policy: HubPolicy, max_steps: int = 2) -> Trainer:
    config = tiny_config("trainer.max_grad_norm=1e9", "trainer.warmup_steps=0", "trainer.learning_rate=1e-3")
    objective = Objective(algorithm=Sft(), max_completion_tokens=16, temperature=1.0)
    settings = config.trainer.model_copy(update={"max_steps": max_steps})
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


def test_every_epoch_sees_every_example_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(seed: int) -> list[list[int]]:
        batches: list[list[int]] = []

        def noted(groups):
            batches.append([EXAMPLES.index(one) for one in groups[0].episodes])
            return to_batch(groups)

        monkeypatch.setattr(supervised, "to_batch", noted)
        losses = train_supervised(trainer_of(tiny_policy()), EXAMPLES, num_epochs=4, batch_size=2, seed=seed)
        assert len(list(losses)) == num_steps(len(EXAMPLES), num_epochs=4, batch_size=2) == 6
        return batches

    order = [place for batch in seen(0) for place in batch]
    assert [Counter(order[first : first + 3]) for first in (0, 3, 6, 9)] == [Counter(range(3))] * 4
    assert seen(0) == seen(0) != seen(1)


def test_the_loss_falls() -> None:
    losses = list(train_supervised(trainer_of(tiny_policy(), 20), EXAMPLES, num_epochs=20, batch_size=3, seed=0))
    assert losses[-1] < 0.5 * losses[0]
