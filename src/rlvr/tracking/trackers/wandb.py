"""Weights & Biases: configuration, history, tables of completions, artifacts; offline without an account."""

import os
import sys
from collections.abc import Sequence
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from rlvr.registry import register
from rlvr.settings import Text, setting
from rlvr.tracking.trackers.base import Row, RunFacts, Started, Status, Tracker

PROJECT = "rlvr"
EXIT_CODES = {"finished": 0, "killed": 130, "failed": 1}


@register("tracker", "wandb")
class Wandb(Tracker):
    """Weights & Biases, with or without an account."""

    title: ClassVar[str] = "Weights & Biases"
    needs_package: ClassVar[str] = "wandb"
    project: Text = setting(PROJECT, "project of the run; WANDB_PROJECT replaces this default")
    entity: Text | None = setting(None, "user or team; null: WANDB_ENTITY, else the account's default")
    mode: Literal["auto", "online", "offline"] = setting(
        "auto",
        "offline: files in RUN/wandb, for `wandb sync`; auto: WANDB_MODE, else online with an API key (wandb "
        "login, WANDB_API_KEY)",
    )
    log_model: bool = setting(False, "also log the final model, as an artifact of type `model`")
    _run: Any = None
    _variables: Any = ()  # of the environment

    @property
    def keeps_model(self) -> bool:
        return self.log_model

    def load(self) -> None:
        """Disable error reports to W&B; a killed run loses the last second."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB__TRANSACTION_LOG_FLUSH_INTERVAL", "1")
        super().load()

    def start(self, run: RunFacts) -> Started:
        """Start a run, or resume the known one by its id."""
        import wandb

        mode: Any = self.mode
        if mode == "auto":  # W&B validates WANDB_MODE itself
            mode = os.environ.get("WANDB_MODE") or ("online" if has_key() else "offline")
        project = self.project if self.project != PROJECT else os.environ.get("WANDB_PROJECT") or PROJECT
        entity = self.entity or os.environ.get("WANDB_ENTITY") or None
        store = f"{mode}:{entity or ''}/{project}"
        known = run.known if run.known and run.known.store == store else None
        self._variables = {"WANDB_DATA_DIR", "WANDB_CACHE_DIR"} - os.environ.keys()
        for name in self._variables:  # files for `wandb sync` belong to the run
            os.environ[name] = str(Path(run.folder) / "wandb")
        hooks = sys.exit, sys.excepthook
        try:
            self._run = wandb.init(
                project=project,
                entity=entity,
                name=run.name,
                group=run.group,
                tags=run.tags or None,
                id=run.known.id if run.known else None,
                resume="allow" if mode == "online" else None,
                dir=run.folder,
                mode=mode,
                config=run.config,
                allow_val_change=True,
                reinit="create_new",  # the user may have another run in this process
                settings=wandb.Settings(init_timeout=run.timeout_s, console="off"),
            )
        finally:  # W&B's hook would report the exit status; `finish` does
            sys.exit, sys.excepthook = hooks
        where = self._run.url if mode == "online" else f"offline; wandb sync {Path(self._run.dir).parent}"
        return Started(id=self._run.id, store=store, where=str(where), last_step=known.last_step if known else -1)

    def log(self, rows: Sequence[Row]) -> None:
        for step, values in rows:
            self._run.log(values, step=step)

    def completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        """A table; the run's page has a slider over the steps."""
        import wandb

        table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self._run.log({"completions": table}, step=step)

    def files(self, paths: Sequence[str]) -> None:
        """As an artifact: W&B's own files of the run already include a config.yaml."""
        self._artifact("run", paths)

    def model(self, folder: str) -> None:
        self._artifact("model", [folder])

    def finish(self, status: Status) -> None:
        """W&B's statuses are finished and failed; the summary also records `killed`."""
        import wandb

        self._run.summary["status"] = status
        self._run.finish(exit_code=EXIT_CODES[status])
        if wandb.run is None:  # the user has no run
            wandb.teardown()  # its service writes the end of an offline run only now
        for name in self._variables:
            os.environ.pop(name, None)

    def _artifact(self, kind: str, paths: Sequence[str]) -> None:
        import wandb

        artifact = wandb.Artifact(f"{kind}-{self._run.id}", type=kind)
        for path in paths:
            artifact.add_dir(path) if Path(path).is_dir() else artifact.add_file(path)
        self._run.log_artifact(artifact)


def has_key() -> bool:
    """Whether this machine has W&B credentials: WANDB_API_KEY, or ~/.netrc from `wandb login`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, NetrcParseError):
        return False
