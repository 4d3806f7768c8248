"""A tracker that records its calls, and misbehaves on request."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlvr.records.jsonl import MetricsFile
from rlvr.settings import validated
from rlvr.tracking.settings import TrackerSettings
from rlvr.tracking.trackers.base import RunFacts, Started, Tracker
from rlvr.tracking.trackers.fanout import Trackers

NAME = "tests.unit.tracking.trackers.fake:Fake"
GATE = threading.Event()
"""Releases a fake with `does="log:wait"`."""
INSIDE = threading.Event()
"""A fake that misbehaves has begun to."""


class Fake(Tracker):
    """`does="log:hang"` misbehaves at `log`: hang, wait, fail, exit, print, slow or late."""

    file: str = ""
    does: str = ""
    log_model: bool = True

    @property
    def keeps_model(self) -> bool:
        return self.log_model

    def load(self) -> None:
        self._note("load", None)

    def prepare(self, run: RunFacts) -> None:
        self._note("prepare", run.name)

    def start(self, run: RunFacts) -> Started:
        self._note("start", asdict(run))
        last_step = run.known.last_step if run.known else -1
        if self.does == "start:nothing":
            return None  # type: ignore[return-value]
        return Started(id="fake", store="memory", where="look here", last_step=last_step)

    def log(self, rows: Sequence[Any]) -> None:
        for row in rows:
            self._note("log", row)

    def completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        self._note("completions", [step, rows])

    def files(self, paths: Sequence[str]) -> None:
        self._note("files", paths)

    def model(self, folder: str) -> None:
        self._note("model", folder)

    def finish(self, status: str) -> None:
        self._note("finish", status)

    def _note(self, what: str, value: Any) -> None:
        where, _, how = self.does.partition(":")
        if what == where:
            self._misbehave(how)
        with Path(self.file).open("a") as file:
            file.write(json.dumps([what, value]) + "\n")

    def _misbehave(self, how: str) -> None:
        INSIDE.set()
        match how:
            case "hang" | "slow" | "late":
                time.sleep({"hang": 600, "slow": 0.01, "late": 0.2}[how])
            case "wait":
                GATE.wait(300)
            case "exit":
                sys.exit(3)
            case "print":
                print("a line on stdout")
                print("and another", file=sys.stderr)
            case "fail":
                try:
                    raise ConnectionRefusedError("nobody is there")
                except OSError:
                    raise RuntimeError("the request failed") from None


CONFIG = {"seed": 5, "run_dir": None}


class Run:
    """A run in `folder` that reports to the fake, unless the settings say otherwise."""

    def __init__(self, folder: Path, does: str = "", **settings: Any) -> None:
        self.folder, self.notes, self.calls_file = folder, list[str](), folder / "calls.jsonl"
        self.metrics = MetricsFile(folder / "metrics.jsonl")
        fake = {"report_to": [NAME], "timeout_s": 20.0, "fake": {"file": str(self.calls_file), "does": does}}
        values = validated(TrackerSettings, settings if "report_to" in settings else fake | settings)
        self.trackers = Trackers(values, folder, self.notes.append, experiment="rpn")

    def steps(self, *steps: int, values: Callable[[int], Mapping[str, float]] = lambda step: {"x/y": step / 7}) -> None:
        """Make some steps."""
        for step in steps:
            self.metrics.append(step, values(step))
            self.trackers.log(step)

    def all(self, *steps: int, first_step: int = 0, before_end: Callable[[], None] = lambda: None) -> None:
        """The whole run."""
        with self.trackers as trackers:
            trackers.begin(first_step, CONFIG)
            self.steps(*steps)
            before_end()
            trackers.end("finished")

    def calls(self, kind: str | None = None) -> list[Any]:
        """Calls of the fake as `[kind, value]`, or the values of one kind."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        found = [json.loads(line) for line in lines]
        return found if kind is None else [value for what, value in found if what == kind]

    def warning(self) -> str:
        """The only one."""
        (warning,) = [note for note in self.notes if note.startswith("warning: ")]
        return warning
