"""Rollout scheduling: batches are issued and delivered in order, with bounded staleness.

With `max_staleness=1` the batch of step 5 is issued when step 4 starts to wait for its batch, after 4 updates. Its
tokens have version 4, or 5 after new weights arrive; step 5 trains after 5 updates: staleness is at most 1.

    step         3                   4                   5
    trainer      wait 3 | train      wait 4 | train      wait 5 | train
    rollouts     batch 4 .........   batch 5 .........   batch 6 ......

In-order delivery keeps the bound: a batch issued up to k updates before its step is trained on in that step, however
long it takes. Replacements of dead groups are sampled within their step with the newest weights; the trainer waits.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar

from rlvr.algorithms.advantages import is_dead_group
from rlvr.core.env import Env
from rlvr.core.episode import ChatModel, run_episode
from rlvr.core.errors import LargeRewardError, VerifierError
from rlvr.core.executor import Executor, patience
from rlvr.core.settings import RolloutSettings
from rlvr.core.world import ALONE, World
from rlvr.seeding import derive_seed
from rlvr.types import LARGEST_REWARD, Episode, Example, Group, SamplingParams

T = TypeVar("T")


class Examples(Protocol):
    """The part of a task that rollouts use."""

    def train_example(self, index: int) -> Example:
        """Example `index` of the endless, seeded training stream."""
        ...

    def envs(self, example: Example, count: int) -> Sequence[Env]:
        """Fresh environments for the episodes of a group."""
        ...


class Prompts(Protocol):
    """Chooses the prompts of each step; all ranks make the same calls."""

    def take(self, count: int) -> list[int]:
        """`count` different indices of the training stream."""
        ...

    def observe(self, groups: Sequence[Group]) -> None:
        """All groups of a step, replaced ones included, before they are trained on."""

    def state(self) -> Any:
        """What `restore` needs, as JSON."""

    def restore(self, state: Any) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RolloutSource:
    """Samples groups. Stateless: a group is a function of the policy, the run seed and the prompt index."""

    task: Examples
    model: ChatModel
    settings: RolloutSettings
    seed: int

    async def sample(self, indices: Sequence[int], *, step: int) -> list[Group]:
        """The groups of these examples of the training stream, in order.

        Engine priority is the step: earlier steps first, with their later turns and replacements; evaluations (0)
        before all.
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
    """One step's groups in issue order, and the number of groups that were replaced and dropped for equal rewards."""

    groups: tuple[Group, ...]
    num_refilled: int
    num_dropped: int | None = None  # None: such groups are kept


@dataclass(kw_only=True)
class RolloutSchedule:
    """Issues and delivers batches; `advance` passes new weights to the engine.

    Every rank samples its share of each batch and gets the whole batch; ranks do not wait for each other while
    sampling. The state is the sampler's and the batches in flight. After a resume, these are sampled again with the
    same seeds; tokens differ if older weights had sampled them.
    """

    source: RolloutSource
    executor: Executor
    prompts: Prompts
    max_error_share: float  # a larger share of verifier errors in a step stops the run
    refills: int | None = None  # rounds in which groups of equal rewards are replaced, then dropped; None keeps them
    max_staleness: int = 0
    world: World = ALONE
    late: Callable[[list[Group]], list[Group]] = list  # completes the scores of sampled groups, in this thread
    _again: deque[list[int]] = field(default_factory=deque, init=False)  # batches in flight before a resume
    # prompts of the next steps, and functions that wait for this rank's groups
    _issued: deque[tuple[list[int], Callable[[], list[Group]]]] = field(default_factory=deque, init=False)

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
        """The groups of `step` (updates made so far); does not issue batches of step `last` or later.

        Dead groups are replaced in place for `refills` rounds, then dropped. Raises VerifierError above
        `max_error_share`.
        """
        ahead = self.max_staleness if last is None else min(self.max_staleness, last - 1 - step)
        while len(self._issued) <= ahead:
            indices = self._again.popleft() if self._again else self._take(self.source.settings.prompts_per_step)
            self._issued.append((indices, self._start(indices, step + len(self._issued))))
        _, wait = self._issued.popleft()
        return self._finish(self.world.gather_shares(wait()), step)

    def advance(self, version: int) -> None:
        """Load the new weights into the engine; the next token uses them."""
        self.executor.call(lambda: self.source.model.engine.load_weights(version))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run other engine work, such as an evaluation."""
        return self.executor.run(work)

    def _take(self, count: int) -> list[int]:
        return self.world.first(self.prompts.take(count))  # also if the user's draws differ between ranks

    def _start(self, indices: Sequence[int], step: int) -> Callable[[], list[Group]]:
        wait = self.executor.start(self.source.sample(self.world.share(indices), step=step))
        return lambda: self.late(wait())

    def _finish(self, groups: list[Group], step: int) -> SampledGroups:
        sampled = list(groups)
        num_refilled = 0
        for _ in range(self.refills or 0):
            dead = [i for i, group in enumerate(groups) if self._is_dead(group)]
            if not dead:
                break
            num_refilled += len(dead)
            fresh = self.world.gather_shares(self._start(self._take(len(dead)), step)())
            sampled += fresh
            for i, group in zip(dead, fresh, strict=True):
                groups[i] = group
        check_errors(sampled, self.max_error_share)
        check_sizes(sampled)
        self.prompts.observe(sampled)
        kept = [group for group in groups if not self._is_dead(group)] or groups
        num_dropped = None if self.refills is None else len(groups) - len(kept)
        return SampledGroups(groups=tuple(kept), num_refilled=num_refilled, num_dropped=num_dropped)

    def _is_dead(self, group: Group) -> bool:
        return self.refills is not None and is_dead_group([e.score.value for e in group.episodes])

    def state(self) -> dict[str, Any]:
        """What chooses the next prompts, and those under way, for a checkpoint."""
        under_way = [*(indices for indices, _ in self._issued), *self._again]
        return {"sampler": self.prompts.state(), "indices": under_way}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`; call before the first batch."""
        self.prompts.restore(state.get("sampler", state))  # 0.2.0 wrote a cursor and ranges
        self._again = deque(state.get("indices") or [[*range(*ends)] for ends in state.get("under_way", ())])


def check_sizes(groups: Sequence[Group]) -> None:
    """LargeRewardError for a reward that overflows in the update."""
    for episode in (episode for group in groups for episode in group.episodes):
        score = episode.score
        if score.status != "error" and not abs(score.value) <= LARGEST_REWARD:
            raise LargeRewardError(example=episode.example_id, value=score.value, largest=LARGEST_REWARD)


def check_errors(groups: Sequence[Group], max_share: float) -> None:
    """VerifierError if verifiers failed on more than `max_share` of the episodes."""
    episodes = [episode for group in groups for episode in group.episodes]
    errors = [e for e in episodes if e.score.status == "error"]
    if len(errors) > max_share * len(episodes):
        first = str(errors[0].score.diagnostics.get("error", "no message"))
        raise VerifierError(len(errors), len(episodes), max_share, first)
