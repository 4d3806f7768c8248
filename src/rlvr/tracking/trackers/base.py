"""The tracker interface: settings and methods in one class.

    @register("tracker", "csv")
    class Csv(Tracker):
        path: Text = setting("metrics.csv", "file of the numbers")

        def log(self, rows: Sequence[Row]) -> None: ...

The instance in the configuration only holds settings. Every run copies it and calls the copy's methods in one thread
(`trackers.fanout`), where a tracker may block, print or raise.
"""

import importlib
import importlib.util
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rlvr.errors import ConfigError, install
from rlvr.settings import Component

Status = Literal["finished", "killed", "failed"]  # completed; stopped on request; ended by an error
Numbers = dict[str, float]
Row = tuple[int, Numbers]  # a step with its metrics, without non-finite ones


@dataclass(frozen=True, kw_only=True)
class Started:
    """The tracker's run: its `id` in a `store`, and how to view it (`where`; empty: not shown).

    `log` starts after `last_step`; steps already made are read from metrics.jsonl. -1, the default, is for a new run:
    every step is sent. For a resumed run it is `run.known.last_step`, the last step for which `log` returned, or less
    if the tracker's store has lost some.
    """

    id: str = ""
    store: str = ""
    where: str = ""
    last_step: int = -1


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts for a tracker at the start.

    `config` has the nested values of config.yaml; `folder` is absolute. `known` is the earlier result of `start` with
    the last step sent, None for a new run. Steps before `first_step` are already made.
    """

    name: str
    experiment: str
    group: str | None
    tags: list[str]
    config: dict[str, Any]
    folder: str
    timeout_s: float
    version: str
    known: Started | None
    first_step: int


class Tracker(Component, ABC):
    """An experiment tracker. An exception in any method ends the reporting, never the run.

    Runtime state goes into private attributes (`_file: Any = None`). Methods are called in this order, all in one
    thread: load, prepare, start; log and completions; files, model, finish.
    """

    group: ClassVar[str] = "tracker"
    only_if: ClassVar[str] = "name in tracker.report_to  # its name in tracker.report_to"
    title: ClassVar[str] = ""
    """Its name in messages; empty: the name of the class."""
    needs_package: ClassVar[str] = ""
    """The required package."""

    @property
    def display_name(self) -> str:
        return self.title or type(self).__name__

    @property
    def keeps_model(self) -> bool:
        """Whether `model` is called when the run is finished."""
        return False

    def check_installed(self) -> None:
        spec = importlib.util.find_spec(self.needs_package) if self.needs_package else None
        if self.needs_package and (spec is None or spec.origin is None):  # no origin: only a folder of that name
            remedy = f"pip install {self.needs_package}" if ":" in self.name else install(self.needs_package)
            raise ConfigError(f"tracker.report_to: {self.name} needs a library that is not installed; {remedy}.")

    def load(self) -> None:
        if self.needs_package:
            importlib.import_module(self.needs_package)

    def prepare(self, run: RunFacts) -> None:
        """Do slow work that needs no server, e.g. create a local database."""

    def start(self, run: RunFacts) -> Started:
        return run.known or Started()

    @abstractmethod
    def log(self, rows: Sequence[Row]) -> None:
        """Metrics of some steps, in order."""

    def completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        """Sampled completions of a step, at least one, all with the same keys."""

    def files(self, paths: Sequence[str]) -> None:
        """Files of the run folder to store with the run."""

    def model(self, folder: str) -> None:
        """The final model."""

    def finish(self, status: Status) -> None:
        """Wait until everything is written, and record how the run ended."""


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"trainer": {"max_steps": 3}}` as `{"trainer.max_steps": 3}`; an empty section stays a value."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        inside = isinstance(value, dict) and value
        flat |= flatten(value, f"{prefix}{key}.") if inside else {f"{prefix}{key}": value}
    return flat


def without_password(text: str) -> str:
    """`http://me:secret@host/x` as `http://host/x`, everywhere in the text."""
    return re.sub(r"://[^/@\s]*@", "://", text)


def sentence(error: BaseException, limit: int = 120) -> str:
    """`MlflowException: API request to http://... failed...: ConnectionRefusedError: ...`: the error and its root
    cause."""
    root = error
    while (inner := root.__cause__ or root.__context__) is not None:
        root = inner
    both = [without_password(f"{type(one).__name__}: {one}") for one in dict.fromkeys((error, root))]
    texts = [" ".join(text.split()).rstrip(". :") for text in both]
    return ": ".join(text if len(text) <= limit else f"{text[:limit]}..." for text in texts)
