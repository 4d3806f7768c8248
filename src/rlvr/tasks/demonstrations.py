"""Demonstrations as token ids: the very tokens that a rollout with these completions would have.

env.start()     the prompt                         [1, 10, 11, 4]
turns[0]        a completion, with its end token   [14, 2]
env.step(...)   the reply of a tool, the next header; then turns[1], ...
                A reply that restarts is a prompt of its own.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import nan

from rlvr.chat.rendering import Chat
from rlvr.core.env import Env, Reply
from rlvr.core.supervised import right_episode
from rlvr.data.problems import Conversation
from rlvr.errors import UserError
from rlvr.tasks.base import Solution, calling
from rlvr.types import (
    Episode,
    Example,
    Message,
    Score,
    StopReason,
    ToolSchema,
    TurnText,
)


def of_conversation(conversation: Conversation, example: Example, tools: Sequence[ToolSchema] = ()) -> Solution:
    """A user's own right episode. One that begins with the assistant follows the example's prompt; `tools` are those of
    one that brings none."""
    turns, parts = list[Message](), [list[Message]()]
    for message in conversation.messages:
        if message.role == "assistant":
            turns.append(message)
            parts.append([])
        else:
            parts[-1].append(message)
    opening, *replies = parts
    messages = tuple(opening) or example.messages
    asked = replace(example, messages=messages, tools=conversation.tools or tuple(tools))
    return Solution(example=asked, turns=turns, replies=replies)


class Replayed:
    """The environment of a solution with replies: it says them."""

    def __init__(self, solution: Solution) -> None:
        self.tools: tuple[ToolSchema, ...] = solution.example.tools
        self.max_turns: int | None = len(solution.turns)
        self._opening, self._replies = solution.example.messages, [*(solution.replies or ())]

    async def start(self) -> tuple[Message, ...]:
        return self._opening

    async def step(self, said: Message) -> Reply:
        reply = tuple(self._replies.pop(0))
        return Reply(messages=reply, done=not self._replies)

    async def score(self, turns: Sequence[TurnText]) -> Score:
        return Score(value=nan)


async def encoded(solution: Solution, env: Env, chat: Chat, max_tokens: int) -> Episode | str:
    """The solution as an episode with unknown logprobs, or why it cannot be one; `env` is fresh."""
    if not solution.turns:
        return "have no demonstration" if solution.replies is None else "have no assistant turn"
    turns = list[tuple[tuple[int, ...], tuple[int, ...]]]()
    conversation = list(await env.start())
    prompt = chat.encode_prompt(conversation, env.tools)
    for number, turn in enumerate(solution.turns):
        message = calling(turn, number)
        try:
            ids = chat.encode_completion(message, env.tools)
        except UserError as error:
            raise UserError(f"the demonstration of example {solution.example.id}: {error}") from error
        if len(prompt) + len(ids) > max_tokens:
            return f"have more than {max_tokens:,} tokens"
        turns.append((prompt, ids))
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
    return right_episode(solution.example.id, turns)


def all_encoded(
    solutions: Iterable[Solution], env: Callable[[Example], Env], chat: Chat, max_tokens: int
) -> tuple[list[Episode], dict[str, list[str]]]:
    """The solutions as episodes, and the examples of those that cannot be trained on, by reason. `env` makes the
    environment of those without replies."""
    episodes, left_out = list[Episode](), dict[str, list[str]]()

    async def encode() -> None:
        for solution in solutions:
            replies = Replayed(solution) if solution.replies is not None else env(solution.example)
            episode = await encoded(solution, replies, chat, max_tokens)
            if isinstance(episode, Episode):
                episodes.append(episode)
            else:
                left_out.setdefault(episode, []).append(solution.example.id)

    asyncio.run(encode())
    return episodes, left_out


def token_ids(episode: Episode) -> tuple[tuple[int, ...], ...]:
    """Everything the model saw and said, turn by turn: equal for equal episodes."""
    return tuple(turn.prompt_ids + turn.completion.token_ids for turn in episode.turns)
