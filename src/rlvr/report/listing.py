"""Lists run folders: what each run trains, how far it is, its last score, and whether it still works."""

import fcntl
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from rlvr.records.files import ERROR, PRUNED
from rlvr.records.history import headline_of, run_folders, setting_of, text_of
from rlvr.records.jsonl import metrics_row

State = Literal["running", "done", "failed", "pruned", "stopped"]
STATES: tuple[str, ...] = get_args(State)
LOCK = ".lock"
"""Held by the process that writes the folder."""
UNREADABLE = "its config.yaml cannot be read, so its settings are not known"


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """`ListedRun(name="rpn-20261126-062519", state="done", step=50, max_steps=50, score=0.91, low=0.87, ...)`

    `score` is the last held-out value of `evaluation.headline`, with its 95 % interval; NaN without one. `error` says
    why it failed, or that its config.yaml cannot be read; `pruned` why it was.
    """

    folder: Path
    name: str  # the path below the folder that was searched
    state: State
    step: int
    max_steps: int | None
    score: float
    low: float
    high: float
    updated: datetime
    error: str
    pruned: str
    settings: Mapping[str, Any]

    def setting(self, key: str) -> Any:
        """`setting("trainer.max_steps")`; `task`, `model` and the other choices are their names. None if unknown."""
        value = setting_of(self.settings, key)
        return value.get("name") if isinstance(value, Mapping) else value

    def value(self, key: str) -> Any:
        """A field of this class by name, else a setting."""
        if key in self.__dataclass_fields__ and key != "settings":
            return getattr(self, key)
        return self.setting(key)


def list_runs(folder: Path) -> list[ListedRun]:
    """The runs in a folder and in the folders below, by name; links are not followed. Damaged ones are listed, too."""
    return [_listed(path, path.relative_to(folder)) for path in sorted(run_folders(folder))]


def _listed(folder: Path, name: Path) -> ListedRun:
    settings = _settings(folder / "config.yaml")
    headline = headline_of(settings or {})
    step, row = _last(folder / "metrics.jsonl", headline)
    max_steps = setting_of(settings or {}, "trainer.max_steps")
    error, pruned = text_of(folder / ERROR), text_of(folder / PRUNED)
    ended = (folder / "final").is_dir() and (max_steps is None or step >= max_steps)
    files = [path for path in (folder / "metrics.jsonl", folder / "config.yaml") if path.exists()]
    return ListedRun(
        folder=folder,
        name=str(name) if name.parts else folder.resolve().name,
        state=_state(folder, error=error, ended=ended, pruned=pruned),
        step=step,
        max_steps=max_steps if isinstance(max_steps, int) else None,
        score=row.get(headline, math.nan),
        low=row.get(f"{headline}_low", math.nan),
        high=row.get(f"{headline}_high", math.nan),
        updated=datetime.fromtimestamp(max((path.stat().st_mtime for path in files), default=0.0)),
        error=error or (UNREADABLE if settings is None else ""),
        pruned=pruned,
        settings=settings or {},
    )


def _state(folder: Path, *, error: str, ended: bool, pruned: str) -> State:
    if is_locked(folder):
        return "running"
    return "failed" if error else "done" if ended else "pruned" if pruned else "stopped"


def _settings(file: Path) -> Mapping[str, Any] | None:
    """None if it cannot be read."""
    try:  # the C parser takes a twentieth of OmegaConf's time, and the file of a run has no interpolations
        found = yaml.load(file.read_bytes(), Loader=yaml.CSafeLoader)
    except (OSError, yaml.YAMLError, ValueError):
        return None
    return found if isinstance(found, Mapping) else None


def _last(file: Path, headline: str) -> tuple[int, Mapping[str, float]]:
    """The last step, and the last row that has the headline; read from the end."""
    step = 0
    with suppress(OSError):
        for line in reversed(file.read_bytes().split(b"\n")[:-1]):  # the last one may be incomplete
            try:
                row = metrics_row(line)
            except ValueError:
                continue
            step = max(step, int(row["step"]))
            if math.isfinite(row.get(headline, math.nan)):
                return step, row
    return step, {}


def is_locked(folder: Path) -> bool:
    """Whether a process of this machine writes the folder."""
    with suppress(OSError), (folder / LOCK).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def as_json(run: ListedRun) -> str:
    """One line: the fields, and the settings."""
    numbers = {name: getattr(run, name) for name in ("score", "low", "high")}
    return json.dumps(
        {
            "folder": str(run.folder),
            "name": run.name,
            "state": run.state,
            "task": run.setting("task"),
            "algorithm": run.setting("algorithm"),
            "step": run.step,
            "max_steps": run.max_steps,
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            "updated": run.updated.isoformat(timespec="seconds"),
            "error": run.error or None,
            "pruned": run.pruned or None,
            "settings": run.settings,
        },
        ensure_ascii=False,
        default=str,
    )
