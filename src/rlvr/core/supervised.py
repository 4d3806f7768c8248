"""Supervised training by the trainer of RL: advantage 1 for every token of a right episode, in packed microbatches."""

import random
from collections.abc import Iterator, Sequence

import torch

from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.algorithm import Algorithm
from rlvr.algorithms.losses import Surrogate
from rlvr.core.batch import to_batch
from rlvr.core.trainer import Trainer
from rlvr.seeding import derive_seed
from rlvr.types import Episode, Example, Group


class Sft(Algorithm):
    """The loss is the mean negative logprob of the completions' tokens. Chosen by no name: see `warm_start`."""

    def advantages(self, batch, penalties, mask):
        return Estimate(advantages=torch.ones_like(penalties))

    def surrogate(self, log_ratio, logprobs, advantages, mask):
        never = torch.zeros_like(mask)
        ratio = log_ratio.detach().exp()
        return Surrogate(loss=-advantages * logprobs, ratio=ratio, clipped_low=never, clipped_high=never)


def num_steps(num_examples: int, *, num_epochs: int, batch_size: int) -> int:
    """Optimizer steps; the last one may be smaller."""
    return -(-num_examples * num_epochs // batch_size)


def train_supervised(
    trainer: Trainer, examples: Sequence[Episode], *, num_epochs: int, batch_size: int, seed: int
) -> Iterator[float]:
    """Train on the episodes, each once per epoch in a new seeded order; yields the loss before each step.

    Raises NonFiniteError before a non-finite gradient changes a weight. Collective, as `Trainer.update`.
    """
    order = [place for epoch in range(num_epochs) for place in _shuffled(len(examples), seed, epoch)]
    for step, first in enumerate(range(0, len(order), batch_size)):
        episodes = tuple(examples[place] for place in order[first : first + batch_size])
        batch = to_batch([Group(example=Example(id="", messages=(), answer=""), episodes=episodes)])
        batch = trainer.objective.advantages(trainer.score(batch))
        metrics, _ = trainer.update(batch, step)
        yield metrics["loss/policy"]


def _shuffled(size: int, seed: int, epoch: int) -> list[int]:
    order = list(range(size))
    random.Random(derive_seed(seed, "supervised", epoch)).shuffle(order)
    return order
