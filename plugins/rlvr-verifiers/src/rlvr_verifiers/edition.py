"""What an edition of the verifiers library has to offer: its modules are `legacy` (0.3.1) and `v1` (0.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlvr.core.env import Env
from rlvr.types import Example, Message, ToolSchema
from rlvr_verifiers.env import Scored


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the environment's data. `identity` tells rows apart that ask the same; `source` is the library's own."""

    messages: tuple[Message, ...]
    answer: str
    identity: str
    source: Any


class Environment(Protocol):
    """An environment with its data."""

    @property
    def train(self) -> Sequence[Row] | None: ...

    @property
    def held_out(self) -> Sequence[Row] | None:
        """None: a share of `train` has to be held out."""
        ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def tools(self, row: Row) -> tuple[ToolSchema, ...]:
        """The tools of an episode of this row."""
        ...

    def own(self, question: str) -> Row:
        """A user's question."""
        ...

    def envs(self, example: Example, row: Row, count: int, scored: Scored | None = None) -> Sequence[Env]:
        """Episodes that are scored together if the environment has rewards of groups."""
        ...
