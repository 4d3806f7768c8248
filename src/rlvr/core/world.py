"""The processes that train together: who this one is, and what it can ask the others.

A run of one process is a world of size 1, and every function here then gives back what it was given: no other file
asks how many there are. All ranks must call them in the same order, from one thread.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rlvr.errors import ConfigError, UserError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

TIMEOUT_S = 1800.0
"""A rank that waits so long for the others gives up: evaluation and verifiers of one rank may take their time."""

PATIENCE_S = 60.0
"""How long a process that fails like another one waits for the launcher to end it."""


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


def num_processes() -> int:
    """How many processes the launcher says that it has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launcher() -> str:
    """What stands before `train` in a command that goes on with as many processes."""
    size = num_processes()
    if size == 1:
        return "rlvr"
    here = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    return f"torchrun {f'--standalone --nproc-per-node {size}' if here == size else '...'} -m rlvr"


def is_local_main_process() -> bool:
    """Whether this process has local rank 0: it reports what all processes of its machine know."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


@contextmanager
def errors_once() -> Iterator[None]:
    """Around what fails in all processes before they are connected: local rank 0 raises the error, the others wait."""
    try:
        yield
    except UserError:
        if not is_local_main_process():
            wait_for_the_end()
        raise


def wait_for_the_end() -> None:
    """Where another process is about to report why all fail: wait until the launcher sees it end, and ends this one.

    To exit first would make the launcher end the other one before it has reported. Returns only if this process is not
    ended: then the other has not failed, and this one has to report.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(PATIENCE_S)


def check_launch(strategy: str, wanted: int | None) -> None:
    """ConfigError if a launcher has not started the processes that were asked for: one that starts a single process
    says nothing."""
    size = num_processes()
    if wanted is not None and wanted != size:
        raise ConfigError(
            f"trainer.world_size={wanted}: {size} process{'es train' if size > 1 else ' trains'} here; start them with "
            f"torchrun --nproc-per-node {wanted} -m rlvr train ... (accelerate launch on a CPU starts one, in silence)."
        )
    if strategy == "single" and size > 1:
        raise ConfigError(
            f"trainer.strategy=single: {size} processes were started, and each would train by itself; set "
            "trainer.strategy=fsdp2 or ddp."
        )


@contextmanager
def open_world(strategy: str, *, wanted: int | None = None) -> Iterator[World]:
    """The world that torchrun, or accelerate, has started this process in; a process group while the block runs.

    Raises ConfigError as `check_launch`.
    """
    check_launch(strategy, wanted)
    if strategy == "single":
        yield ALONE
        return
    import torch
    import torch.distributed as dist

    names = {"rank": "RANK", "local_rank": "LOCAL_RANK"}
    ranks = {name: int(os.environ.get(variable, "0")) for name, variable in names.items()}
    size = num_processes()
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if size == 1:  # no launcher: a world of one needs no address
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    else:
        dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S))
    try:
        yield World(size=size, local_size=local_size, **ranks)
        if size > 1:
            dist.barrier()  # a rank that leaves early makes the others abort at exit
    finally:
        dist.destroy_process_group()
