"""What whole episodes with tools need: tools, environments, an engine that is watched, and a script for the model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rlvr.core.engine.engine import LocalEngine
from rlvr.core.episode import ChatModel, run_episode
from rlvr.envs.tool_env import ToolEnv
from rlvr.envs.tools import Tool, ToolError, make_tool
from rlvr.types import (
    Attempt,
    Completion,
    Episode,
    Example,
    Message,
    SamplingParams,
    Score,
    StopReason,
    ToolCall,
    ToolSchema,
)
from tests.unit.core.fakes import FakeEngine
from tests.unit.core.walker import CONTEXT_TOKENS, walker_chat, walker_model

chat = cache(walker_chat)


@cache
def model() -> Any:
    return walker_model(chat()._tokenizer)


def make_engine(max_batch_size: int = 8) -> LocalEngine:
    return LocalEngine(model(), max_batch_size=max_batch_size, max_context_tokens=CONTEXT_TOKENS)


@dataclass
class Shelf:
    """The documents of one episode, and what was looked up in them."""

    owner: str
    seen: list[str] = field(default_factory=list)


def search(query: str, state: Shelf, top_n: int = 3) -> str:
    """Search.

    Args:
        query: What for.
        top_n: How many.
    """
    state.seen.append(query)
    return "".join(f"{query} {number} of {state.owner}\n" for number in range(top_n))


async def read(doc_id: str, state: Shelf) -> str:
    """Read."""
    await asyncio.sleep(0)
    if doc_id == "gamma":
        raise ToolError("there is no such document")
    return f"{doc_id} of {state.owner}"


def complete(answer: str, state: Shelf) -> None:
    """Answer."""


class CountVerifier:
    """What an episode has seen."""

    name = "count"

    async def verify(self, attempt: Attempt) -> Score:
        assert isinstance(attempt.state, Shelf)
        return Score(value=float(len(attempt.state.seen)))


def make_tools(*functions: Callable[..., object]) -> tuple[Tool, ...]:
    made = [make_tool(function, timeout_s=5.0, inline=function is search) for function in functions or (search, read)]
    return (*made, make_tool(complete, timeout_s=5.0, final=True, inline=True))


TOOLS = make_tools()


def make_env(name: str, tools: Sequence[Tool] = TOOLS, max_turns: int = 4) -> ToolEnv:
    example = Example(id=name, messages=(Message(role="user", content=f"Where is {name}?"),), answer="")
    return ToolEnv(example, tools=tools, state=Shelf(name), verifier=CountVerifier(), max_turns=max_turns)


class Recorder(FakeEngine):
    """Passes everything on to an engine and notes it."""

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__()
        self.engine = engine
        self.calls: dict[Hashable, list[tuple[tuple[int, ...], Completion]]] = {}

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: Hashable | None = None, **_: Any
    ) -> Completion:
        completion = await self.engine.generate(prompt_ids, sampling, session=session)
        self.calls.setdefault(session or object(), []).append((tuple(prompt_ids), completion))
        return completion

    def release(self, session: Hashable) -> None:
        super().release(session)
        self.engine.release(session)


async def play(env: ToolEnv, engine: Any, seed: int, *, codec: Any = None, context: int = CONTEXT_TOKENS) -> Episode:
    codec = codec or chat()

    def sampling(turn: int) -> SamplingParams:
        return SamplingParams(max_tokens=40, stop_ids=codec.stop_ids, seed=1000 * seed + turn)

    example = env._example
    model = ChatModel(engine=engine, chat=codec, max_context_tokens=context)
    return await run_episode(example, env, model, sampling, sample_index=0, seed=seed)


class Script:
    """The real chat, but each turn of one episode means the scripted calls, whatever was sampled."""

    def __init__(self, *turns: Sequence[ToolCall]) -> None:
        self._turns = list(turns)

    def __getattr__(self, name: str) -> Any:
        return getattr(chat(), name)

    def parse(self, ids: Sequence[int], stop_reason: StopReason, tools: Sequence[ToolSchema] = ()) -> Message:
        said = chat().parse(ids, stop_reason)
        return Message(role="assistant", content=said.content, tool_calls=tuple(self._turns.pop(0)))


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(id="call_0", name=name, arguments=arguments)


DONE = (call("complete", answer="x"),)


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20.0
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)
