"""Ranks: logging on rank 0, a common stop flag, and error propagation."""

import atexit
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from rlvr.config import Config
from rlvr.core.world import World
from rlvr.errors import ConfigError, UserError

PATIENCE_S = 120.0
"""Seconds that other ranks wait for the failed one to close its trackers and report."""

LOST = re.compile("gloo|NCCL|[Cc]onnection|Broken pipe|[Tt]imed out")
"""Matches torch's errors when another process no longer answers."""


@contextmanager
def fail_together(world: World) -> Iterator[None]:
    """Fail all ranks together; report the error once.

    The rank that fails first raises its error. Its connections close, so the others fail in a collective; they wait for
    its report (a launcher kills all processes when one ends), then exit silently. A killed rank reports nothing; the
    first rank that misses it does.
    """
    try:
        yield
    except Exception as error:
        if world.size == 1:
            raise
        if not _fails_first():
            raise SystemExit(error.exit_code if isinstance(error, UserError) else 1) from error
        if isinstance(error, RuntimeError) and LOST.search(str(error)):
            # `[/x/gloo/transport/tcp/pair.cc:537] Read error [::1]:4321: Connection reset by peer. This is ...`
            sentence = re.sub(r"^\[[^\]]*\] ", "", str(error).strip().splitlines()[0].split(". ")[0])
            raise UserError(
                f"process {world.rank} of {world.size} has lost another one (killed, or out of memory?): see the "
                "earlier messages, and repeat the command with its run_dir and "
                f"resume=true (torch says: {sentence})"
            ) from error
        raise


def _fails_first() -> bool:
    """Whether this rank failed first, by a counter in the launcher's store; other ranks wait for the first one's
    report."""
    from torch.distributed.distributed_c10d import _get_default_store

    try:
        store = _get_default_store()
        if store.add("rlvr/failed", 1) == 1:
            atexit.register(_report_done, store)
            return True
    except (RuntimeError, ValueError):  # the process with the store is gone
        return True
    with suppress(RuntimeError):  # killed before its report, or too slow
        store.wait(["rlvr/said"], timedelta(seconds=PATIENCE_S))
    return False


def _report_done(store: Any) -> None:
    with suppress(RuntimeError):
        store.set("rlvr/said", "1")


def quiet(config: Config) -> Config:
    tracker = config.tracker.model_copy(update={"console": "none", "report_to": ()})
    return config.model_copy(update={"tracker": tracker, "debug": False})


def note_of_rank(config: Config, world: World, note: Callable[[str], None]) -> Callable[[str], None]:
    """Notes of this rank: rank 0 uses `note`, others print to stderr with their rank."""
    if world.is_first or config.tracker.console == "none":
        return note
    return lambda text: print(f"process {world.rank}: {text}", file=sys.stderr, flush=True)


def any_stopped(stopped: Callable[[], bool], world: World, note: Callable[[str], None]) -> Callable[[], bool]:
    """Whether any rank was asked to stop; collective."""
    if world.size == 1:
        return stopped

    def asked() -> bool:
        stopping = world.any(stopped())
        if stopping:
            note("stopping after this step")
        return stopping

    return asked


def check_shares(config: Config, world: World) -> None:
    """ConfigError if prompts do not split evenly: some ranks would wait in every step."""
    prompts = config.rollout.prompts_per_step
    if prompts % world.size:
        below = prompts // world.size * world.size
        near = " or ".join(str(number) for number in (below, below + world.size) if number)
        raise ConfigError(
            f"rollout.prompts_per_step={prompts}: does not split into equal parts for {world.size} processes; choose "
            f"{near}, or start another number of processes."
        )


def shared_folder(root: Path | None, world: World) -> Path:
    """Rank 0's run folder, on every rank. UserError if a machine does not see it."""
    folder = world.first(root) or Path()
    unseen = [rank for rank, seen in enumerate(world.gather(folder.is_dir())) if not seen]
    if unseen:
        raise UserError(
            f"run_dir={folder}: process {unseen[0]} does not see this folder of process 0; choose one on a file system "
            "that all machines share, and start the command in the same folder on each."
        )
    return folder
