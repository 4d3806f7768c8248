"""The player of episodes with a model behind an endpoint: messages instead of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from rlvr.core.env import Env, TurnText
from rlvr.core.episode import Sampling
from rlvr.engines.chat_completions import ChatAnswer, EndpointError, to_wire
from rlvr.engines.openai import Endpoint
from rlvr.errors import UserError
from rlvr.evaluation.players import Played, graded_turns
from rlvr.types import Example, Score, StopReason


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
        for answer in answers:
            num_read += max(0, answer.num_prompt_tokens - known)
            known = answer.num_prompt_tokens + answer.num_completion_tokens
        texts = [] if failure else [self._text(*turn) for turn in zip(prompts, answers, strict=True)]
        sampled = ((answer.token_ids, answer.logprobs) for answer in answers)
        return Played(
            texts=texts,
            turns=() if failure else graded_turns(texts, sampled, prompts[1:]),
            score=_error(failure) if failure else await _score(env, texts),
            stop_reason=stop_reason,
            num_prompt_tokens=num_read,
            num_completion_tokens=sum(answer.num_completion_tokens for answer in answers),
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
            answer = await self.endpoint.chat(wire, sampling(len(answers)), tools=env.tools, stop=self.stop_words)
            answers.append(answer)
            if answer.stop_reason != StopReason.STOP:
                return answer.stop_reason  # an unfinished message cannot be answered
            reply = await env.step(answer.message)
            if reply.done:
                return StopReason.STOP
            if len(answers) == env.max_turns:
                return StopReason.MAX_TURNS
            wire, new = [] if reply.restarts else [*wire, to_wire(answer.message)], reply.messages

    def _text(self, prompt: str, answer: ChatAnswer) -> TurnText:
        text = answer.message.content
        ended = answer.stop_reason == StopReason.STOP and bool(self.stop_words) and not answer.message.tool_calls
        return TurnText(
            prompt=prompt,
            completion=f"{text} {self.stop_words[-1]}" if ended else text,
            text=text,
            stop_reason=answer.stop_reason,
            num_tokens=answer.num_completion_tokens,
            calls=answer.message.tool_calls,
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
