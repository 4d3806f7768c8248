"""Rank, world size and collectives of the processes that train together.

A run of one process is a world of size 1, where every method returns what it was given: no other file asks how many
there are. All ranks call the methods in the same order, from one thread. `rlvr.scale.launch` opens larger worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rlvr.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class World:
    """`World(rank=1, size=2, local_rank=1, local_size=2)`: the second of two processes on one machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that writes and talks."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's items: r, r + W, r + 2W, ..."""
        return items[self.rank :: self.size]

    def gather(self, item: T) -> list[T]:
        """Every rank's item, in the order of the ranks, on every rank."""
        if self.size == 1:
            return [item]
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, item)
        return found

    def join(self, items: Sequence[T]) -> list[T]:
        """The inverse of `share`: what each rank made of its share, in the order of the whole."""
        parts = self.gather(list(items))
        total = sum(map(len, parts))
        return [parts[index % self.size][index // self.size] for index in range(total)]

    def first(self, item: T) -> T:
        """The first rank's item, on every rank."""
        return self.gather(item)[0]

    def attempt(self, function: Callable[[], T]) -> list[T]:
        """What each rank's `function` returned, as `gather`. A UserError of any rank is raised on all, the first one's.

        For what may fail on one machine alone, as a full disk: the others would fail of what it left undone.
        """
        try:
            answer: T | UserError = function()
        except UserError as error:
            answer = error
        answers = self.gather(answer)
        for found in answers:
            if isinstance(found, UserError):
                raise found
        return cast(list[T], answers)

    def any(self, flag: bool) -> bool:
        """Whether it is true on any rank."""
        return any(self.gather(flag))

    def add(self, tensor: Tensor) -> Tensor:
        """Sum over the ranks, in place."""
        if self.size > 1:
            import torch.distributed as dist

            dist.all_reduce(tensor)
        return tensor

    def copy_first(self, tensor: Tensor) -> Tensor:
        """Take the first rank's numbers, in place."""
        if self.size > 1:
            import torch.distributed as dist

            dist.broadcast(tensor, src=0)
        return tensor


ALONE = World()
