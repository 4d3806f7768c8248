"""Players of episodes; here those with weights in this process, token-in token-out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from rlvr.core.engine.base import Engine
from rlvr.core.env import Env, TurnText
from rlvr.core.episode import ChatCodec, ChatModel, Sampling, run_episode
from rlvr.records.graded import GradedTurn
from rlvr.records.rollouts import call_records, reply_ids
from rlvr.types import Episode, Example, Score, StopReason

MAX_REPLY_CHARS = 10_000  # of a reply in a record; the model sees the full text


@dataclass(frozen=True, kw_only=True)
class Played:
    """An episode for metric and record: `texts` are graded, `turns` recorded."""

    texts: Sequence[TurnText]
    turns: tuple[GradedTurn, ...]
    score: Score
    stop_reason: StopReason
    num_prompt_tokens: int  # not counting tokens of earlier turns
    num_completion_tokens: int
    failure: str | None = None  # an endpoint failure: nothing to grade


@dataclass(frozen=True, kw_only=True)
class LocalPlayer:
    """Weights in this process, token-in token-out."""

    engine: Engine
    chat: ChatCodec
    max_context_tokens: int
    late: Callable[[Example, Episode], Episode] = lambda example, episode: episode  # completes its score

    @property
    def stop_ids(self) -> frozenset[int]:
        return self.chat.stop_ids

    async def play(self, example: Example, env: Env, sampling: Sampling, *, sample_index: int, seed: int) -> Played:
        """Play the episode as in training. UserError if the prompt leaves no room for a completion."""
        model = ChatModel(engine=self.engine, chat=self.chat, max_context_tokens=self.max_context_tokens)
        episode = await run_episode(example, env, model, sampling, sample_index=sample_index, seed=seed)
        return played(self.chat, self.late(example, episode))

    async def close(self) -> None:
        """Nothing to close."""


def played(chat: ChatCodec, episode: Episode) -> Played:
    """A token episode as text, for metric and record."""
    completions = [turn.completion for turn in episode.turns]
    replies = [reply_ids(turn, following) for turn, following in pairwise(episode.turns)]
    sampled = ((completion.token_ids, completion.behavior_logprobs) for completion in completions)
    return Played(
        texts=episode.texts,
        turns=graded_turns(episode.texts, sampled, [chat.decode(ids) for ids in replies]),
        score=episode.score,
        stop_reason=episode.stop_reason,
        num_prompt_tokens=len(episode.turns[0].prompt_ids) + sum(map(len, replies)),
        num_completion_tokens=sum(len(completion.token_ids) for completion in completions),
    )


def graded_turns(
    texts: Sequence[TurnText], sampled: Iterable[tuple[tuple[int, ...], tuple[float, ...]]], replies: Sequence[str]
) -> tuple[GradedTurn, ...]:
    """Turns for the record; `sampled` has (token ids, logprobs) per turn, `replies` the replies to all but the last."""
    return tuple(
        GradedTurn(
            completion=text.completion,
            token_ids=ids,
            logprobs=logprobs,
            calls=call_records(text.calls),
            reply=None if reply is None else reply[:MAX_REPLY_CHARS],
        )
        for text, (ids, logprobs), reply in zip(texts, sampled, [*replies, None], strict=True)
    )


class Player(Protocol):
    """Plays episodes; concurrent calls are batched."""

    @property
    def stop_ids(self) -> frozenset[int]: ...  # tokens that end a completion; empty for an endpoint

    async def play(self, example: Example, env: Env, sampling: Sampling, *, sample_index: int, seed: int) -> Played: ...

    async def close(self) -> None: ...
