"""Ranks: logging on the first, a common stop flag, and error propagation."""

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
"""Seconds a rank waits for the one that failed first to close its trackers and to report."""

LOST = re.compile("gloo|NCCL|[Cc]onnection|Broken pipe|[Tt]imed out")
"""In torch's errors when another process does not answer any more."""


@contextmanager
def fail_together(world: World) -> Iterator[None]:
    """Fail all ranks together; report the error once.

    The rank that fails first raises its error; its connections close, so the others fail where they wait for it and
    leave with SystemExit, in silence, once it has reported: a launcher that sees one process end kills the others. A
    rank that was killed reports nothing: then the first that misses it does.
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
            said = re.sub(r"^\[[^\]]*\] ", "", str(error).strip().splitlines()[0].split(". ")[0])
            raise UserError(
                f"process {world.rank} of {world.size} has lost another one (killed, or out of memory?): look at what "
                "was said before, and go on with the same command, its run_dir and "
                f"resume=true (torch says: {said})"
            ) from error
        raise


def _fails_first() -> bool:
    """Whether this rank fails first, by a count in the launcher's store; if not, wait until the first has reported."""
    from torch.distributed.distributed_c10d import _get_default_store

    try:
        store = _get_default_store()
        if store.add("rlvr/failed", 1) == 1:
            atexit.register(_report_done, store)
            return True
    except (RuntimeError, ValueError):  # the store has gone with the process that held it
        return True
    with suppress(RuntimeError):  # that process has gone without a word, or takes too long
        store.wait(["rlvr/said"], timedelta(seconds=PATIENCE_S))
    return False


def _report_done(store: Any) -> None:
    with suppress(RuntimeError):
        store.set("rlvr/said", "1")


def quiet(config: Config) -> Config:
    tracker = config.tracker.model_copy(update={"console": "none", "report_to": ()})
    return config.model_copy(update={"tracker": tracker, "debug": False})


def note_of_rank(config: Config, world: World, note: Callable[[str], None]) -> Callable[[str], None]:
    """What a rank alone knows: the first one's by its `note`, others' on stderr with their numbers."""
    if world.is_first or config.tracker.console == "none":
        return note
    return lambda text: print(f"process {world.rank}: {text}", file=sys.stderr, flush=True)


def any_stopped(stopped: Callable[[], bool], world: World, note: Callable[[str], None]) -> Callable[[], bool]:
    """Whether any rank was asked to stop; to be asked on all of them at the same points."""
    if world.size == 1:
        return stopped

    def asked() -> bool:
        stopping = world.any(stopped())
        if stopping:
            note("stopping after this step")
        return stopping

    return asked


def check_shares(config: Config, world: World) -> None:
    """ConfigError if prompts cannot be dealt out evenly: some processes would wait for the others in every step."""
    prompts = config.rollout.prompts_per_step
    if prompts % world.size:
        below = prompts // world.size * world.size
        near = " or ".join(str(number) for number in (below, below + world.size) if number)
        raise ConfigError(
            f"rollout.prompts_per_step={prompts}: does not split into equal parts for {world.size} processes; choose "
            f"{near}, or start another number of processes."
        )


def shared_folder(root: Path | None, world: World) -> Path:
    """The first rank's run folder, on every rank. UserError if a machine does not see it."""
    found = Path(world.first(root and str(root)) or "")
    unseen = [rank for rank, seen in enumerate(world.gather(found.is_dir())) if not seen]
    if unseen:
        raise UserError(
            f"run_dir={found}: process {unseen[0]} does not see this folder of process 0; choose one on a file system "
            "that all machines share, and start the command in the same folder on each."
        )
    return found
