"""A taskset of the verifiers library for tests: `kind` chooses its task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf
from pydantic import Field


class Data(vf.TaskData):
    answer: str = ""


class Config(vf.TaskConfig):
    mode: str = "plain"


class TasksetConfig(vf.TasksetConfig):
    kind: str = "letters"
    num: int = 40
    mode: str = "plain"


class State(vf.State):
    words: list[str] = Field(default_factory=list)


def text_of(trace: vf.Trace) -> str:
    return "".join(message.content or "" for message in trace.assistant_messages)


class Letters(vf.Task[Data, vf.State, Config]):
    @vf.reward
    async def share_of_e(self, trace: vf.Trace) -> float:
        text = text_of(trace)
        return text.count("e") / max(len(text), 1)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(text_of(trace)))

    @vf.metric
    async def cut(self, trace: vf.Trace) -> float:
        return float(trace.is_truncated)


class Numbers(vf.Task[Data, vf.State, Config]):
    @vf.reward(weight=2.0)
    async def right(self, task: Data, trace: vf.Trace) -> float:
        return float(trace.last_reply == task.answer)

    @vf.reward(weight=0.5)
    async def named(self, trace: vf.Trace) -> dict[str, float]:
        return {"short": float(len(trace.last_reply) < 3)}


class Breaks(Numbers):
    @vf.reward
    async def broken(self, task: Data) -> float:
        if task.answer == "3":
            raise KeyError("no such column")
        return 1.0


class Failing(Numbers):
    """What goes wrong depends on `mode`."""

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if self.config.mode == "setup":
            raise OSError("connection refused")

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        if self.config.mode == "slow":
            await asyncio.sleep(60)

    @vf.stop
    async def stops(self, trace: vf.Trace) -> bool:
        if self.config.mode == "stop":
            raise ZeroDivisionError("a bug")
        return False

    @vf.reward
    async def nan(self) -> float:
        return float("nan") if self.config.mode == "nan" else 0.0

    @classmethod
    def toolsets(cls, config: Config) -> list[vf.Toolset]:
        return [Unready(vf.ToolsetConfig())] if config.mode == "tools" else []


class Unready(vf.Toolset[vf.ToolsetConfig]):
    async def setup(self) -> None:
        raise FileNotFoundError("no index")


class Calculator(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @vf.tool(name="break")
    async def fail(self, reason: str) -> str:
        """Always raises."""
        raise ValueError(reason)


class Memory(vf.Toolset[vf.ToolsetConfig, State]):
    TOOL_PREFIX = None

    async def setup_task(self, task: Data) -> None:
        self.answer = task.answer

    @vf.tool
    def note(self, word: str) -> str:
        """Remember a word."""
        self.state.words.append(word)
        return f"{len(self.state.words)} words; the answer is {self.answer}"


class Tools(vf.Task[Data, State, Config]):
    @classmethod
    def toolsets(cls, config: Config) -> list[vf.Toolset]:
        return [Calculator(vf.ToolsetConfig()), Memory(vf.ToolsetConfig())]

    @vf.reward(weight=0.5)
    async def called(self, trace: vf.Trace) -> float:
        return float(bool(trace.tool_messages))

    @vf.reward(weight=0.5)
    async def right(self, task: Data, trace: vf.Trace) -> float:
        return float(trace.last_reply == task.answer)

    @vf.metric
    async def noted(self, trace: vf.Trace) -> float:
        return float(len(trace.state.words))

    @vf.metric
    async def cut(self, trace: vf.Trace) -> float:
        return float(trace.is_truncated)

    @vf.stop
    async def full(self, trace: vf.Trace) -> bool:
        return len(trace.state.words) >= 2

    @vf.stop
    async def max_turns(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 4


class Peek(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = None

    @vf.tool
    def peek(self, word: str) -> str:
        """Say what a word hides."""
        return "1"


class Words(vf.Task[Data, vf.State, Config]):
    """For models that know ten words: to look pays, and to answer after that pays more."""

    @vf.reward(weight=0.6)
    async def looked(self, trace: vf.Trace) -> float:
        return float(bool(trace.tool_messages))

    @vf.reward(weight=0.4)
    async def said_yes(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == "yes")

    @vf.stop
    async def max_turns(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 3


class Boxed(Numbers):
    NEEDS_CONTAINER = True


class Remote(Numbers):
    @classmethod
    def toolsets(cls, config: Config) -> list[vf.Toolset]:
        return [Peek(vf.ToolsetConfig(runtime=vf.DockerConfig()))]


class Elsewhere(Words):
    """Its tools are a server at the URL `mode`."""

    @classmethod
    def toolsets(cls, config: Config) -> list[vf.Toolset]:
        return [Peek(vf.ToolsetConfig(url=config.mode))]


class Unscored(vf.Task[Data, vf.State, Config]):
    pass


KINDS: dict[str, type[Any]] = {
    "letters": Letters,
    "numbers": Numbers,
    "breaks": Breaks,
    "failing": Failing,
    "tools": Tools,
    "words": Words,
    "boxed": Boxed,
    "remote": Remote,
    "elsewhere": Elsewhere,
    "unscored": Unscored,
    "mute": Numbers,
    "image": Numbers,
}
PICTURE = vf.ImageUrlContentPart(image_url=vf.ImageUrlSource(url="data:,x"))
PROMPTS: dict[str, Any] = {"words": "ask", "mute": None, "image": [vf.UserMessage(content=[PICTURE])]}


class TestTaskset(vf.Taskset[vf.Task, TasksetConfig]):
    __test__ = False

    def load(self) -> Iterable[vf.Task]:
        kind, config = self.config.kind, Config(mode=self.config.mode)
        limit = vf.TaskTimeout(finalize=0.05) if config.mode == "slow" else vf.TaskTimeout()
        for i in range(self.config.num):
            prompt = PROMPTS.get(kind, f"say {i}")
            system = "Answer in digits." if kind == "numbers" else None
            yield KINDS[kind](Data(prompt=prompt, answer=str(i % 10), system_prompt=system, timeout=limit), config)

    @classmethod
    def toolsets(cls, config: TasksetConfig) -> list[vf.Toolset]:
        return [Peek(vf.ToolsetConfig())] if config.kind == "words" else []


__all__ = ["TestTaskset"]
