"""Episodes played by a model behind an endpoint: messages in the place of tokens, the environments are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

from rlvr.engines.chat_completions import EndpointError, Said, to_wire
from rlvr.engines.openai import Endpoint
from rlvr.envs.base import Env, TurnText
from rlvr.errors import UserError
from rlvr.evaluation.players import MAX_REPLY_CHARS, Played
from rlvr.rollout.episode import Sampling
from rlvr.tracking.evaluations import JudgedTurn
from rlvr.tracking.rollouts import call_records
from rlvr.types import Example, Message, Score, StopReason


@dataclass(frozen=True, kw_only=True)
class EndpointPlayer:
    """Plays as `run_episode` does, but that the endpoint renders the conversation and reads the tool calls.

    `stop_words` are the task's: they are asked for as stop sequences, which an endpoint leaves out of its text. The
    last of them is put back behind a completion that ended by itself, where the task's metric looks for it.
    """

    endpoint: Endpoint
    stop_words: Sequence[str]
    stop_ids: frozenset[int] = frozenset()

    async def play(self, example: Example, env: Env, sampling: Sampling, *, sample_index: int, seed: int) -> Played:
        """A request that fails for good ends the episode, which then has a `failure`."""
        told = _Told(messages=list(await env.start()))
        told.wire = [to_wire(message) for message in told.messages]
        try:
            stop_reason = await self._take_turns(env, sampling, told)
        except EndpointError as error:
            return _failed(told, f"the endpoint failed: {error}")
        texts = [self._text(*turn) for turn in zip(told.prompts, told.said, strict=True)]
        return Played(
            texts=texts,
            turns=_judged_turns(told, texts),
            score=await _score(env, texts),
            stop_reason=stop_reason,
            num_prompt_tokens=told.num_read,
            num_completion_tokens=sum(said.num_completion_tokens for said in told.said),
        )

    async def _take_turns(self, env: Env, sampling: Sampling, told: _Told) -> StopReason:
        new: Sequence[Message] = told.messages
        while True:
            told.prompts.append("\n".join(message.content for message in new))
            said = await self.endpoint.chat(told.wire, sampling(len(told.said)), tools=env.tools, stop=self.stop_words)
            told.said.append(said)
            if said.stop_reason != StopReason.STOP:
                return said.stop_reason  # an unfinished message cannot be answered
            reply = await env.step(said.message)
            if reply.done:
                return StopReason.STOP
            if len(told.said) == env.max_turns:
                return StopReason.MAX_TURNS
            new = reply.messages
            before = [] if reply.restarts else [*told.wire, said.wire]
            told.wire = [*before, *(to_wire(message) for message in new)]

    def _text(self, prompt: str, said: Said) -> TurnText:
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


@dataclass(kw_only=True)
class _Told:
    """What was said so far: `wire` is the conversation as the next request sends it, `prompts` what each turn added."""

    messages: list[Message]
    wire: list[Mapping[str, Any]] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)

    @property
    def num_read(self) -> int:
        """Prompt tokens that no earlier turn had read or written."""
        num, known = 0, 0
        for said in self.said:
            num += max(0, said.num_prompt_tokens - known)
            known = said.num_prompt_tokens + said.num_completion_tokens
        return num


def _judged_turns(told: _Told, texts: Sequence[TurnText]) -> tuple[JudgedTurn, ...]:
    replies = [prompt[:MAX_REPLY_CHARS] for prompt in told.prompts[1:]]
    return tuple(
        JudgedTurn(
            completion=text.completion,
            token_ids=said.token_ids,
            logprobs=said.logprobs,
            calls=tuple(call_records(text.calls)),
            reply=reply,
        )
        for said, text, reply in zip(told.said, texts, [*replies, None], strict=True)
    )


def _failed(told: _Told, failure: str) -> Played:
    return Played(
        texts=(),
        turns=(),
        score=Score(value=nan, status="error", diagnostics={"error": failure[:500]}),
        stop_reason=StopReason.ABORTED,
        num_prompt_tokens=told.num_read,
        num_completion_tokens=sum(said.num_completion_tokens for said in told.said),
        failure=failure,
    )


async def _score(env: Env, texts: Sequence[TurnText]) -> Score:
    try:
        return await env.score(texts)
    except UserError:
        raise  # a verifier that breaks its contract
    except Exception as error:  # verifiers run foreign code
        message = f"{type(error).__name__}: {error}"
        return Score(value=nan, status="error", diagnostics={"error": message[:500]})
