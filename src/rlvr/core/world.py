"""Rank, world size and collectives of the processes that train together.

With one process (size 1) every method returns its argument, so callers need no special case. All ranks call the methods
in the same order, from one thread. `rlvr.scale.launch` creates larger worlds.
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
        """True on the rank that writes files and logs."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's items: r, r + W, r + 2W, ..."""
        return items[self.rank :: self.size]

    def gather(self, item: T) -> list[T]:
        """Every rank's item, ordered by rank, on every rank."""
        if self.size == 1:
            return [item]
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, item)
        return found

    def gather_shares(self, items: Sequence[T]) -> list[T]:
        """The inverse of `share`: all ranks' results in the original order."""
        parts = self.gather(list(items))
        total = sum(map(len, parts))
        return [parts[index % self.size][index // self.size] for index in range(total)]

    def first(self, item: T) -> T:
        """Rank 0's item, on every rank."""
        return self.gather(item)[0]

    def gather_results(self, function: Callable[[], T]) -> list[T]:
        """Results of `function` from all ranks, as `gather`. A UserError on any rank is raised on all of them.

        For work that can fail on one machine alone, such as writing to a full disk.
        """
        try:
            answer: T | UserError = function()
        except UserError as error:
            answer = error
        answers = self.gather(answer)
        for result in answers:
            if isinstance(result, UserError):
                raise result
        return cast(list[T], answers)

    def any(self, flag: bool) -> bool:
        """True if the flag is set on any rank."""
        return any(self.gather(flag))

    def add(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if self.size > 1:
            import torch.distributed as dist

            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Broadcast rank 0's tensor, in place."""
        if self.size > 1:
            import torch.distributed as dist

            dist.broadcast(tensor, src=0)
        return tensor


ALONE = World()
