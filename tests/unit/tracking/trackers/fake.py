"""A tracker that writes down what it is asked to do, and misbehaves on request; it runs in a worker process."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rlvr.tracking.trackers.base import RunFacts, Started, Tracker

ROOT = Path(__file__).resolve().parents[4]
NAME = "tests.unit.tracking.trackers.fake:Fake"


class Fake(Tracker):
    """`FAKE_TRACKER=log:hang` misbehaves at `log`: hang, fail, exit, print, slow or late."""

    extra: str = "none"
    log_model: bool = True

    @property
    def keeps_model(self) -> bool:
        return self.log_model

    def load(self) -> None:
        own_session = os.getsid(0) == os.getpid()
        self._note("load", {"own_session": own_session, "pid": os.getpid(), "extra": self.extra})

    def prepare(self, run: RunFacts) -> None:
        self._note("prepare", run.name)

    def start(self, run: RunFacts) -> Started:
        self._note("start", asdict(run))
        last_step = run.known.last_step if run.known else -1
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
        where, _, how = os.environ.get("FAKE_TRACKER", "").partition(":")
        if what == where:
            self._misbehave(what, how)
        self._write(what, value)

    def _write(self, what: str, value: Any) -> None:
        with Path(os.environ["FAKE_FILE"]).open("a") as file:
            file.write(json.dumps([what, value]) + "\n")

    def _misbehave(self, what: str, how: str) -> None:
        match how:
            case "hang":
                time.sleep(600)
            case "slow":
                time.sleep(0.01)
            case "late":
                self._write("late", what)
                time.sleep(1.0)
            case "exit":
                os._exit(3)
            case "print":
                print('{"error": "a line that looks like an answer"}', flush=True)
                print("and another", file=sys.stderr, flush=True)
            case "fail":
                try:
                    raise ConnectionRefusedError("nobody is there")
                except OSError:
                    raise RuntimeError("the request failed") from None


def prepare(monkeypatch: pytest.MonkeyPatch, file: Path, misbehavior: str = "") -> None:
    """The environment in which a worker finds and configures the fake."""
    found = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *([found] if found else [])]))
    monkeypatch.setenv("FAKE_FILE", str(file))
    monkeypatch.setenv("FAKE_TRACKER", misbehavior)


def calls(file: Path, kind: str | None = None) -> list[Any]:
    """What the fake was asked: `[kind, value]`, or the values of one kind."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return lines if kind is None else [value for what, value in lines if what == kind]
