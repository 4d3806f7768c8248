"""The folder of a run: where things lie in it, who may write to it, and which settings may change on resume."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlvr.config import Config
from rlvr.config.compose import read_yaml, to_run_yaml
from rlvr.errors import ConfigError, UserError
from rlvr.settings import dumped
from rlvr.tracking.files import write_atomically, writing
from rlvr.training.checkpoint import clean_leftovers, list_checkpoints

LOCK = ".lock"
_EARLY = (LOCK, ".config.yaml.tmp-")  # all there is when a run is killed before it began


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Paths inside `root`. One that is written to holds a lock until it is closed; one that is read needs none."""

    root: Path
    lock: IO[bytes] | None = None

    @property
    def config(self) -> Path:
        """The resolved configuration; repeating it makes a new run."""
        return self.root / "config.yaml"

    @property
    def metrics(self) -> Path:
        """One JSON object for each step."""
        return self.root / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        """Sampled texts with their rewards, a file for each step that is written."""
        return self.root / "rollouts"

    @property
    def checkpoints(self) -> Path:
        """One folder for each checkpoint: all that a resumed run needs."""
        return self.root / "checkpoints"

    @property
    def warm_start(self) -> Path:
        """The model made from scratch after its warm start."""
        return self.root / "warm_start"

    @property
    def final(self) -> Path:
        """The model, or adapter, of the end, in Hub format."""
        return self.root / "final"

    def close(self) -> None:
        """Let other processes write to the folder."""
        if self.lock is not None:
            self.lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# ---------------------------------------------------------------------------------------------------------- open


def open_run_folder(config: Config, *, runs: Path = Path("runs"), now: datetime | None = None) -> RunFolder:
    """Create the folder of a new run, or take over the one to resume; locked, with its `config.yaml` written.

    Without `run_dir` the folder is `runs/<name>-<time>`, and `runs/latest` points to it.

    Raises:
        ConfigError: a run is already there, there is none to resume, or a setting differs from the run's own.
        UserError: another process writes to the folder, or it cannot be written.
    """
    if config.resume:
        return _resume(config)
    if config.run_dir is None:
        root = _default_root(config.name, runs, now or datetime.now())
    else:
        root = Path(config.run_dir)
        _refuse_existing(root)
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(root=root, lock=_lock(root))
    try:
        write_atomically(folder.config, to_run_yaml(config).encode())
    except BaseException:
        folder.close()
        raise
    if config.run_dir is None:
        _point_latest(runs, root)
    return folder


def _resume(config: Config) -> RunFolder:
    assert config.run_dir is not None, "a rule of the configuration"
    root = Path(config.run_dir)
    folder = RunFolder(root=root, lock=_lock(root))
    try:
        _check_unchanged(read_config(folder), config, root)
        _check_steps(folder, config)
        clean_leftovers(root)
        text = to_run_yaml(config)
        if folder.config.read_text(encoding="utf-8") != text:
            write_atomically(folder.config, text.encode())
    except BaseException:
        folder.close()
        raise
    return folder


def _check_steps(folder: RunFolder, config: Config) -> None:
    made = max(list_checkpoints(folder.checkpoints), default=0)
    if made > config.trainer.max_steps:
        raise ConfigError(
            f"trainer.max_steps={config.trainer.max_steps}: the run in {folder.root} has made {made} steps already; "
            "give at least so many."
        )


def _refuse_existing(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise ConfigError(f"run_dir={root} is a file: choose another run_dir.")
    if root.is_dir() and any(not path.name.startswith(_EARLY) for path in root.iterdir()):
        raise ConfigError(
            f"run_dir={root} exists and is not empty: add resume=true to go on with it, or choose another run_dir."
        )


def _default_root(name: str, runs: Path, now: datetime) -> Path:
    """`runs/rpn-20260131-235900`, with `-2`, `-3` ... for further runs of the same second."""
    base = f"{name}-{now:%Y%m%d-%H%M%S}"
    number = 1
    while True:
        root = runs / (base if number == 1 else f"{base}-{number}")
        with writing(root):
            runs.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # made here, so that two processes never share one
                root.mkdir()
                return root
        number += 1


def _point_latest(runs: Path, root: Path) -> None:
    """Let `runs/latest` point to the newest run: a convenience, so a file system without links is no error."""
    temporary = runs / f".latest.tmp-{os.getpid()}"
    with suppress(OSError):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(root.name)
        try:
            temporary.replace(runs / "latest")
        finally:
            temporary.unlink(missing_ok=True)


def _lock(root: Path) -> IO[bytes]:
    """Hold the folder's lock. The system frees it when the process ends, however it ends."""
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
        return file  # a file system without locks, as some network ones: the run goes on unguarded
    file.truncate(0)
    file.write(f"{os.getpid()}\n".encode())
    file.flush()
    return file


# -------------------------------------------------------------------------------------------------------- config


def read_config(folder: RunFolder) -> Config:
    """The configuration that a run was started with.

    Raises:
        UserError: `config.yaml` is missing, damaged, or from a version with other settings.
    """
    try:
        return read_yaml(folder.config.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{folder.root} is no run folder: it has no config.yaml.") from error
    except ConfigError as error:
        raise _unusable(folder, str(error).rstrip(".")) from error
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise _unusable(folder, str(error).splitlines()[0]) from error


def _unusable(folder: RunFolder, reason: str) -> UserError:
    return UserError(f"{folder.config} cannot be used ({reason}): start a new run in another run_dir.")


# What may change on resume: where things are shown and kept, and what computes them in which portions (which changes
# numbers in their last digits only, and is what a run that ended for lack of memory or of a server has to change).
# Everything else changes numbers.
_FREE = (
    "run_dir", "resume", "name", "tracker.", "trainer.checkpoint_every", "trainer.keep_last", "trainer.keep_best",
    "trainer.strategy", "trainer.world_size", "trainer.device", "trainer.num_threads", "trainer.cpu_offload",
    "trainer.microbatch_tokens", "model.gradient_checkpointing", "engine.", "evaluation.headline",
    "reward.max_error_share", "reward.timeout_s", "reward.num_workers", "reward.max_memory_mb",
)  # fmt: skip


def changed_settings(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """The settings that would make the resumed run differ from the uninterrupted one, with old and new value.

    `trainer.max_steps` may change where the learning rate does not depend on it.
    """
    before, after = _leaves(dumped(old)), _leaves(dumped(new))
    free = _FREE + (("trainer.max_steps",) if old.trainer.schedule == "constant" else ())
    return {
        key: (before.get(key), after.get(key))
        for key in [*before, *(key for key in after if key not in before)]
        if before.get(key) != after.get(key) and not any(_covers(name, key) for name in free)
    }


def _covers(name: str, key: str) -> bool:
    return key.startswith(name) if name.endswith(".") else key == name


def _leaves(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"trainer": {"max_steps": 3}}` as `{"trainer.max_steps": 3}`."""
    leaves: dict[str, Any] = {}
    for key, value in data.items():
        leaves |= _leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return leaves


def _check_unchanged(old: Config, new: Config, root: Path) -> None:
    changed = changed_settings(old, new)
    if not changed:
        return
    # a swapped choice of a group explains all the other differences
    key, (before, after) = min(changed.items(), key=lambda item: not item[0].endswith(".name"))
    more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
    why = (
        f"the {old.trainer.schedule} schedule depends on it"
        if key == "trainer.max_steps"
        else "a resumed run must equal the uninterrupted one"
    )
    raise ConfigError(
        f"{key}={after} differs from {before} in {root / 'config.yaml'}{more}, and {why}: resume with the run's own "
        f"settings (rlvr train --config-dir {root} --config-name config run_dir={root} resume=true), or start another."
    )
