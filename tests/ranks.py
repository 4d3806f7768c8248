"""Real ranks for tests: processes that talk over gloo, forked once and given one job after another."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import Any

from rlvr.world import ALONE, World, open_world

MOST = 4
PATIENCE_S = 120.0

Job = Callable[..., Any]
"""`job(world, *arguments)`, a function of a module; what it returns must be picklable, without tensors."""


class RankError(Exception):
    """A job raised on some rank; the message is that rank's traceback."""


class Ranks:
    """`ranks(2, "ddp", job, ...)` runs `job(world, ...)` on 2 ranks and returns what they returned.

    With the strategy None nothing is opened: the job itself does, as a command that a launcher has started.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["rlvr.build", "rlvr.cli.main", "rlvr.cli.train"])  # as tests/system/harness.py
        pipes = [context.Pipe() for _ in range(MOST)]
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [context.Process(target=_work, args=(theirs,), daemon=True) for _, theirs in pipes]
        for process in self._processes:
            process.start()

    def __call__(self, size: int, strategy: str | None, job: Job, *arguments: Any) -> list[Any]:
        """RankError if one fails, TimeoutError if they do not come to an end; then no other job can be given."""
        port = _free_port()
        for rank, pipe in enumerate(self._pipes[:size]):
            pipe.send((rank, size, strategy, port, job, arguments))
        end = time.monotonic() + PATIENCE_S
        answers: dict[int, Any] = {}
        for rank in range(size):
            if not self._pipes[rank].poll(max(0.0, end - time.monotonic())):
                raise TimeoutError(f"rank {rank} of {size} is still at work")
            answers[rank] = self._pipes[rank].recv()
        failures = [text for text, _ in answers.values() if text is not None]
        if failures:
            raise RankError("\n".join(failures))
        return [answers[rank][1] for rank in range(size)]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _work(pipe: Connection) -> None:
    while True:
        rank, size, strategy, port, job, arguments = pipe.recv()
        names = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1"}
        try:
            with nullcontext(ALONE) if strategy is None else open_world(strategy) as world:
                answer = (None, _run(world, job, arguments))
        except Exception:
            answer = (f"rank {rank}:\n{traceback.format_exc()}", None)
        pipe.send(answer)


def _run(world: World, job: Job, arguments: tuple[Any, ...]) -> Any:
    import torch

    torch.set_num_threads(1)
    return job(world, *arguments)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
