"""MuSiQue as a v1 taskset of verifiers 0.4: rlvr's questions, tools and rewards.

    vf-eval vf-musique --env.taskset.split eval --env.taskset.retriever hybrid ...

The library calls tools in another process than that which scores. So an episode is scored by playing the model's
messages again, in rlvr's own environment: local retrievers are deterministic, and the reward equals that of rlvr's
training exactly.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Iterable
from typing import Any, Literal, Self

import verifiers.v1 as vf
from pydantic import Field, model_validator
from verifiers.v1.dialects.chat import message_to_wire

from rlvr.core.env import TurnText
from rlvr.envs.tools import Tool
from rlvr.types import Example, Message, StopReason
from rlvr_verifiers.env import to_messages
from rlvr_verifiers.musique import Game, open_game

MEASURED = ("answer_em", "answer_f1", "tool_calls", "tool_errors", "malformed_calls", "unknown_tools")
"""Diagnostics of rlvr's score that become metrics, besides the reward parts."""

SCORE = "rlvr_score"  # key of a trace's info
ABSENT = "\0"  # an argument that the model has not given


class Opened:
    """The game of some settings, and its examples by id."""

    def __init__(self, lines: tuple[str, ...], seed: int) -> None:
        self.game: Game = open_game(lines, seed=seed)
        self._examples: dict[str, Example] = {}

    def drawn(self, split: str, num: int | None) -> list[Example]:
        examples = (self.game.training if split == "train" else self.game.held_out)(num)
        self._examples |= {example.id: example for example in examples}
        return examples

    def example(self, name: str) -> Example:
        """The example with this id. A server of tools has drawn none."""
        for split in ("eval", "train"):
            if name not in self._examples:
                self.drawn(split, None)
        return self._examples[name]


@functools.cache
def opened(lines: tuple[str, ...], seed: int) -> Opened:
    return Opened(lines, seed)


class MusiqueData(vf.TaskData):
    answer: str = ""


class MusiqueTaskConfig(vf.TaskConfig):
    lines: list[str] = Field(default_factory=list)
    seed: int = 0


class MusiqueConfig(vf.TasksetConfig):
    """What is None is as in `rlvr train --config-name musique --cfg job`; `settings` are more lines of it."""

    split: Literal["train", "eval"] = "train"
    num_examples: int = -1  # -1: all
    reward: str | None = None
    settings: list[str] = Field(default_factory=list)
    seed: int = 0
    retriever: str | None = None
    noise_rate: float | None = None
    eval_noise_rate: float | None = None
    max_turns: int | None = None
    top_n: int | None = None
    train_sets: str | None = None
    eval_sets: str | None = None
    task: MusiqueTaskConfig = MusiqueTaskConfig()

    @model_validator(mode="after")
    def _tell_the_tasks(self) -> Self:
        """The library asks for the tools of a configuration alone."""
        self.task = self.task.model_copy(update={"lines": self.lines, "seed": self.seed})
        return self

    @property
    def lines(self) -> list[str]:
        """The settings as lines of rlvr's configuration."""
        named = ("retriever", "noise_rate", "eval_noise_rate", "max_turns", "top_n", "train_sets", "eval_sets")
        chosen = {"reward": self.reward} | {f"task.{name}": getattr(self, name) for name in named}
        written = {key: json.dumps(value, ensure_ascii=False) for key, value in chosen.items() if value is not None}
        return [*(f"{key}={value}" for key, value in written.items()), *self.settings]


class MusiqueState(vf.State):
    completed: bool = False


class MusiqueToolsConfig(vf.ToolsetConfig):
    lines: list[str] = Field(default_factory=list)
    seed: int = 0


class MusiqueTools(vf.Toolset[MusiqueToolsConfig, MusiqueState]):
    """rlvr's tools, with their own schemas and errors."""

    TOOL_PREFIX = None

    async def setup_task(self, task: MusiqueData) -> None:
        there = self._opened
        self._notes = there.game.begin(there.example(str(task.id)))

    @property
    def _opened(self) -> Opened:
        return opened(tuple(self.config.lines), self.config.seed)

    def register(self, mcp: Any) -> None:
        for name, tool in self._opened.game.tools.items():
            function = tool.schema["function"]
            mcp.add_tool(self._with_state(self._called(tool)), name=name, description=function["description"])
            # rlvr checks the arguments by itself, and tells the model in its own words
            mcp._tool_manager.get_tool(name).parameters = dict(function["parameters"])

    def _called(self, tool: Tool) -> Any:
        async def call(**arguments: Any) -> str:
            given = {key: value for key, value in arguments.items() if value != ABSENT}
            result = await tool.call(given, self._notes)
            if result.failure is not None:
                return f"Error: {tool.name}: {result.text}"
            self.state.completed |= tool.final
            return result.text

        names, keyword = tool.schema["function"]["parameters"]["properties"], inspect.Parameter.KEYWORD_ONLY
        optional = [inspect.Parameter(name, keyword, default=ABSENT, annotation=Any) for name in names]
        call.__signature__ = inspect.Signature(optional)  # type: ignore[attr-defined]
        return call


class MusiqueTask(vf.Task[MusiqueData, MusiqueState, MusiqueTaskConfig]):
    @classmethod
    def toolsets(cls, config: MusiqueTaskConfig) -> list[vf.Toolset]:
        return [MusiqueTools(MusiqueToolsConfig(lines=config.lines, seed=config.seed))]

    @property
    def _opened(self) -> Opened:
        return opened(tuple(self.config.lines), self.config.seed)

    @vf.stop
    async def completed(self, trace: vf.Trace) -> bool:
        return trace.state.completed

    @vf.stop
    async def max_turns(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= self._opened.game.environments.settings.max_turns

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """rlvr's score of the whole rollout. A scoring failure is an error of the rollout, never a 0."""
        there = self._opened
        env = there.game.task.env(there.example(str(self.data.id)))
        await env.start()
        turns = turns_of(trace)
        for said, turn in turns:
            if turn.stop_reason == StopReason.STOP:  # an unfinished message cannot be answered
                await env.step(said)
        score = await env.score([turn for _, turn in turns])
        if score.status == "error":
            raise RuntimeError(str(score.diagnostics.get("error", "no score")))
        measured = {name: score.diagnostics[name] for name in MEASURED if name in score.diagnostics}
        trace.info[SCORE] = {"reward": score.value, "metrics": {**score.parts, **measured}}

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        return trace.info[SCORE]["reward"]

    @vf.metric
    async def parts(self, trace: vf.Trace) -> dict[str, float]:
        return {name: float(value) for name, value in trace.info[SCORE]["metrics"].items()}


class MusiqueTaskset(vf.Taskset[MusiqueTask, MusiqueConfig]):
    def load(self) -> Iterable[MusiqueTask]:
        lines, seed, num = self.config.lines, self.config.seed, self.config.num_examples
        for example in opened(tuple(lines), seed).drawn(self.config.split, None if num < 0 else num):
            *system, question = example.messages
            data = MusiqueData(
                id=example.id,
                prompt=question.content,
                system_prompt="\n\n".join(message.content for message in system) or None,
                answer=example.answer,
            )
            yield MusiqueTask(data, self.config.task)


def turns_of(trace: vf.Trace) -> list[tuple[Message, TurnText]]:
    """Each completion as a message and as a turn."""
    reasons = {call.node: call.finish_reason for call in trace.calls}
    found = []
    for place, node in enumerate(trace.nodes):
        if not node.sampled:
            continue
        (said,) = to_messages([message_to_wire(node.message)])
        reason = StopReason.LENGTH if reasons.get(place) == "length" else StopReason.STOP
        text, calls = said.content, said.tool_calls
        turn = TurnText(prompt="", completion=text, text=text, stop_reason=reason, num_tokens=0, calls=calls)
        found.append((said, turn))
    return found


__all__ = ["MusiqueTaskset"]

if __name__ == "__main__":  # the library starts a server of tools so
    MusiqueTools.run()
