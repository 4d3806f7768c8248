"""Own samples are kept if they are right, finished and new."""

import asyncio
from collections.abc import Sequence
from typing import Any

from rlvr.evaluation.right_samples import right_ones
from rlvr.tasks.demonstrations import token_ids
from rlvr.types import Example, GradedAnswer, StopReason
from tests.unit.core.fakes import completion, episode, group


def test_right_finished_different_samples_are_kept() -> None:
    right, same, wrong = (episode(((1,), completion(*ids))) for ids in ((5, 0), (5, 0), (6, 0)))
    cut = episode(((1,), completion(5, 5, stop=StopReason.LENGTH)))

    async def grade(example: Example, turns: Sequence[Any]) -> GradedAnswer:
        return GradedAnswer(answer="", correct=turns[-1].completion.startswith("5"))

    (kept,) = asyncio.run(right_ones(grade, [group(right, same, wrong, cut)]))
    assert [token_ids(one) for one in kept.episodes] == [((1, 5, 0),)]
