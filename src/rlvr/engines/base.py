"""What every engine can do: sample completions from token ids, and take new weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rlvr.types import Completion, SamplingParams

OnToken = Callable[[int, float], None]
"""Called with each sampled token's id and behavior logprob, in order, before the completion is returned."""


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    """Asks for the `count` likeliest tokens at each position, which are in `seen` before `on_token` hears of the drawn
    one: their ids and behavior logprobs, likeliest first."""

    count: int
    seen: list[tuple[tuple[int, ...], tuple[float, ...]]] = field(default_factory=list)


class Engine(Protocol):
    """Token ids in, token ids out. Calls that are awaited together are batched together."""

    @property
    def policy_version(self) -> int:
        """Of the weights the next token is sampled with."""
        ...

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        """Sample one completion. Cancel the call to give it up: its place in the batch is free at the next step.

        `session` names the episode: the engine may keep what it computed for the prompt and the completion, for the
        next call of the same session, whose prompt starts with both. End it with `release`.
        """
        ...

    def release(self, session: Hashable) -> None:
        """Forget the session; unknown ones are ignored."""
        ...

    def load_weights(self, version: int) -> None:
        """The policy's weights have changed: forget everything computed with the old ones."""
        ...

    def close(self) -> None:
        """Free what the engine holds. Waiting callers get a cancellation."""
        ...
