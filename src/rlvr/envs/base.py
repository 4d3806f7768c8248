"""What an environment is: it opens an episode, answers each completion, and scores the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlvr.types import Message, Score, StopReason


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The environment's answer to a completion: messages for the next turn, or `done`."""

    messages: tuple[Message, ...]
    done: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnText:
    """A turn as text: `TurnText(prompt="<boe> 3 4 + =", completion="7 <eoe>", text="7", ..., num_tokens=2)`.

    `prompt` and `completion` have every special token; `text` lacks only the stop token that ended the completion.
    """

    prompt: str
    completion: str
    text: str
    stop_reason: StopReason
    num_tokens: int


class Env(Protocol):
    """One episode of one example. Single use: there is no reset, so nothing leaks from one episode to the next."""

    @property
    def max_turns(self) -> int | None:
        """Completions it takes at most, None if not known. After the last one the engine keeps nothing."""
        ...

    async def start(self) -> tuple[Message, ...]:
        """The messages of the first prompt; called once."""
        ...

    async def step(self, completion_text: str) -> Reply:
        """What happens after a completion."""
        ...

    async def score(self, turns: Sequence[TurnText]) -> Score:
        """The verdict on the whole episode; called once, at its end, also when it was truncated."""
        ...
