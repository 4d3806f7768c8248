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
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

from rlvr.core.world import ALONE, World
from rlvr.scale.launch import open_world

PATIENCE_S = 120.0
PRELOADED = [
    "tests.no_waiting",
    *("rlvr.commands.train.body", "rlvr.cli.main", "rlvr.commands.train", "peft", "scipy.stats", "pytest"),
    *(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "qwen2", "qwen3", "mixtral", "gemma3")),
    "tests.warm",
]

Job = Callable[..., Any]
"""`job(world, *arguments)`, a function of a module; what it returns must be picklable, without tensors."""


class RankError(Exception):
    """A job raised on some rank; the message is that rank's traceback."""


def forkserver() -> ForkServerContext:
    """Processes are forked from one that has made the imports, which take seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


class Ranks:
    """`ranks(2, "ddp", job, ...)` runs `job(world, ...)` on 2 ranks and returns what they returned.

    With the strategy None nothing is opened: the job itself does, as a command that a launcher has started. What a job
    changes in its process stays changed for the next one. The processes are started when they are needed.
    """

    def __init__(self) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []

    def __call__(self, size: int, strategy: str | None, job: Job, *arguments: Any) -> list[Any]:
        """RankError if one fails. TimeoutError or EOFError if they do not come to an end; the next job gets others."""
        while len(self._processes) < size:
            self._start()
        port = _free_port()
        try:
            for rank, pipe in enumerate(self._pipes[:size]):
                pipe.send((rank, size, strategy, port, job, arguments, os.environ["XDG_CACHE_HOME"]))
            answers = self._answers(size)
        except BaseException:
            self.close()
            raise
        if failures := [text for text, _ in answers if text is not None]:
            raise RankError("\n".join(failures))
        return [answer for _, answer in answers]

    def _start(self) -> None:
        context = forkserver()
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()  # so that the end of the process is seen
        self._pipes.append(ours)
        self._processes.append(process)

    def _answers(self, size: int) -> list[tuple[str | None, Any]]:
        """By rank, the traceback of what it raised, and what it returned."""
        end = time.monotonic() + PATIENCE_S
        answers = []
        for rank, pipe in enumerate(self._pipes[:size]):
            if not pipe.poll(max(0.0, end - time.monotonic())):
                raise TimeoutError(f"rank {rank} of {size} is still at work")
            answers.append(pipe.recv())
        return answers

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        self._pipes, self._processes = [], []


def _work(pipe: Connection) -> None:
    while True:
        rank, size, strategy, port, job, arguments, cache = pipe.recv()
        names = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in names.items()} | {
            "MASTER_ADDR": "127.0.0.1",
            "XDG_CACHE_HOME": cache,
        }
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
