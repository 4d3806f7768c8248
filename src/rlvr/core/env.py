"""The environment protocol: start an episode, answer each completion, score the episode."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlvr.types import Message, Score, ToolSchema, TurnText


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The environment's answer to a completion: messages for the next turn, or `done`.

    With `restarts` the messages replace the conversation: the next prompt extends nothing.
    """

    messages: tuple[Message, ...]
    done: bool
    restarts: bool = False


class Env(Protocol):
    """One episode of one example. Single use, no reset: no state leaks between episodes."""

    @property
    def max_turns(self) -> int | None:
        """Maximum number of completions; None if unknown. The engine drops its cache after the last one."""
        ...

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """Tools the model may call; part of the first prompt."""
        ...

    async def start(self) -> tuple[Message, ...]:
        """The messages of the first prompt; called once."""
        ...

    async def step(self, said: Message) -> Reply:
        """The reply to a completion, given as the assistant's message with its tool calls."""
        ...

    async def score(self, turns: Sequence[TurnText]) -> Score:
        """The score of the whole episode; called once, at its end, also if it was truncated."""
        ...
