"""Where the training groups come from: a prompt of the training stream, sampled with the current policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from rlvr.core.engine.base import Engine
from rlvr.core.env import Env
from rlvr.core.episode import ChatCodec, run_episode
from rlvr.core.settings import RolloutSettings
from rlvr.seeding import derive_seed
from rlvr.types import Episode, Example, Group, SamplingParams


class Examples(Protocol):
    """What rollouts need of a task."""

    def train_example(self, index: int) -> Example:
        """Example `index` of the endless, seeded training stream."""
        ...

    def envs(self, example: Example, count: int) -> Sequence[Env]:
        """Fresh environments for the episodes of a group."""
        ...


class RolloutSource:
    """Samples groups. It has no state: a group is a function of the policy, the run's seed and the prompt's index."""

    def __init__(
        self,
        *,
        task: Examples,
        engine: Engine,
        chat: ChatCodec,
        settings: RolloutSettings,
        seed: int,
        max_context_tokens: int,
    ) -> None:
        self._task, self._engine, self._chat = task, engine, chat
        self._settings, self._seed = settings, seed
        self._max_context_tokens = max_context_tokens
        self._sampling = settings.params(chat.stop_ids)

    @property
    def prompts_per_step(self) -> int:
        """Groups of a batch."""
        return self._settings.prompts_per_step

    async def sample(self, indices: Sequence[int], *, step: int) -> list[Group]:
        """The groups of these examples of the training stream, in their order.

        What earlier steps still wait for goes first, later turns and replacements too; evaluations (0) before all.
        """
        return await asyncio.gather(*(self._sample_group(index, step) for index in indices))

    async def _sample_group(self, index: int, step: int) -> Group:
        example = self._task.train_example(index)
        envs = self._task.envs(example, self._settings.group_size)
        episodes = await asyncio.gather(
            *(self._sample_episode(example, env, index, sample, step) for sample, env in enumerate(envs))
        )
        return Group(example=example, episodes=tuple(episodes))

    async def _sample_episode(self, example: Example, env: Env, index: int, sample: int, step: int) -> Episode:
        def sampling(turn: int) -> SamplingParams:
            return replace(self._sampling, seed=derive_seed(self._seed, "train", index, sample, turn), priority=step)

        return await run_episode(
            example,
            env,
            self._engine,
            self._chat,
            sampling,
            sample_index=sample,
            seed=derive_seed(self._seed, "train", index, sample),
            max_context_tokens=self._max_context_tokens,
        )
