"""Records of a few tokens, and an engine and a chat without a model."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from typing import Any

from rlvr.reasoning import THINK
from rlvr.types import Completion, Episode, Example, Group, Message, SamplingParams, Score, StopReason, Turn, TurnText


def completion(
    *ids: int, stop: StopReason = StopReason.STOP, logprobs: Sequence[float] | None = None, version: int = 0
) -> Completion:
    """With logprobs -0.1, -0.2, ... unless others are given."""
    values = tuple(logprobs or (-0.1 * (i + 1) for i in range(len(ids))))
    return Completion(
        token_ids=ids, behavior_logprobs=values, sampling_logprobs=values, stop_reason=stop, policy_version=version
    )


def text(ids: tuple[int, ...]) -> str:
    return " ".join(map(str, ids))


def episode(*turns: tuple[tuple[int, ...], Completion], score: Score | None = None) -> Episode:
    return Episode(
        example_id="x",
        sample_index=0,
        seed=0,
        turns=tuple(Turn(prompt_ids=prompt, completion=done) for prompt, done in turns),
        score=score or Score(value=1.0),
        stop_reason=turns[-1][1].stop_reason,
        texts=tuple(
            TurnText(
                prompt=text(prompt),
                completion=text(done.token_ids),
                text=text(done.token_ids),
                stop_reason=done.stop_reason,
                num_tokens=len(done.token_ids),
            )
            for prompt, done in turns
        ),
    )


def group(*episodes: Episode) -> Group:
    return Group(example=Example(id="x", messages=(), answer="1"), episodes=episodes)


class FakeEngine:
    """An engine but for what it samples; notes what it was asked."""

    def __init__(self) -> None:
        self.policy_version, self.max_context_tokens = 0, sys.maxsize
        self.prompts: list[tuple[int, ...]] = []
        self.requests: list[SamplingParams] = []
        self.sessions: list[Hashable] = []
        self.released: list[Hashable] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: Hashable | None = None, **_: Any
    ) -> Completion:
        self.prompts.append(tuple(prompt_ids))
        self.requests.append(sampling)
        self.sessions.append(session)
        return await self.sample(sampling)

    async def sample(self, sampling: SamplingParams) -> Completion:
        raise NotImplementedError

    def release(self, session: Hashable) -> None:
        self.released.append(session)

    def load_weights(self, version: int) -> None:
        self.policy_version = version

    def close(self) -> None:
        pass


class FakeChat:
    """Every prompt is (7,) and replies have no tokens."""

    stop_ids = frozenset({0, 1})
    marks, opened = THINK, False

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[object] = ()) -> tuple[int, ...]:
        return (7,)

    def next_prompt(
        self,
        prompt_ids: tuple[int, ...],
        completion_ids: tuple[int, ...],
        conversation: Sequence[Message],
        reply: Sequence[Message],
        tools: Sequence[object] = (),
    ) -> tuple[int, ...]:
        return prompt_ids + completion_ids

    def parse(self, completion_ids: Sequence[int], stop_reason: StopReason, tools: Sequence[object] = ()) -> Message:
        return Message(role="assistant", content=self.decode(completion_ids))

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))
