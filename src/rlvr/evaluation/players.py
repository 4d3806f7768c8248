"""Whoever plays an example's episode: weights in this process, or an endpoint (`rlvr.evaluation.endpoint`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from rlvr.engines.base import Engine
from rlvr.envs.base import Env, TurnText
from rlvr.rollout.episode import ChatCodec, Sampling, run_episode, turn_texts
from rlvr.tracking.evaluations import JudgedTurn
from rlvr.tracking.rollouts import call_records, reply_ids
from rlvr.types import Episode, Example, Score, StopReason, ToolSchema, Turn

MAX_REPLY_CHARS = 10_000
"""Of what came back, in a record; the model saw all of it."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """An episode as metric and record see it: `texts` are judged, `turns` are recorded."""

    texts: Sequence[TurnText]
    turns: tuple[JudgedTurn, ...]
    score: Score
    stop_reason: StopReason
    num_prompt_tokens: int
    num_completion_tokens: int
    failure: str | None = None  # why there is nothing to be judged: an endpoint that answered no request


class Player(Protocol):
    """Plays one episode after another; calls that are awaited together run together."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end a completion; empty where nobody here knows tokens."""
        ...

    async def play(self, example: Example, env: Env, sampling: Sampling, *, sample_index: int, seed: int) -> Played:
        """Let the model and `env` take turns until the episode ends; `sampling(turn)` says how a turn is drawn."""
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
        """As training plays it. UserError if the prompt leaves no room for a completion."""
        episode = await run_episode(
            example,
            env,
            self.engine,
            self.chat,
            sampling,
            sample_index=sample_index,
            seed=seed,
            max_context_tokens=self.max_context_tokens,
        )
        return played(self.chat, episode, env.tools)


def played(chat: ChatCodec, episode: Episode, tools: Sequence[ToolSchema]) -> Played:
    """An episode of tokens as text; `tools` are the environment's."""
    turns = turn_texts(chat, episode.turns, tools)
    return Played(
        texts=turns,
        turns=_judged_turns(chat, episode, turns),
        score=episode.score,
        stop_reason=episode.stop_reason,
        num_prompt_tokens=_num_read(episode.turns),
        num_completion_tokens=sum(len(turn.completion.token_ids) for turn in episode.turns),
    )


def _num_read(turns: Sequence[Turn]) -> int:
    """Prompt tokens that no earlier turn had read or written."""
    replies = (reply_ids(turn, after) for turn, after in pairwise(turns))
    return len(turns[0].prompt_ids) + sum(map(len, replies))


def _judged_turns(chat: ChatCodec, episode: Episode, turns: Sequence[TurnText]) -> tuple[JudgedTurn, ...]:
    """Each completion with its calls, and what the next prompt says beyond it."""
    replies = [chat.decode(reply_ids(turn, after))[:MAX_REPLY_CHARS] for turn, after in pairwise(episode.turns)]
    return tuple(
        JudgedTurn(
            completion=text.completion,
            token_ids=turn.completion.token_ids,
            logprobs=turn.completion.behavior_logprobs,
            calls=tuple(call_records(text.calls)),
            reply=reply,
        )
        for turn, text, reply in zip(episode.turns, turns, [*replies, None], strict=True)
    )
