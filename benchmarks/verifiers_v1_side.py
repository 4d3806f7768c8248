"""The verifiers 0.4 side of benchmarks/environments.py: tasks of a v1 taskset, played by plugins/rlvr-verifiers.

The library's own loop runs each episode, with interception, trace, stops, tools and scoring; the model's messages are
finished. Its own way, an agent in a process for each episode, plays about one episode a second.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import verifiers.v1 as vf

from rlvr.types import Example, Message, StopReason, ToolCall, TurnText
from rlvr_verifiers.edition import Environment, Row
from rlvr_verifiers.v1 import open_environment

if TYPE_CHECKING:
    from environments import Question

BOX = re.compile(r"\\boxed\{([^}]*)\}")
GIVEN: dict[str, Any] = {}
"""What `rows` is given: the taskset is made by the library, from a name."""


class Data(vf.TaskData):
    answer: str


class Config(vf.TasksetConfig):
    kind: Literal["single", "tools"] = "single"


class Single(vf.Task[Data]):
    @vf.reward
    async def right(self, task: Data, trace: vf.Trace) -> float:
        """1 for the right number in the box."""
        found = BOX.search(trace.last_reply)
        return float(found is not None and found[1] == task.answer)


class Library(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = None

    @vf.tool
    def search(self, query: str, top_n: int = 3) -> str:
        """Find documents about something."""
        return GIVEN["find"](query, top_n, GIVEN["documents"])

    @vf.tool
    def read(self, doc_id: str) -> str:
        """Read a document."""
        return GIVEN["documents"][doc_id]


class WithTools(Single):
    @classmethod
    def toolsets(cls, config: Any) -> list[vf.Toolset]:
        return [Library(vf.ToolsetConfig())]


class Years(vf.Taskset[Single, Config]):
    def load(self) -> Iterable[Single]:
        kind = WithTools if self.config.kind == "tools" else Single
        for question in GIVEN["questions"]:
            yield kind(Data(prompt=question.text, system_prompt=GIVEN["system"], answer=question.answer))


__all__ = ["Years"]


def rows(
    questions: Sequence[Question], find: Callable[..., str], system: str, group_size: int, max_turns: int
) -> list[tuple[bool, str, Callable[[int], Awaitable[None]]]]:
    """Tuples of: with tools or not, what plays, function that plays that many groups."""
    GIVEN.update(questions=questions, find=find, system=system, documents=questions[0].documents)
    found = []
    for kind in ("single", "tools"):
        env = open_environment(__name__, {"kind": kind}, None)
        found.append((kind == "tools", "task=verifiers", player(env, questions, group_size)))
    return found


def player(env: Environment, questions: Sequence[Question], size: int) -> Callable[[int], Awaitable[None]]:
    """Plays groups concurrently."""

    async def play(num_groups: int) -> None:
        assert env.train is not None
        places = [index % len(questions) for index in range(num_groups)]
        await asyncio.gather(*(group(env, env.train[place], questions[place], size) for place in places))

    return play


async def group(env: Environment, row: Row, question: Question, size: int) -> None:
    example = Example(id=question.text, messages=row.messages, answer=row.answer)
    await asyncio.gather(*(episode(one, question) for one in env.envs(example, row, size)))


async def episode(env: Any, question: Question) -> None:
    """The calls of the first turns, then the answer."""
    await env.start()
    said = [
        Message(
            role="assistant",
            content="I need to find the architect first.",
            tool_calls=(ToolCall(id=f"call_{turn}", name=name, arguments=arguments),),
        )
        for turn, (name, arguments) in enumerate(question.calls if env.tools else [])
    ] + [Message(role="assistant", content=question.turns[-1])]
    for message in said:
        await env.step(message)
    turns = [
        TurnText(prompt="", completion=one.content, text=one.content, stop_reason=StopReason.STOP, num_tokens=0)
        for one in said
    ]
    score = await env.score(turns)
    assert (score.status, score.value) == ("scored", 1.0), score
