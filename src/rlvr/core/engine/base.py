"""The engine interface: sample completions from token ids, load new weights."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from rlvr.types import Completion, SamplingParams, StopReason

OnToken = Callable[[int, float], None]
"""Called in order with each token's id and behavior logprob, before the completion is returned."""


Allowed = Callable[[Sequence[int]], Tensor]
"""The tokens that may follow a completion's tokens: `[V]` bool, at least one True. Logprobs are over these."""


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    """Requests the `count` likeliest tokens at each position. `seen` gets their ids and behavior logprobs, likeliest
    first, before `on_token` is called with the sampled token."""

    count: int
    seen: list[tuple[tuple[int, ...], tuple[float, ...]]] = field(default_factory=list)


@runtime_checkable
class Engine(Protocol):
    """Token ids in, token ids out. Concurrent calls are batched together."""

    @property
    def policy_version(self) -> int:
        """Version of the weights the next token is sampled with."""
        ...

    @property
    def max_context_tokens(self) -> int:
        """Tokens of the longest row, prompt and completion together."""
        ...

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        """Sample one completion. Cancelling the call frees its place in the batch at the next step.

        `session` names the episode: the engine may keep its cache for the next call with the same session, whose prompt
        starts with this prompt and completion. End it with `release`.
        """
        ...

    def release(self, session: Hashable) -> None:
        """Forget the session; unknown ones are ignored."""
        ...

    def load_weights(self, version: int) -> None:
        """The policy has new weights: drop every cached key and value."""
        ...

    def close(self) -> None:
        """Free the engine's resources; waiting callers are cancelled."""
        ...


def within_context(prompt_ids: Sequence[int], sampling: SamplingParams, max_context_tokens: int) -> SamplingParams:
    """Cut `max_tokens` to the remaining context. ValueError for an empty prompt or one longer than the context."""
    if not len(prompt_ids):
        raise ValueError("the prompt is empty: there is nothing to continue")
    room = max_context_tokens - len(prompt_ids)
    if room < 0:
        raise ValueError(f"the prompt has {len(prompt_ids)} tokens, more than max_context_tokens={max_context_tokens}")
    return sampling if sampling.max_tokens <= room else replace(sampling, max_tokens=room)


def empty_completion(version: int) -> Completion:
    """The completion of a prompt that fills the context."""
    return Completion(
        token_ids=(), behavior_logprobs=(), sampling_logprobs=(), stop_reason=StopReason.LENGTH, policy_version=version
    )
