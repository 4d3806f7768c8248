"""MuSiQue's questions, tools and scores for programs with their own episode loop.

    game = open_game(["task.retriever=golden"])          # the settings of `rlvr train --config-name musique`
    example = game.held_out(100)[0]
    notes = game.begin(example)                          # state of one episode
    result = await game.tools["retrieve_documents"].call({"query": "Lyon"}, notes)
    score = await game.score(example, notes, calls)      # the reward of our training

`rlvr.tasks.multihop` has the tools, `rlvr.rewards.multihop` the rewards.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rlvr.config.compose import load_task_config
from rlvr.envs.tools import Tool
from rlvr.errors import ConfigError
from rlvr.rewards.base import run_verifier
from rlvr.run.tasks import TaskOpener
from rlvr.tasks.dataset import DatasetTask
from rlvr.tasks.multihop import Notes
from rlvr.tasks.multihop_settings import MultiHopEnvs
from rlvr.types import Attempt, Example, GradedAnswer, Score, StopReason, ToolCall

FAMILY = "qwen2"
"""Model family for `prompt.markers=auto`: no model is loaded."""


@dataclass(frozen=True, kw_only=True)
class Game:
    """Questions, the tools to answer them, and the score of an episode."""

    task: DatasetTask
    environments: MultiHopEnvs

    @property
    def tools(self) -> Mapping[str, Tool]:
        """By name. Stateless: each call takes the episode's notes."""
        return {tool.name: tool for tool in self.environments.toolbox}

    def held_out(self, num: int | None = None) -> list[Example]:
        """The first `num` held-out questions, the same for every seed; None: all."""
        return self.task.eval_examples(self._sizes[1] if num is None else num)

    def training(self, num: int | None = None) -> list[Example]:
        """The first `num` of the endless, seeded training stream; None: one pass over the data."""
        return [self.task.train_example(index) for index in range(self._sizes[0] if num is None else num)]

    @property
    def _sizes(self) -> tuple[int, int]:
        assert self.task.sizes is not None
        return self.task.sizes

    def begin(self, example: Example) -> Notes:
        return self.environments.notes(example)

    async def score(
        self, example: Example, notes: Notes, calls: Sequence[ToolCall], *, text: str = "", is_cut_off: bool = False
    ) -> Score:
        """The reward of an episode, from its state after all its calls.

        `calls` are those of all turns in order, failed ones included; `text` is that of the last turn. `is_cut_off`: it
        ended for length, so its calls were not executed.
        """
        return await run_verifier(self.task.verifier, _attempt(example, notes, calls, text, is_cut_off))

    async def grade(
        self, example: Example, calls: Sequence[ToolCall], *, text: str = "", is_cut_off: bool = False
    ) -> GradedAnswer:
        return await self.task.grade_attempt(_attempt(example, None, calls, text, is_cut_off))


def open_game(overrides: Sequence[str] = (), *, config_name: str = "musique", seed: int = 0) -> Game:
    """The task of a configuration with command-line `overrides`: `["task.retriever=hybrid"]`.

    Also for hotpotqa and wiki2. Raises ConfigError or UserError as `rlvr train` would.
    """
    config = load_task_config(config_name, overrides)
    if not config.task.has_documents:
        raise ConfigError(f"config_name={config_name}: is task={config.task.name}; choose musique, hotpotqa or wiki2.")
    # verifier processes start when a reward part needs one, and end with the program
    opener = TaskOpener(config=config, family=FAMILY, functions={}, stack=ExitStack())
    task = opener.open(config, config.task.label, seed)
    assert isinstance(task, DatasetTask)
    assert isinstance(task.environments, MultiHopEnvs)
    return Game(task=task, environments=task.environments)


def _attempt(example: Example, notes: Notes | None, calls: Sequence[ToolCall], text: str, is_cut_off: bool) -> Attempt:
    return Attempt(
        example=example,
        completion=text,
        text=text,
        stop_reason=StopReason.LENGTH if is_cut_off else StopReason.STOP,
        num_tokens=0,
        calls=tuple(calls),
        state=notes,
    )
