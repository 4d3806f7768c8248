"""Demonstrations as token ids: the very tokens that a rollout with these completions would have.

env.start()     the prompt                         [1, 10, 11, 4]
said[0]         a completion, end token included   [14, 2]
env.step(...)   the reply of a tool, the next header; then said[1], ...
                A reply that restarts is a prompt of its own.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import nan

from rlvr.chat.rendering import Chat
from rlvr.core.env import Env, Reply
from rlvr.data.problems import Conversation
from rlvr.errors import UserError
from rlvr.types import (
    Completion,
    Episode,
    Example,
    Message,
    Score,
    StopReason,
    ToolCall,
    ToolSchema,
    Turn,
    TurnText,
)


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """`Demonstration(example=..., env=..., said=("7",))`: completions in order; texts as they stand, messages as the
    chat template writes them, and a fresh environment that answers them."""

    example: Example
    env: Env
    said: Sequence[str | Message]


class Replayed:
    """The environment of a conversation: it says what the other roles said."""

    def __init__(self, conversation: Conversation, otherwise: Example, tools: Sequence[ToolSchema] = ()) -> None:
        """`otherwise` has the prompt of a conversation that begins with the assistant, `tools` are those of one that
        brings none."""
        self.tools: tuple[ToolSchema, ...] = conversation.tools or tuple(tools)
        self.said = tuple(message for message in conversation.messages if message.role == "assistant")
        self.max_turns: int | None = len(self.said)
        parts: list[list[Message]] = [[]]
        for message in conversation.messages:
            if message.role == "assistant":
                parts.append([])
            else:
                parts[-1].append(message)
        self._opening, *self._replies = parts
        self._opening = self._opening or list(otherwise.messages)

    async def start(self) -> tuple[Message, ...]:
        return tuple(self._opening)

    async def step(self, said: Message) -> Reply:
        reply = tuple(self._replies.pop(0))
        return Reply(messages=reply, done=not self._replies)

    async def score(self, turns: Sequence[TurnText]) -> Score:
        return Score(value=nan)


def calling(turn: object, number: int) -> str | Message:
    """A completion of `Task.solutions`: a text, or a call `{"name": ..., "arguments": ...}` as a message."""
    if not isinstance(turn, dict):
        return str(turn)
    call = ToolCall(id=f"call_{number}", name=turn["name"], arguments=dict(turn.get("arguments", {})))
    return Message(role="assistant", content="", tool_calls=(call,))


async def encoded(one: Demonstration, chat: Chat, max_tokens: int) -> Episode | str:
    """The demonstration as an episode with unknown logprobs, or why it cannot be one."""
    if not one.said:
        return "have no assistant turn" if isinstance(one.env, Replayed) else "have no demonstration"
    env, turns = one.env, list[Turn]()
    conversation = list(await env.start())
    prompt = chat.encode_prompt(conversation, env.tools)
    for message in one.said:
        try:
            ids = chat.encode_completion(message, env.tools)
        except UserError as error:
            raise UserError(f"the demonstration of example {one.example.id}: {error}") from error
        if len(prompt) + len(ids) > max_tokens:
            return f"have more than {max_tokens:,} tokens"
        turns.append(Turn(prompt_ids=prompt, completion=_completion(ids)))
        if isinstance(message, str) or env.tools or not message.tool_calls:  # as its tokens read
            read = chat.parse(ids, StopReason.STOP, env.tools)
            if isinstance(message, Message) and len(read.tool_calls) != len(message.tool_calls):
                return "have tool calls that cannot be read back in this model's format"
            if isinstance(message, Message):  # replies name the calls by the ids of the data
                pairs = zip(read.tool_calls, message.tool_calls, strict=True)
                read = replace(read, tool_calls=tuple(replace(call, id=given.id) for call, given in pairs))
            message = read
        reply = await env.step(message)
        if reply.done:
            break
        if reply.restarts:
            conversation = list(reply.messages)
            prompt = chat.encode_prompt(conversation, env.tools)
            continue
        conversation.append(message)
        prompt = chat.next_prompt(prompt, ids, conversation, reply.messages, env.tools)
        conversation += reply.messages
    return Episode(
        example_id=one.example.id,
        sample_index=0,
        seed=0,
        turns=tuple(turns),
        score=Score(value=1.0),
        stop_reason=StopReason.STOP,
    )


def _completion(ids: tuple[int, ...]) -> Completion:
    unknown = (nan,) * len(ids)  # a missing logprob counts as the trainer's
    return Completion(
        token_ids=ids,
        behavior_logprobs=unknown,
        sampling_logprobs=unknown,
        stop_reason=StopReason.STOP,
        policy_version=0,
    )


def all_encoded(
    demonstrations: Iterable[Demonstration], chat: Chat, max_tokens: int
) -> tuple[list[Episode], dict[str, list[str]]]:
    """The demonstrations as episodes, and the examples of those that cannot be trained on, by reason."""
    episodes, left_out = list[Episode](), dict[str, list[str]]()

    async def encode() -> None:
        for one in demonstrations:
            found = await encoded(one, chat, max_tokens)
            if isinstance(found, Episode):
                episodes.append(found)
            else:
                left_out.setdefault(found, []).append(one.example.id)

    asyncio.run(encode())
    return episodes, left_out


def token_ids(episode: Episode) -> tuple[tuple[int, ...], ...]:
    """Everything the model saw and said, turn by turn: equal for equal episodes."""
    return tuple(turn.prompt_ids + turn.completion.token_ids for turn in episode.turns)
