"""Rejection sampling: the policy's own episodes that the metric calls right."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from rlvr.core.executor import Executor
from rlvr.core.rollout import RolloutSource, check_errors
from rlvr.core.world import World
from rlvr.tasks.demonstrations import token_ids
from rlvr.types import Example, GradedAnswer, Group, StopReason, TurnText

Grade = Callable[[Example, Sequence[TurnText]], Awaitable[GradedAnswer]]
"""`Task.grade`"""


@dataclass(frozen=True)
class RightSamples:
    """Samples questions in parts; collective, each rank plays and grades its share."""

    source: RolloutSource
    grade: Grade
    executor: Executor
    world: World
    max_error_share: float  # a larger share of verifier errors is a VerifierError

    def of(self, indices: range) -> list[Group]:
        """The groups of these training examples with what `right_ones` leaves of them."""
        own = self.executor.run(self.source.sample(self.world.share(indices), step=0))
        check_errors(self.world.gather_shares(own), self.max_error_share)
        return self.world.gather_shares(self.executor.run(right_ones(self.grade, own)))


async def right_ones(grade: Grade, groups: Sequence[Group]) -> list[Group]:
    """The groups with their finished episodes that the metric calls right, without repetitions."""

    async def right(group: Group) -> Group:
        grades = await asyncio.gather(*(grade(group.example, one.texts) for one in group.episodes))
        pairs = zip(group.episodes, grades, strict=True)
        fine = [one for one, found in pairs if found.correct and one.stop_reason is StopReason.STOP]
        return replace(group, episodes=tuple({token_ids(one): one for one in fine}.values()))

    return list(await asyncio.gather(*map(right, groups)))
