"""Supervised training by the trainer of RL: advantage 1 for every token of a right episode, in packed microbatches.

An episode's completions are learned from; tool replies are part of its row, but not:

    <q> where p3 | <call> search p3 </call> | <tool> p3 works-at o7 . </tool> | <ans> c4 </ans> <eoe>
                   learned                                                      learned

`everything(episode)` is learned from its second token on, as in pretraining: a model must learn the language somewhere.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from math import nan

import torch

from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.algorithm import Algorithm
from rlvr.algorithms.losses import Surrogate
from rlvr.core.batch import episode_rows, to_batch
from rlvr.core.trainer import Trainer
from rlvr.seeding import derive_seed
from rlvr.types import Completion, Episode, Example, Group, Score, StopReason, Turn

UNASKED = Example(id="", messages=(), answer="")


class Sft(Algorithm):
    """The loss is the mean negative logprob of the learned tokens. Chosen by no name: see `warm_start`."""

    def advantages(self, batch, penalties, mask):
        return Estimate(advantages=torch.ones_like(penalties))

    def surrogate(self, log_ratio, logprobs, advantages, mask):
        never = torch.zeros_like(mask)
        ratio = log_ratio.detach().exp()
        return Surrogate(loss=-advantages * logprobs, ratio=ratio, clipped_low=never, clipped_high=never)


def train_supervised(trainer: Trainer, lessons: Iterable[Sequence[Episode]]) -> Iterator[float]:
    """Make an optimizer step on the episodes of each lesson; yields the loss before each step.

    Raises NonFiniteError before a non-finite gradient changes a weight. Collective, as `Trainer.update`.
    """
    for step, episodes in enumerate(lessons):
        batch = to_batch([Group(example=UNASKED, episodes=tuple(episodes))])
        batch = trainer.objective.advantages(trainer.score(batch))
        metrics, _ = trainer.update(batch, step)
        yield metrics["loss/policy"]


def places(size: int | None, *, total: int, batch_size: int, seed: int) -> Iterator[list[int]]:
    """The numbers of each step's examples, `total` in all; the last step may have fewer.

    Of `size` examples each comes once per epoch, in a new seeded order; of an endless stream (None) they are in order.
    """
    order = islice(count() if size is None else _epochs(size, seed), total)
    while batch := list(islice(order, batch_size)):
        yield batch


def _epochs(size: int, seed: int) -> Iterator[int]:
    for epoch in count():
        order = list(range(size))
        random.Random(derive_seed(seed, "supervised", epoch)).shuffle(order)
        yield from order


def right_episode(example_id: str, turns: Iterable[tuple[tuple[int, ...], tuple[int, ...]]]) -> Episode:
    """An episode of prompts and completions from data, not sampled."""
    made = tuple(Turn(prompt_ids=prompt, completion=_completion(ids)) for prompt, ids in turns)
    right, stop = Score(value=1.0), StopReason.STOP
    return Episode(example_id=example_id, sample_index=0, seed=0, turns=made, score=right, stop_reason=stop)


def everything(episode: Episode) -> Episode:
    """The episode with all tokens but the first of each row as completions."""
    return right_episode(episode.example_id, ((row.ids[:1], row.ids[1:]) for row in episode_rows(episode)))


def _completion(ids: tuple[int, ...]) -> Completion:
    unknown = (nan,) * len(ids)  # a missing logprob counts as the trainer's
    return Completion(
        token_ids=ids,
        behavior_logprobs=unknown,
        sampling_logprobs=unknown,
        stop_reason=StopReason.STOP,
        policy_version=0,
    )
