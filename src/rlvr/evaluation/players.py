"""Players of an example's episode: weights in this process, or an endpoint (`rlvr.evaluation.endpoint`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from rlvr.core.engine.base import Engine
from rlvr.core.env import Env, TurnText
from rlvr.core.episode import ChatCodec, ChatModel, Sampling, run_episode, turn_texts
from rlvr.tracking.evaluations import JudgedTurn
from rlvr.tracking.rollouts import call_records, reply_ids
from rlvr.types import Episode, Example, Score, StopReason, ToolSchema

MAX_REPLY_CHARS = 10_000
"""Of a reply in a record; the model saw all of it."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """An episode for metric and record: `texts` are judged, `turns` are recorded."""

    texts: Sequence[TurnText]
    turns: tuple[JudgedTurn, ...]
    score: Score
    stop_reason: StopReason
    num_prompt_tokens: int  # those that no earlier turn had read or written
    num_completion_tokens: int
    failure: str | None = None  # why there is nothing to judge: an endpoint that failed


class Player(Protocol):
    """Plays episodes; concurrent calls run together."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Token ids that end a completion; empty for an endpoint."""
        ...

    async def play(self, example: Example, env: Env, sampling: Sampling, *, sample_index: int, seed: int) -> Played:
        """Let the model and `env` take turns until the episode ends; turn t is drawn with `sampling(t)`."""
        ...

    async def close(self) -> None:
        """Close the connections of this event loop; the player can be used again."""
        ...


@dataclass(frozen=True, kw_only=True)
class LocalPlayer:
    """Weights in this process, token-in token-out."""

    engine: Engine
    chat: ChatCodec
    max_context_tokens: int

    @property
    def stop_ids(self) -> frozenset[int]:
        """Those of the chat layer."""
        return self.chat.stop_ids

    async def play(self, example: Example, env: Env, sampling: Sampling, *, sample_index: int, seed: int) -> Played:
        """The episode as training plays it. UserError if the prompt leaves no room for a completion."""
        model = ChatModel(engine=self.engine, chat=self.chat, max_context_tokens=self.max_context_tokens)
        episode = await run_episode(example, env, model, sampling, sample_index=sample_index, seed=seed)
        return played(self.chat, episode, env.tools)

    async def close(self) -> None:
        """There is none."""


def played(chat: ChatCodec, episode: Episode, tools: Sequence[ToolSchema]) -> Played:
    """An episode of tokens as text; `tools` are the environment's."""
    texts = turn_texts(chat, episode.turns, tools)
    completions = [turn.completion for turn in episode.turns]
    replies = [reply_ids(turn, following) for turn, following in pairwise(episode.turns)]
    sampled = ((completion.token_ids, completion.behavior_logprobs) for completion in completions)
    return Played(
        texts=texts,
        turns=judged_turns(texts, sampled, [chat.decode(ids) for ids in replies]),
        score=episode.score,
        stop_reason=episode.stop_reason,
        num_prompt_tokens=len(episode.turns[0].prompt_ids) + sum(map(len, replies)),
        num_completion_tokens=sum(len(completion.token_ids) for completion in completions),
    )


def judged_turns(
    texts: Sequence[TurnText], sampled: Iterable[tuple[tuple[int, ...], tuple[float, ...]]], replies: Sequence[str]
) -> tuple[JudgedTurn, ...]:
    """The turns to record; `sampled` has (token ids, logprobs) of each turn, `replies` what came back after all but
    the last.
    """
    return tuple(
        JudgedTurn(
            completion=text.completion,
            token_ids=ids,
            logprobs=logprobs,
            calls=call_records(text.calls),
            reply=None if reply is None else reply[:MAX_REPLY_CHARS],
        )
        for text, (ids, logprobs), reply in zip(texts, sampled, [*replies, None], strict=True)
    )
