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

from rlvr.tracking.trackers.backend import RunFacts, Started

ROOT = Path(__file__).resolve().parents[4]
WORKER = "tests.unit.tracking.trackers.fake:FakeBackend"


class FakeBackend:
    """`FAKE_TRACKER=log:hang` misbehaves at `log`: hang, fail, exit, print, slow or late."""

    def __init__(self) -> None:
        self._where, _, self._how = os.environ.get("FAKE_TRACKER", "").partition(":")
        self._file = Path(os.environ["FAKE_FILE"])
        self._note("load", {"own_session": os.getsid(0) == os.getpid(), "pid": os.getpid()})

    def prepare(self, run: RunFacts) -> None:
        self._note("prepare", run.name)

    def start(self, run: RunFacts) -> Started:
        self._note("start", asdict(run))
        last_step = run.known["last_step"] if run.known else -1
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
        if what == self._where:
            self._misbehave(what)
        self._write(what, value)

    def _write(self, what: str, value: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps([what, value]) + "\n")

    def _misbehave(self, what: str) -> None:
        match self._how:
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
