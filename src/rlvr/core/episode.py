"""One episode, token-in token-out: a prompt is only extended, never re-rendered, never decoded and re-encoded.

Two turns; 9 is the stop token, 2 3 the environment's reply with the header of the next completion:

    turn 0   prompt 1 7            completion 5 9
    turn 1   prompt 1 7 5 9 2 3    completion 6 9      starts with all of turn 0, then the reply
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Protocol

from rlvr.core.engine.base import Engine
from rlvr.core.env import Env, TurnText
from rlvr.errors import UserError
from rlvr.reasoning import Marks
from rlvr.types import Completion, Episode, Example, Message, SamplingParams, Score, StopReason, ToolSchema, Turn

Sampling = Callable[[int], SamplingParams]
"""turn -> sampling parameters of its completion"""


class ChatCodec(Protocol):
    """The chat layer as episodes use it: messages to token ids and back."""

    @property
    def stop_ids(self) -> frozenset[int]: ...

    @property
    def marks(self) -> Marks:
        """The marks of reasoning in a completion."""
        ...

    @property
    def opened(self) -> bool:
        """True if the header of a completion opens reasoning."""
        ...

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> tuple[int, ...]:
        """Token ids of the first prompt, with the tools and the header of the first completion."""
        ...

    def next_prompt(
        self,
        prompt_ids: tuple[int, ...],
        completion_ids: tuple[int, ...],
        conversation: Sequence[Message],
        reply: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
    ) -> tuple[int, ...]:
        """The next prompt: prompt and completion, extended by the reply and the next header.

        `conversation` is every message so far, ending with the completion. It is rendered again only where the template
        rewrites history, as Qwen3's does with earlier thinking.
        """
        ...

    def parse(
        self, completion_ids: Sequence[int], stop_reason: StopReason, tools: Sequence[ToolSchema] = ()
    ) -> Message:
        """The assistant's message of a completion: text without the stop token, and its calls of `tools`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` with special tokens."""
        ...


@dataclass(frozen=True, kw_only=True)
class ChatModel:
    """Chat codec (messages to token ids) and engine (token ids to completions)."""

    engine: Engine
    chat: ChatCodec
    max_context_tokens: int


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """What an episode begins with: whole completions, then the first tokens of the next one."""

    completions: tuple[Completion, ...] = ()
    started: Completion | None = None


NO_PREFIX = Prefix()


async def run_episode(
    example: Example,
    env: Env,
    model: ChatModel,
    sampling: Sampling,
    *,
    sample_index: int,
    seed: int,
    prefix: Prefix = NO_PREFIX,
) -> Episode:
    """Alternate policy and `env` until the episode ends, then score it.

    `sampling(turn).max_tokens` is cut to the remaining context. `seed` is only recorded; draws use the seeds of
    `sampling`. The `prefix` comes first, instead of the policy's own completions. A verifier exception becomes a
    score with status "error".

    Raises:
        UserError: the first prompt leaves no room for a completion.
    """
    # a unique key: episodes never share an engine session. None for one turn: no later turn reuses its cache
    session = None if env.max_turns == 1 else object()
    try:
        turns, messages, stop_reason = await _take_turns(example, env, model, sampling, session, prefix)
    finally:
        if session is not None:
            model.engine.release(session)  # before scoring: a slow verifier must not hold cache
    texts = turn_texts(model.chat, turns, messages)
    score = await _score(env, texts)
    if stop_reason == StopReason.ABORTED:  # scored anyway: the environment cleans up in `score`
        score = _error("the engine gave the request up")
    return Episode(
        example_id=example.id,
        sample_index=sample_index,
        seed=seed,
        turns=tuple(turns),
        score=score,
        stop_reason=stop_reason,
        texts=texts,
    )


async def _take_turns(
    example: Example, env: Env, model: ChatModel, sampling: Sampling, session: Hashable | None, prefix: Prefix
) -> tuple[list[Turn], list[Message], StopReason]:
    turns: list[Turn] = []
    messages: list[Message] = []
    chat, room = model.chat, model.max_context_tokens
    conversation = list(await env.start())
    prompt_ids = chat.encode_prompt(conversation, env.tools)
    if len(prompt_ids) >= room:
        raise UserError(
            f"the prompt of example {example.id!r} has {len(prompt_ids)} tokens, which leaves no room for a completion "
            f"in the context of {room} tokens; use a shorter prompt or a model with a longer context"
        )
    restarts = False
    while len(prompt_ids) < room:
        params = sampling(len(turns))
        if params.max_tokens > (left := room - len(prompt_ids)):
            params = replace(params, max_tokens=left)
        if len(turns) < len(prefix.completions):
            completion = prefix.completions[len(turns)]
        else:
            started = prefix.started if len(turns) == len(prefix.completions) else None
            completion = await _complete(model.engine, prompt_ids, params, session, started)
        turns.append(Turn(prompt_ids=prompt_ids, completion=completion, restarts=restarts))
        messages.append(chat.parse(completion.token_ids, completion.stop_reason, env.tools))
        if completion.stop_reason != StopReason.STOP:
            return turns, messages, completion.stop_reason  # an unfinished message cannot be answered
        reply = await env.step(messages[-1])
        if reply.done:
            return turns, messages, StopReason.STOP
        if len(turns) == env.max_turns:
            return turns, messages, StopReason.MAX_TURNS
        restarts = reply.restarts
        if restarts:
            conversation = list(reply.messages)
            prompt_ids = chat.encode_prompt(conversation, env.tools)
        else:
            conversation.append(messages[-1])
            prompt_ids = chat.next_prompt(prompt_ids, completion.token_ids, conversation, reply.messages, env.tools)
            conversation += reply.messages
    return turns, messages, StopReason.LENGTH


async def _complete(
    engine: Engine,
    prompt_ids: tuple[int, ...],
    params: SamplingParams,
    session: Hashable | None,
    started: Completion | None,
) -> Completion:
    """Samples a completion of the prompt, or continues a started one."""
    if started is None:
        return await engine.generate(prompt_ids, params, session=session)
    left = replace(params, max_tokens=params.max_tokens - len(started.token_ids))
    if left.max_tokens <= 0:
        return started
    rest = await engine.generate(prompt_ids + started.token_ids, left, session=session)
    return started.followed_by(rest)


def turn_texts(chat: ChatCodec, turns: Sequence[Turn], messages: Sequence[Message]) -> tuple[TurnText, ...]:
    """The turns as text with special tokens; `messages` are the parsed completions.

    Each turn decodes only its new tokens: decoding whole prompts would be quadratic.
    """
    texts: list[TurnText] = []
    known: tuple[int, ...] = ()
    for turn, message in zip(turns, messages, strict=True):
        ids, stop_reason = turn.completion.token_ids, turn.completion.stop_reason
        extends = not turn.restarts and turn.prompt_ids[: len(known)] == known
        completion = chat.decode(ids)
        text = TurnText(
            prompt=chat.decode(turn.prompt_ids[len(known) :] if extends else turn.prompt_ids),
            completion=completion,
            text=chat.decode(ids[:-1]) if stop_reason == StopReason.STOP else completion,
            stop_reason=stop_reason,
            num_tokens=len(ids),
            calls=message.tool_calls,
            marks=chat.marks,
            opened=chat.opened,
        )
        texts.append(text)
        known = turn.prompt_ids + ids
    return tuple(texts)


async def _score(env: Env, texts: Sequence[TurnText]) -> Score:
    try:
        return await env.score(texts)
    except UserError:
        raise  # a verifier that breaks its contract corrupts every group
    except Exception as error:  # verifiers run user code; failures are counted and left out of the loss
        return _error(f"{type(error).__name__}: {error}")


def _error(message: str) -> Score:
    return Score(value=nan, status="error", diagnostics={"error": message[:500]})
