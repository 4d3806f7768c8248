"""Players of episodes: with weights in this process, or an endpoint (messages instead of tokens)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan

from rlvr.core.engine.base import Engine
from rlvr.core.env import Env, TurnText
from rlvr.core.episode import ChatCodec, ChatModel, Sampling, run_episode
from rlvr.engines.chat_completions import ChatAnswer, EndpointError, to_wire
from rlvr.engines.openai import Endpoint
from rlvr.errors import UserError
from rlvr.tracking.evaluations import GradedTurn
from rlvr.tracking.rollouts import call_records, reply_ids
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

    @property
    def stop_ids(self) -> frozenset[int]:
        return self.chat.stop_ids

    async def play(self, example: Example, env: Env, sampling: Sampling, *, sample_index: int, seed: int) -> Played:
        """Play the episode as in training. UserError if the prompt leaves no room for a completion."""
        model = ChatModel(engine=self.engine, chat=self.chat, max_context_tokens=self.max_context_tokens)
        episode = await run_episode(example, env, model, sampling, sample_index=sample_index, seed=seed)
        return played(self.chat, episode)

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


@dataclass(frozen=True, kw_only=True)
class EndpointPlayer:
    """Plays like `run_episode`, but the endpoint renders the conversation and parses tool calls.

    `stop_words` of the task are sent as stop sequences. Endpoints omit them from the text, so the last one is appended
    to a completion that stopped by itself: the task's metric looks for it.
    """

    endpoint: Endpoint
    stop_words: Sequence[str]
    stop_ids: frozenset[int] = frozenset()

    async def play(self, example: Example, env: Env, sampling: Sampling, *, sample_index: int, seed: int) -> Played:
        """A permanently failed request ends the episode with a `failure`."""
        prompts: list[str] = []  # what each turn added
        answers: list[ChatAnswer] = []
        failure, num_read, known = None, 0, 0
        try:
            stop_reason = await self._take_turns(env, sampling, prompts, answers)
        except EndpointError as error:
            stop_reason, failure = StopReason.ABORTED, f"the endpoint failed: {error}"
        for said in answers:
            num_read += max(0, said.num_prompt_tokens - known)
            known = said.num_prompt_tokens + said.num_completion_tokens
        texts = [] if failure else [self._text(*turn) for turn in zip(prompts, answers, strict=True)]
        sampled = ((said.token_ids, said.logprobs) for said in answers)
        return Played(
            texts=texts,
            turns=() if failure else graded_turns(texts, sampled, prompts[1:]),
            score=_error(failure) if failure else await _score(env, texts),
            stop_reason=stop_reason,
            num_prompt_tokens=num_read,
            num_completion_tokens=sum(said.num_completion_tokens for said in answers),
            failure=failure,
        )

    async def close(self) -> None:
        await self.endpoint.close()

    async def _take_turns(
        self, env: Env, sampling: Sampling, prompts: list[str], answers: list[ChatAnswer]
    ) -> StopReason:
        wire, new = [], await env.start()
        while True:
            wire = [*wire, *map(to_wire, new)]
            prompts.append("\n".join(message.content for message in new))
            said = await self.endpoint.chat(wire, sampling(len(answers)), tools=env.tools, stop=self.stop_words)
            answers.append(said)
            if said.stop_reason != StopReason.STOP:
                return said.stop_reason  # an unfinished message cannot be answered
            reply = await env.step(said.message)
            if reply.done:
                return StopReason.STOP
            if len(answers) == env.max_turns:
                return StopReason.MAX_TURNS
            wire, new = [] if reply.restarts else [*wire, to_wire(said.message)], reply.messages

    def _text(self, prompt: str, said: ChatAnswer) -> TurnText:
        text = said.message.content
        ended = said.stop_reason == StopReason.STOP and bool(self.stop_words) and not said.message.tool_calls
        return TurnText(
            prompt=prompt,
            completion=f"{text} {self.stop_words[-1]}" if ended else text,
            text=text,
            stop_reason=said.stop_reason,
            num_tokens=said.num_completion_tokens,
            calls=said.message.tool_calls,
        )


async def _score(env: Env, texts: Sequence[TurnText]) -> Score:
    try:
        return await env.score(texts)
    except UserError:
        raise  # a verifier that breaks its contract
    except Exception as error:  # verifiers run user code
        return _error(f"{type(error).__name__}: {error}")


def _error(message: str) -> Score:
    return Score(value=nan, status="error", diagnostics={"error": message[:500]})


Player = LocalPlayer | EndpointPlayer
"""Plays episodes; concurrent calls are batched. `stop_ids`: tokens that end a completion; empty for an endpoint."""
