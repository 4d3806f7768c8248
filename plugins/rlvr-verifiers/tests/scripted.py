"""Episodes with scripted completions in environments of the verifiers library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr.core.env import Env
from rlvr.core.episode import ChatModel, run_episode
from rlvr.reasoning import THINK
from rlvr.types import Completion, Episode, Example, GradedAnswer, Message, SamplingParams, StopReason, ToolCall
from rlvr_verifiers.task import Verifiers, VerifiersTask

ENVIRONMENTS = Path(__file__).parent / "environments"
STOP = 0
Said = str | tuple[str, StopReason]


def make_task(
    kind: str = "letters", seed: int = 0, more: dict[str, Any] | None = None, **changes: Any
) -> VerifiersTask:
    usual = {"env_id": "rlvr-test-environments", "env_args": {"kind": kind, **(more or {})}, "eval_share": 0.2}
    return VerifiersTask(Verifiers(**(usual | changes)), seed, name="verifiers")


def call(*calls: tuple[str, dict[str, Any]]) -> str:
    """A completion that calls tools, as `Codec` writes it."""
    return "calls " + json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])


class Codec:
    """Every text is one token. `calls [...]` calls tools, `calls rubbish` tries to."""

    def __init__(self) -> None:
        self.texts = ["<stop>"]
        self.prompts: list[tuple[Message, ...]] = []
        self.stop_ids = frozenset({STOP})
        self.marks, self.opened = THINK, False

    def id_of(self, text: str) -> int:
        self.texts.append(text)
        return len(self.texts) - 1

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[object] = ()) -> tuple[int, ...]:
        self.prompts.append(tuple(messages))
        return (self.id_of("\n".join(message.content for message in messages)),)

    def next_prompt(
        self, prompt_ids: tuple[int, ...], completion_ids: tuple[int, ...], said: Any, reply: Any, tools: Any = ()
    ) -> tuple[int, ...]:
        return prompt_ids + completion_ids + self.encode_prompt(reply)

    def parse(self, completion_ids: Sequence[int], stop_reason: StopReason, tools: Sequence[object] = ()) -> Message:
        text = self.decode([token for token in completion_ids if token != STOP])
        kind, _, rest = text.partition(" ")
        if kind != "calls":
            return Message(role="assistant", content=text)
        try:
            calls = [ToolCall(id=f"call_{i}", **one) for i, one in enumerate(json.loads(rest))]
        except ValueError:
            calls = [ToolCall(id="call_0", name="", arguments={}, problem="it is no JSON")]
        return Message(role="assistant", content="", tool_calls=tuple(calls))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.texts[token] for token in ids)


@dataclass
class Engine:
    """Says what is scripted; when there is no more it sets `silent`, and waits for ever."""

    codec: Codec
    script: list[Said]
    silent: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: Hashable | None = None
    ) -> Completion:
        if not self.script:
            self.silent.set()
            await asyncio.Event().wait()
        said = self.script.pop(0)
        text, stop_reason = said if isinstance(said, tuple) else (said, StopReason.STOP)
        ids = (self.codec.id_of(text), STOP) if stop_reason == StopReason.STOP else (self.codec.id_of(text),)
        logprobs = {"behavior_logprobs": (0.0,) * len(ids), "sampling_logprobs": (0.0,) * len(ids)}
        return Completion(token_ids=ids, stop_reason=stop_reason, policy_version=0, **logprobs)

    def release(self, session: Hashable) -> None:
        pass


async def episode(
    example: Example, env: Env, *said: Said, codec: Codec | None = None, engine: Engine | None = None
) -> Episode:
    """An episode in which the model says `said`."""
    chat = codec or Codec()
    return await run_episode(
        example,
        env,
        ChatModel(engine=engine or Engine(chat, list(said)), chat=chat, max_context_tokens=1000),
        lambda turn: SamplingParams(max_tokens=9, stop_ids=chat.stop_ids, seed=0),
        sample_index=0,
        seed=0,
    )


def play(task: VerifiersTask, *said: Said, index: int = 0, max_turns: int | None = None) -> tuple[Episode, Codec]:
    """An episode of training example `index`, and the codec that saw its messages."""
    codec, example = Codec(), task.train_example(index)
    (env,) = task.envs(example, 1)
    if max_turns is not None:
        env.max_turns = max_turns  # type: ignore[misc]
    return asyncio.run(episode(example, env, *said, codec=codec)), codec


def graded(task: VerifiersTask, example: Example, *said: Said) -> GradedAnswer:
    """The metric's grade on an episode."""

    async def run() -> GradedAnswer:
        codec, env = Codec(), task.env(example)
        found = await episode(example, env, *said, codec=codec)
        return await task.grade(example, found.texts)

    return asyncio.run(run())
