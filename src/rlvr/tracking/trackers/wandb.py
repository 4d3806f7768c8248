"""Weights & Biases: configuration, history, tables of completions, artifacts; offline without an account."""

from __future__ import annotations

import netrc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlvr.tracking.trackers.backend import Row, RunFacts, Started, Status

EXIT_CODES = {"finished": 0, "killed": 130, "failed": 1}


class WandbBackend:
    """See `Backend`."""

    def __init__(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._wandb = wandb

    def prepare(self, run: RunFacts) -> None:
        """Nothing: files are made as they come."""

    def start(self, run: RunFacts) -> Started:
        """Begin a run, or go on under the id of the known one."""
        mode = _mode(run.settings["mode"])
        known = run.known if run.known and run.known["store"] == _store(run, mode) else None
        for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):  # what waits for `wandb sync` belongs to the run
            os.environ.setdefault(name, str(Path(run.folder) / "wandb"))
        self._run = self._wandb.init(
            project=run.settings["project"],
            entity=run.settings["entity"],
            name=run.name,
            group=run.group,
            tags=run.tags or None,
            id=run.known["id"] if run.known else None,
            resume="allow" if mode == "online" else None,
            dir=run.folder,
            mode=mode,  # pyright: ignore[reportArgumentType]  # what WANDB_MODE says is W&B's to judge
            config=run.config,
            allow_val_change=True,
            settings=self._wandb.Settings(init_timeout=run.timeout_s, console="off", x_stats_pid=os.getppid()),
        )
        folder = Path(self._run.dir).parent
        where = self._run.url if mode == "online" else f"offline; wandb sync {folder}"
        last_step = known["last_step"] if known else -1
        return Started(id=self._run.id, store=_store(run, mode), where=str(where), last_step=last_step)

    def log(self, rows: Sequence[Row]) -> None:
        """A step is a step of the history."""
        for step, values in rows:
            self._run.log(values, step=step)

    def completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        """A table; the page of the run has a slider over the steps."""
        table = self._wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self._run.log({"completions": table}, step=step)

    def files(self, paths: Sequence[str]) -> None:
        """An artifact: the run's own folder there already has a config.yaml."""
        self._artifact("run", paths)

    def model(self, folder: str) -> None:
        """An artifact with the files of the folder."""
        self._artifact("model", [folder])

    def finish(self, status: Status) -> None:
        """W&B knows finished and failed; the summary says `killed`, too."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=EXIT_CODES[status])
        self._wandb.teardown()  # its service writes the last of an offline run only now

    def _artifact(self, kind: str, paths: Sequence[str]) -> None:
        artifact = self._wandb.Artifact(f"{kind}-{self._run.id}", type=kind)
        for path in paths:
            artifact.add_dir(path) if Path(path).is_dir() else artifact.add_file(path)
        self._run.log_artifact(artifact)


def _store(run: RunFacts, mode: str) -> str:
    return f"{mode}:{run.settings['entity'] or ''}/{run.settings['project']}"


def _mode(setting: str) -> str:
    if setting != "auto":
        return setting
    return os.environ.get("WANDB_MODE") or ("online" if has_key() else "offline")


def has_key() -> bool:
    """Whether someone has logged in on this machine: WANDB_API_KEY, or `wandb login`, which writes ~/.netrc."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        try:
            if path and netrc.netrc(os.path.expanduser(path)).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):  # none, or not readable
            continue
    return False
