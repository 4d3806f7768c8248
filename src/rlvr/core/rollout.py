"""Which rollouts are sampled when: batches are issued in order, delivered in order, and never too old.

With `max_staleness=1` the batch of step 5 is issued when step 4 is about to wait for its own, after 4 updates. Its
tokens are of version 4 or, where new weights came in between, 5; step 5 trains after 5 updates: at most 1 old.

    step         3                   4                   5
    trainer      wait 3 | train      wait 4 | train      wait 5 | train
    rollouts     batch 4 .........   batch 5 .........   batch 6 ......

Delivery in the order of issue is what keeps the bound: a batch that is issued with versions up to k updates behind its
step is trained on in that step and no later one, however long it takes. Replacements of dead groups are begun when
their step finds out, with the newest weights; the trainer waits for them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar

from rlvr.core.algorithms.advantages import is_dead_group
from rlvr.core.env import Env
from rlvr.core.episode import ChatModel, run_episode
from rlvr.core.executor import Executor, patience
from rlvr.core.settings import RolloutSettings
from rlvr.core.world import ALONE, World
from rlvr.errors import UserError
from rlvr.seeding import derive_seed
from rlvr.types import Episode, Example, Group, SamplingParams

T = TypeVar("T")


class Examples(Protocol):
    """What rollouts need of a task."""

    def train_example(self, index: int) -> Example:
        """Example `index` of the endless, seeded training stream."""
        ...

    def envs(self, example: Example, count: int) -> Sequence[Env]:
        """Fresh environments for the episodes of a group."""
        ...


@dataclass(frozen=True, kw_only=True)
class RolloutSource:
    """Samples groups. It has no state: a group is a function of the policy, the run's seed and the prompt's index."""

    task: Examples
    model: ChatModel
    settings: RolloutSettings
    seed: int

    async def sample(self, indices: Sequence[int], *, step: int) -> list[Group]:
        """The groups of these examples of the training stream, in their order.

        What earlier steps still wait for goes first, later turns and replacements too; evaluations (0) before all.
        """
        return await asyncio.gather(*(self._sample_group(index, step) for index in indices))

    async def _sample_group(self, index: int, step: int) -> Group:
        example = self.task.train_example(index)
        plain = self.settings.params(self.model.chat.stop_ids)

        async def episode(sample: int, env: Env) -> Episode:
            def sampling(turn: int) -> SamplingParams:
                return replace(plain, seed=derive_seed(self.seed, "train", index, sample, turn), priority=step)

            seed = derive_seed(self.seed, "train", index, sample)
            return await run_episode(example, env, self.model, sampling, sample_index=sample, seed=seed)

        envs = self.task.envs(example, self.settings.group_size)
        return Group(example=example, episodes=tuple(await asyncio.gather(*map(episode, range(len(envs)), envs))))


@dataclass(frozen=True, kw_only=True)
class SampledGroups:
    """One step's groups in issue order, and how many were replaced on the way."""

    groups: tuple[Group, ...]
    num_refilled: int


@dataclass(kw_only=True)
class RolloutSchedule:
    """Issues, delivers and, with `advance`, tells the engine of new weights.

    Every rank samples its share of each batch and gets the whole; no rank waits for another while it samples. The state
    is which prompts come next: after a resume the batches that were under way are sampled again, with the same seeds
    and, where some of their tokens came from older weights, other tokens.
    """

    source: RolloutSource
    executor: Executor
    max_error_share: float  # more verifier errors than this in a step stop the run: rewards cannot be trusted
    refills: int | None = None  # rounds in which groups of equal rewards are replaced, then dropped; None keeps them
    max_staleness: int = 0
    world: World = ALONE
    _cursor: int = field(default=0, init=False)  # index of the next prompt that no batch has
    _again: deque[range] = field(default_factory=deque, init=False)  # batches that were issued before a resume
    # the batch of the next step, the one after it, ...: its prompts, and how to wait for this rank's groups
    _issued: deque[tuple[range, Callable[[], list[Group]]]] = field(default_factory=deque, init=False)

    def __enter__(self) -> Self:
        self.executor.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            with suppress(TimeoutError):
                self.executor.call(self.source.model.engine.close, patience_s=patience(kind))
        finally:
            self.executor.__exit__(kind, *rest)

    def next_batch(self, step: int, *, last: int | None = None) -> SampledGroups:
        """The groups of `step`, which counts the updates made; no batch of step `last` or later is begun.

        Dead groups are replaced in place while rounds are left, then dropped. Raises UserError when verifiers fail too
        often.
        """
        ahead = self.max_staleness if last is None else min(self.max_staleness, last - 1 - step)
        while len(self._issued) <= ahead:
            indices = self._again.popleft() if self._again else self._take(self.source.settings.prompts_per_step)
            self._issued.append((indices, self._start(indices, step + len(self._issued))))
        _, wait = self._issued.popleft()
        return self._finish(self.world.join(wait()), step)

    def advance(self, version: int) -> None:
        """The policy has new weights: the engine samples with them from the next token on."""
        self.executor.call(lambda: self.source.model.engine.load_weights(version))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of something else that asks the engine, as evaluation does."""
        return self.executor.run(work)

    def _take(self, count: int) -> range:
        self._cursor += count
        return range(self._cursor - count, self._cursor)

    def _start(self, indices: range, step: int) -> Callable[[], list[Group]]:
        return self.executor.start(self.source.sample(self.world.share(indices), step=step))

    def _finish(self, groups: list[Group], step: int) -> SampledGroups:
        sampled = list(groups)
        num_refilled = 0
        for _ in range(self.refills or 0):
            dead = [i for i, group in enumerate(groups) if self._is_dead(group)]
            if not dead:
                break
            num_refilled += len(dead)
            fresh = self.world.join(self._start(self._take(len(dead)), step)())
            sampled += fresh
            for i, group in zip(dead, fresh, strict=True):
                groups[i] = group
        check_errors(sampled, self.max_error_share)
        alive = [group for group in groups if not self._is_dead(group)]
        return SampledGroups(groups=tuple(alive or groups), num_refilled=num_refilled)

    def _is_dead(self, group: Group) -> bool:
        return self.refills is not None and is_dead_group([e.score.value for e in group.episodes])

    def state(self) -> dict[str, Any]:
        """Which prompts come next, for a checkpoint."""
        under_way = [*(indices for indices, _ in self._issued), *self._again]
        return {"cursor": self._cursor, "under_way": [[indices.start, indices.stop] for indices in under_way]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on as `state` says; before the first batch."""
        self._cursor = state["cursor"]
        self._again = deque(range(start, stop) for start, stop in state["under_way"])


def check_errors(groups: Sequence[Group], max_share: float) -> None:
    """UserError if verifiers failed on more than `max_share` of the episodes."""
    episodes = [episode for group in groups for episode in group.episodes]
    errors = [e for e in episodes if e.score.status == "error"]
    if len(errors) > max_share * len(episodes):
        first = str(errors[0].score.diagnostics.get("error", "no message"))
        more = ", or give it more reward.timeout_s," if "timed out" in first else ""
        raise UserError(
            f"the verifier failed on {len(errors)} of {len(episodes)} episodes of this step, more than "
            f"reward.max_error_share={max_share} (first: {first}); correct it{more} and go on with resume=true"
        )
