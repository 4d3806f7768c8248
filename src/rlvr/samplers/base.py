"""The interface of the component `sampler`, which chooses the prompts that a run trains on."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from rlvr.errors import UserError
from rlvr.imports import described, user_code
from rlvr.settings import Component
from rlvr.types import Example, Group


class Stream(Protocol):
    """The part of a task that samplers use."""

    def train_example(self, index: int) -> Example:
        """Example `index` of the endless, seeded training stream."""
        ...

    def tags(self, example: Example) -> tuple[str, ...]:
        """Names of the subsets it is in, e.g. `("2_steps",)`."""
        ...


class PromptSampler(Component, ABC):
    """Chooses the prompts of each step, as indices into the task's endless training stream.

    Its fields are its settings. What it remembers is in private attributes (`_rates: Any = PrivateAttr(dict)`), and
    goes through `state` into the checkpoint. With staleness, prompts are taken up to `max_staleness` steps before the
    groups in between are observed. Chance comes from `rlvr.seeding.derive_seed(self.seed, ...)`, so that a resumed run
    equals an uninterrupted one.
    """

    group: ClassVar[str] = "sampler"

    _stream: Any = None
    _seed: int = 0

    @property
    def stream(self) -> Stream:
        return self._stream

    @property
    def seed(self) -> int:
        """The run's."""
        return self._seed

    def started(self, stream: Stream, seed: int) -> Self:
        """A copy for a run, with nothing remembered."""
        fresh = type(self).model_construct(**dict(self))
        fresh._stream, fresh._seed = stream, seed
        return fresh

    @abstractmethod
    def take(self, count: int) -> Sequence[int]:
        """The indices of `count` different examples: the prompts of a step, or replacements of its dead groups.

        An index that was drawn before is sampled with the same seeds again; a later index of the same example is not.
        """

    def observe(self, groups: Sequence[Group]) -> None:
        """All groups of a step, replaced ones included, before they are trained on; the same on every rank."""

    def state(self) -> Mapping[str, Any]:
        """What `restore` needs, as JSON."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""


@dataclass(frozen=True)
class Checked:
    """A sampler in a run: UserError, with the method, if it fails or returns what it must not."""

    sampler: PromptSampler

    @classmethod
    def started(cls, sampler: PromptSampler, stream: Stream, seed: int) -> Self:
        """The sampler before the first step of a run. ConfigError if it does not fit the task."""
        with user_code(f"sampler={sampler.name}: its start"):
            made = cls(sampler.started(stream, seed))
        made.state()  # fails before the first checkpoint
        return made

    def take(self, count: int) -> list[int]:
        wanted = f"must return {count} different indices of the training stream, not"
        indices = self._call("take", count)
        if not isinstance(indices, Sequence):
            raise self._error("take", f"{wanted} a {type(indices).__name__}")
        if len(indices) != count:
            raise self._error("take", f"{wanted} {len(indices)}")
        if strange := [index for index in indices if type(index) is not int or index < 0]:
            raise self._error("take", f"{wanted} {strange[0]!r:.40}, which is no whole number from 0")
        if len({*indices}) < count:
            raise self._error("take", f"{wanted} {max(indices, key=indices.count)} twice")
        return list(indices)

    def observe(self, groups: Sequence[Group]) -> None:
        self._call("observe", groups)

    def state(self) -> Any:
        state = self._call("state")
        try:
            json.dumps(state)
        except (TypeError, ValueError) as error:
            raise self._error("state", f"must return what JSON can hold ({error})") from error
        return state

    def restore(self, state: Any) -> None:
        self._call("restore", state)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.sampler, method)(*arguments)
        except Exception as error:
            if isinstance(error, UserError | MemoryError) or type(self.sampler).__module__.startswith("rlvr."):
                raise
            raise self._error(method, f"raised {described(error)}") from error

    def _error(self, method: str, problem: str) -> UserError:
        name = self.sampler.name
        return UserError(f"sampler={name}: its method {method} {problem}; correct it, then go on with resume=true.")
