"""One call of `generate`: its parameters and the tokens sampled so far."""

from asyncio import CancelledError, Future
from collections.abc import Hashable
from dataclasses import dataclass, field

from rlvr.core.engine.base import Allowed, Alternatives, OnToken
from rlvr.types import Completion, SamplingParams, StopReason


@dataclass(eq=False, kw_only=True, slots=True)
class Request:
    """A waiting or running request. Tokens are Python values: they leave the device once per step, for all rows
    together."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    future: Future[Completion]
    session: Hashable | None = None
    on_token: OnToken | None = None
    alternatives: Alternatives | None = None
    allowed: Allowed | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[float, float]] = field(default_factory=list)  # behavior and sampling logprob of each token
    policy_version: int = -1  # of the weights its first token was sampled with
    version_changes: list[tuple[int, int]] = field(default_factory=list)  # (first token, version) of later ones
    aborted: bool = False

    @property
    def cached_ids(self) -> tuple[int, ...]:
        """Prompt and completion without the last token, which the model has not processed yet."""
        return self.prompt_ids + tuple(self.token_ids[:-1])

    def add(self, token: int, behavior_logprob: float, sampling_logprob: float) -> bool:
        """Append a token; returns whether the request is finished."""
        self.token_ids.append(token)
        self.logprobs.append((behavior_logprob, sampling_logprob))
        sampling = self.sampling
        return self.aborted or token in sampling.stop_ids or len(self.token_ids) >= sampling.max_tokens

    def note_version(self, version: int) -> None:
        """Later tokens are sampled with weights of this version."""
        if self.version_changes and self.version_changes[-1][0] == len(self.token_ids):  # two loads between two tokens
            self.version_changes.pop()
        self.version_changes.append((len(self.token_ids), version))

    def restart(self) -> None:
        """Drop the sampled tokens."""
        self.policy_version = -1
        for sampled in (self.token_ids, self.logprobs, self.version_changes):
            sampled.clear()
        if self.alternatives is not None:
            self.alternatives.seen.clear()

    def deliver(self) -> None:
        """Give the completion to the caller, if it still waits."""
        if self.future.done():
            return
        behavior, sampling = zip(*self.logprobs, strict=True)
        completion = Completion(
            token_ids=tuple(self.token_ids),
            behavior_logprobs=behavior,
            sampling_logprobs=sampling,
            stop_reason=StopReason.STOP if self._stopped else StopReason.LENGTH,
            policy_version=self.policy_version,
            version_changes=tuple(self.version_changes),
        )
        self.future.set_result(completion)

    def fail(self, error: BaseException) -> None:
        """Give an error to the caller; a CancelledError cancels."""
        if isinstance(error, CancelledError):
            self.future.cancel()
        elif not self.future.done():
            self.future.set_exception(error)

    @property
    def _stopped(self) -> bool:
        return self.token_ids[-1] in self.sampling.stop_ids
