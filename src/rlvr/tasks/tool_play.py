"""Environments with tools for tasks, and their demonstrations."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlvr.chat.formats import FORMATS
from rlvr.chat.template import described
from rlvr.core.env import Env
from rlvr.data.problems import Problem
from rlvr.envs.tool_env import ToolEnv
from rlvr.envs.tools import Tool
from rlvr.rewards.base import Verifier
from rlvr.tasks.base import Said, calling, text_of
from rlvr.types import Example, Message, ToolSchema


class ToolEnvironments:
    """Creates an environment per episode, with common tools and its own state."""

    def __init__(
        self, toolbox: Sequence[Tool], verifier: Verifier, *, state: Callable[[Example], Any], **limits: Any
    ) -> None:
        """`limits` are arguments of `ToolEnv`: `max_turns`, `potential`, `reminds`."""
        self.toolbox = tuple(toolbox)
        self.tools: tuple[ToolSchema, ...] = tuple(tool.schema for tool in toolbox)
        self._verifier, self._state, self._limits = verifier, state, limits

    def env(self, example: Example) -> ToolEnv:
        state = self._state(example)
        return ToolEnv(example, tools=self.toolbox, state=state, verifier=self._verifier, **self._limits)

    def fields(self, problem: Problem) -> Mapping[str, str]:
        return {}


def played(example: Example, env: Env, turns: Sequence[Said], tool_format: str) -> tuple[str, ...]:
    """Prompt, completion, reply, completion, ... for the given completions `turns`; the tools give the replies.

    `[{"name": "search", "arguments": {"query": "Oslo"}}, "Norway"]` is a call, its reply, and the answer.
    """
    written = FORMATS.get(tool_format, FORMATS["hermes"])

    async def play() -> list[str]:
        opening = await env.start()
        if not written.is_taught:
            opening = tuple(described(opening, written, env.tools))
        parts = [text_of(opening)]
        for number, turn in enumerate(turns):
            completion = calling(turn, number)
            if isinstance(completion, str):
                completion = Message(role="assistant", content=completion)
            else:
                completion = replace(completion, content=written.write(completion.tool_calls, env.tools))
            parts.append(completion.content)
            reply = await env.step(completion)
            if reply.done:
                break
            parts.append(text_of(reply.messages))
        return parts

    return tuple(asyncio.run(play()))
