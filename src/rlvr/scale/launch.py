"""Process group of a run started by torchrun or accelerate."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from rlvr.core.world import ALONE, World
from rlvr.errors import ConfigError, UserError

TIMEOUT_S = 1800.0
"""Time limit of collectives in seconds: evaluation and verifiers of one rank may take long."""

PATIENCE_S = 60.0  # seconds that a failed process waits for the launcher to end it


def num_processes() -> int:
    size = os.environ.get("WORLD_SIZE", "1")
    if not size.isdecimal() or int(size) < 1:
        raise ConfigError(f"WORLD_SIZE={size} in the environment: must be a number of processes; a launcher sets it.")
    return int(size)


def launcher() -> str:
    """The command prefix before `train` that starts as many processes."""
    size = num_processes()
    if size == 1:
        return "rlvr"
    here = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    return f"torchrun {f'--standalone --nproc-per-node {size}' if here == size else '...'} -m rlvr"


def is_local_main_process() -> bool:
    """Whether this process has local rank 0, which reports for its machine."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


@contextmanager
def errors_once() -> Iterator[None]:
    """For failures in all processes before they are connected: local rank 0 raises the error, the others wait."""
    try:
        yield
    except UserError:
        if not is_local_main_process():
            wait_for_the_end()
        raise


def wait_for_the_end() -> None:
    """Wait for the launcher to end this process after another one has reported the common failure.

    An earlier exit would make the launcher end the reporting process. If this function returns, the other process has
    not failed, and this one must report.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(PATIENCE_S)


def tell_launcher(sentence: str) -> None:
    """Give the reason of a failure to torchrun: it ends its long report with it."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        about = {"py_callstack": sentence, "timestamp": str(int(time.time()))}
        with suppress(OSError):
            Path(file).write_text(json.dumps({"message": {"message": sentence, "extraInfo": about}}), encoding="utf-8")


def check_launch(strategy: str, wanted: int | None) -> None:
    """ConfigError unless a launcher has started the required processes: starting only one gives no warning."""
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
    if strategy != "single" and "WORLD_SIZE" not in os.environ:  # a launcher may also start only one process
        raise ConfigError(
            f"trainer.strategy={strategy}: no launcher started this process, and it would train alone; start several "
            "with torchrun --standalone --nproc-per-node N -m rlvr train ..., or set trainer.strategy=single."
        )


@contextmanager
def open_world(strategy: str, *, wanted: int | None = None) -> Iterator[World]:
    """The world started by torchrun or accelerate; its process group exists during the block.

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
            dist.barrier()  # an early exit of a rank makes the others abort
    finally:
        dist.destroy_process_group()
