"""The run folder: paths, lock, and settings that may change on resume."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from shlex import quote
from typing import IO, Any

from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlvr.config import Config
from rlvr.config.compose import read_yaml, to_run_yaml
from rlvr.config.sections import check_place
from rlvr.errors import ConfigError, UserError
from rlvr.lines import resuming
from rlvr.records.files import write_atomically, writing
from rlvr.records.jsonl import read_metrics
from rlvr.settings import dumped, leaf_values
from rlvr.training.checkpoint import clean_leftovers, list_checkpoints

LOCK = ".lock"


class RunFolder:
    def __init__(self, *, root: Path) -> None:
        self.root = root
        self.config = root / "config.yaml"  # the resolved configuration; repeating it makes a new run
        self.metrics = root / "metrics.jsonl"  # one JSON object for each step
        self.rollouts = root / "rollouts"  # sampled texts with rewards, one file per recorded step
        self.checkpoints = root / "checkpoints"  # one folder per checkpoint
        self.warm_start = root / "warm_start"  # the model after its warm start
        self.final = root / "final"  # the final model or adapter, in Hub format


@contextmanager
def open_run_folder(config: Config, *, runs: Path = Path("runs"), now: datetime | None = None) -> Iterator[RunFolder]:
    """Create the folder of a new run, or open the one to resume; locked for the block, with `config.yaml` written.

    Without `run_dir` the folder is `runs/<name>-<time>`. `runs/latest` links to the newest one. ConfigError if the
    folder already holds a run, there is none to resume, or a setting differs from the run's own; UserError if another
    process writes to the folder, or it is not writable.
    """
    if config.run_dir is None:
        root = _default_root(config.name, runs, now or datetime.now())
    else:
        root = Path(config.run_dir)
        check_place(config.run_dir, resume=config.resume)
        with writing(root):
            root.mkdir(parents=True, exist_ok=True)
    with lock(root):
        folder = RunFolder(root=root)
        if config.resume:
            _check_resumes(folder, config)
        clean_leftovers(root)
        write_config(folder, config)
        if config.run_dir is None or runs.is_dir():
            _point_latest(runs, root)
        yield folder


def _default_root(name: str, runs: Path, now: datetime) -> Path:
    """`runs/rpn-20260131-235900`, with `-2`, `-3` ... for further runs in the same second."""
    root = first = runs / f"{name}-{now:%Y%m%d-%H%M%S}"
    numbers = count(2)
    with writing(root):
        runs.mkdir(parents=True, exist_ok=True)
        while True:
            with suppress(FileExistsError):  # created here, so that two processes never share it
                root.mkdir()
                return root
            root = Path(f"{first}-{next(numbers)}")


def _point_latest(runs: Path, root: Path) -> None:
    """Link `runs/latest` to the newest run; best effort, as some file systems have no links."""
    temporary = runs / f".latest.tmp-{os.getpid()}"
    with suppress(OSError):
        temporary.symlink_to(os.path.relpath(root.resolve(), runs.resolve()))  # root may be runs/latest itself
        temporary.replace(runs / "latest")
    temporary.unlink(missing_ok=True)


def lock(root: Path) -> IO[bytes]:
    """Lock the folder. The system releases the lock when the process ends."""
    path = root / LOCK
    with writing(path):
        file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        owner = file.read(20).decode(errors="replace").strip() or "unknown"
        file.close()
        raise UserError(
            f"run_dir={root} is being written by another process (pid {owner}): wait for it or choose another run_dir."
        ) from error
    except OSError:
        return file  # no lock support, as on some network file systems: continue without
    file.truncate(0)
    file.write(f"{os.getpid()}\n".encode())
    file.flush()
    return file


def write_config(folder: RunFolder, config: Config) -> None:
    """Write `config.yaml`, if it says something else."""
    text = to_run_yaml(config).encode()
    if not folder.config.is_file() or folder.config.read_bytes() != text:
        write_atomically(folder.config, text)


def read_config(folder: RunFolder) -> Config:
    """The configuration that a run was started with. UserError if its config.yaml is missing or damaged."""
    try:
        return read_yaml(folder.config.read_text(encoding="utf-8"))
    except ConfigError as error:
        raise ConfigError(f"{folder.config}: {error}") from error
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise UserError(
            f"{folder.config} cannot be used ({str(error).splitlines()[0]}): start a new run in another run_dir."
        ) from error


DECIDED = ("rollout.dead_groups", "trainer.precision", "engine.dtype")
"""Settings whose `auto` is decided when a run is assembled, see `rlvr.run.auto`."""

# Settings that may change on resume: display and storage, device, parallelism and microbatching. The latter change only
# the last digits, and a run that ran out of memory or lost a server must change them.
_FREE_SECTIONS = ("tracker.", "engine.")
_FREE = {
    "run_dir", "resume", "name", "trainer.checkpoint_every", "trainer.keep_last", "trainer.keep_best",
    "trainer.strategy", "trainer.world_size", "trainer.device", "trainer.num_threads", "trainer.cpu_offload",
    "trainer.microbatch_tokens", "model.gradient_checkpointing", "evaluation.headline", "warm_start.cache",
    "reward.max_error_share", "reward.timeout_s", "reward.num_workers", "reward.max_memory_mb",
}  # fmt: skip


def changed_settings(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Settings that would make the resumed run differ from an uninterrupted one, with old and new value.

    `trainer.max_steps` may change if the learning rate does not depend on it, and what weighs late samples with the
    engine: that of servers is `truncate`, unless the user says otherwise. An `auto` that the run has decided stays so.
    """
    before, after = ({k: v for k, v in leaf_values(dumped(config)) if v != {}} for config in (old, new))
    free = {*_FREE, "trainer.max_steps"} if old.trainer.schedule == "constant" else _FREE
    if old.engine.name != new.engine.name:
        free = {*free, "algorithm.mismatch_correction"}
    free = {*free, *(key for key in DECIDED if after.get(key) == "auto")}
    sections = _FREE_SECTIONS if new.warm_start.enabled or old.warm_start.enabled else (*_FREE_SECTIONS, "warm_start.")
    values = {key: (before.get(key), after.get(key)) for key in before | after}
    return {k: (a, b) for k, (a, b) in values.items() if a != b and k not in free and not k.startswith(sections)}


def _check_resumes(folder: RunFolder, new: Config) -> None:
    """ConfigError unless the run can resume with these settings."""
    old, root = read_config(folder), folder.root
    made = max(list_checkpoints(folder.checkpoints), default=0)
    steps = [row["step"] for row in read_metrics(folder.metrics)] if folder.metrics.is_file() else []
    changed = changed_settings(old, new)
    if changed and not made and max(steps, default=0) == 0 and not folder.final.is_dir():
        for path in (folder.checkpoints, folder.warm_start):  # no step was made: it starts again, from its cache
            shutil.rmtree(path, ignore_errors=True)
    elif changed:
        # a swapped choice of a group explains all the other differences
        key, (before, after) = min(changed.items(), key=lambda item: not item[0].endswith(".name"))
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        why = "a resumed run must equal the uninterrupted one"
        if key == "trainer.max_steps":
            why = f"the {old.trainer.schedule} schedule depends on it"
        raise ConfigError(
            f"{key}={after} differs from {before} in {folder.config}{more}, and {why}: resume with the run's own "
            f"settings (rlvr train --config-dir {quote(str(root))} --config-name config {resuming(root)}), or "
            "start another."
        )
    if made > new.trainer.max_steps:
        raise ConfigError(
            f"trainer.max_steps={new.trainer.max_steps}: the run in {root} has made {made} steps already; give at "
            "least as many."
        )
