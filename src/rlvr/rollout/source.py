"""Where the training groups come from: fresh prompts, sampled with the current policy, delivered in issue order."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from rlvr.config.schema import Rollout
from rlvr.engines.base import Engine
from rlvr.envs.base import Env
from rlvr.errors import UserError
from rlvr.rollout.episode import ChatCodec, run_episode
from rlvr.seeding import derive_seed
from rlvr.types import Episode, Example, Group, SamplingParams


class TrainTask(Protocol):
    """What the source needs of a task."""

    def train_example(self, index: int) -> Example:
        """Example `index` of the endless, seeded training stream."""
        ...

    def envs(self, example: Example, count: int) -> Sequence[Env]:
        """The fresh single-use environments of a group."""
        ...


@dataclass(frozen=True, kw_only=True)
class Refill:
    """Dynamic sampling (DAPO): groups for which `is_dead` holds are replaced, in at most `max_rounds` rounds."""

    is_dead: Callable[[Sequence[float]], bool]
    max_rounds: int


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """One step's groups in issue order, and how many were replaced on the way."""

    groups: tuple[Group, ...]
    num_refilled: int


class RolloutSource:
    """Samples groups. Its whole state is `cursor`, the index of the next training example: all that resume needs."""

    def __init__(
        self,
        *,
        task: TrainTask,
        engine: Engine,
        chat: ChatCodec,
        settings: Rollout,
        refill: Refill | None,
        seed: int,
        max_context_tokens: int,
        max_error_share: float,
    ) -> None:
        """More verifier errors than `max_error_share` of a step's episodes stop the run: rewards cannot be trusted."""
        self.cursor = 0
        self._task, self._engine, self._chat = task, engine, chat
        self._settings, self._refill, self._seed = settings, refill, seed
        self._max_context_tokens, self._max_error_share = max_context_tokens, max_error_share
        self._sampling = SamplingParams(
            max_tokens=settings.max_completion_tokens,
            stop_ids=chat.stop_ids,
            seed=0,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
        )

    async def next_batch(self) -> Rollouts:
        """The next step's groups. Dead ones are replaced in place while rounds are left, then dropped.

        Raises UserError when verifiers fail too often.
        """
        wanted = self._settings.prompts_per_step
        groups = list(await self._sample(wanted))
        sampled = list(groups)
        if self._refill is None:
            _check_errors(sampled, self._max_error_share)
            return Rollouts(groups=tuple(groups), num_refilled=0)
        num_refilled = 0
        for _ in range(self._refill.max_rounds):
            dead = [i for i, group in enumerate(groups) if self._is_dead(group)]
            if not dead:
                break
            num_refilled += len(dead)
            fresh = await self._sample(len(dead))
            sampled += fresh
            for i, group in zip(dead, fresh, strict=True):
                groups[i] = group
        _check_errors(sampled, self._max_error_share)
        alive = [group for group in groups if not self._is_dead(group)]
        return Rollouts(groups=tuple(alive or groups), num_refilled=num_refilled)

    def _is_dead(self, group: Group) -> bool:
        assert self._refill is not None
        rewards = [e.score.value for e in group.episodes if not math.isnan(e.score.value)]
        return self._refill.is_dead(rewards)

    async def _sample(self, num_groups: int) -> list[Group]:
        indices = range(self.cursor, self.cursor + num_groups)
        self.cursor += num_groups
        return await asyncio.gather(*(self._sample_group(index) for index in indices))

    async def _sample_group(self, index: int) -> Group:
        example = self._task.train_example(index)
        envs = self._task.envs(example, self._settings.group_size)
        episodes = await asyncio.gather(
            *(self._sample_episode(example, env, index, sample) for sample, env in enumerate(envs))
        )
        return Group(example=example, episodes=tuple(episodes))

    async def _sample_episode(self, example: Example, env: Env, index: int, sample: int) -> Episode:
        def sampling(turn: int) -> SamplingParams:
            return replace(self._sampling, seed=derive_seed(self._seed, "train", index, sample, turn))

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


def _check_errors(groups: Sequence[Group], max_share: float) -> None:
    episodes = [episode for group in groups for episode in group.episodes]
    errors = [e for e in episodes if e.score.status == "error"]
    if len(errors) > max_share * len(episodes):
        first = str(errors[0].score.diagnostics.get("error", "no message"))
        more = ", or give it more reward.timeout_s," if "timed out" in first else ""
        raise UserError(
            f"the verifier failed on {len(errors)} of {len(episodes)} episodes of this step, more than "
            f"reward.max_error_share={max_share} (first: {first}); mend it{more} and go on with resume=true"
        )
