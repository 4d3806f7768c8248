"""What `debug=true` needs of a run: what its episodes are worth, in words."""

import asyncio
from collections.abc import Mapping

from rlvr.config import Config
from rlvr.core.episode import ChatCodec, turn_texts
from rlvr.errors import UserError
from rlvr.tasks.base import Task
from rlvr.tracking.console import Console
from rlvr.tracking.episodes import EpisodePrinter
from rlvr.types import Episode, Example, GradedAnswer, Group


def episode_printer(config: Config, task: Task, chat: ChatCodec, console: Console) -> EpisodePrinter | None:
    """Prints every episode of a debug run; None for other runs."""
    if not config.debug:
        return None

    async def graded(example: Example, episode: Episode) -> GradedAnswer:
        try:
            return await task.grade(example, turn_texts(chat, episode.turns, task.env(example).tools))
        except UserError as error:  # no metric has to be able to grade a training episode
            return GradedAnswer(answer=None, correct=False, failure=str(error))

    async def all_graded(group: Group) -> list[GradedAnswer]:
        return list(await asyncio.gather(*(graded(group.example, one) for one in group.episodes)))

    return EpisodePrinter(
        print=console.show,
        decode=chat.decode,
        weights=lambda group: _part_weights(config, group.example),
        grades=lambda group: asyncio.run(all_graded(group)),
    )


def _part_weights(config: Config, example: Example) -> Mapping[str, float]:
    """What each part of the reward of an example's task counts."""
    bundle = config.task.bundles.get(str(example.metadata.get("task")), config)
    return {name: part.weight for name, part in bundle.reward.parts.items()}
