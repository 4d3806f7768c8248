"""A tracker as the run sees it: only `join`, at the end, waits."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rlvr.tracking.jsonl import read_metrics
from rlvr.tracking.trackers.base import Row, RunFacts, Started, Status, Tracker
from rlvr.tracking.trackers.pipe import TrackerProcess

LOAD_S = 120.0
"""Loading a library and making a store have a limit of their own: long on a busy machine, but they cannot hang."""

MAX_BACKLOG = 64 * 1024 * 1024
"""Bytes that may wait for a tracker that is slower than the run."""

MAX_ROWS = 100
"""Steps that are sent at once."""


class RemoteTracker:
    """Sends what it is given from a thread of its own; gives up, with one note, when the tracker fails.

    `RUN/trackers/<label>.json` holds what `Started` said and the last step that was sent; `RUN/trackers/<label>.log`
    what the library printed.
    """

    def __init__(
        self,
        tracker: Tracker,
        *,
        folder: Path,
        note: Callable[[str], None],
        timeout_s: float,
        upload_timeout_s: float,
    ) -> None:
        self.name, self.keeps_model = tracker.label, tracker.keeps_model
        self._tracker, self._folder, self._note = tracker, folder, note
        self._timeout_s, self._upload_timeout_s = timeout_s, upload_timeout_s
        self._condition = threading.Condition()
        self._waiting: deque[tuple[dict[str, Any], int]] = deque()
        self._backlog, self._dead = 0, False
        self._last_step = -1
        self._process: TrackerProcess | None = None
        self._loaded = threading.Event()
        self._started_at = self._loaded_at = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name=f"tracker {self.name}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------ called by the run

    def begin(self, run: RunFacts, history: Path) -> None:
        """Name the run; lines of `history` before `run.first_step` are sent if the tracker does not have them yet."""
        run = replace(run, known=self._known())
        self._put({"kind": "start", "run": run.to_json(), "history": str(history)})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers of a step."""
        self._put({"kind": "log", "rows": [[step, dict(values)]]})

    def completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        """Sampled completions of a step; not empty, all with the same keys."""
        self._put({"kind": "completions", "step": step, "rows": list(rows)})

    def end(self, status: Status, files: Sequence[Path], model: Path | None) -> None:
        """The last thing: files, the model, and how the run ended."""
        self._put({"kind": "files", "paths": [str(path.absolute()) for path in files]})
        if model is not None:
            self._put({"kind": "model", "folder": str(model.absolute())})
        self._put({"kind": "finish", "status": status})

    def join(self, *, since: float, with_model: bool) -> None:
        """Wait until all is sent, for a limited time from `since` (of `time.monotonic`) on."""
        self._loaded.wait(max(0.0, self._started_at + LOAD_S - time.monotonic()))
        limit = self._timeout_s + (self._upload_timeout_s if with_model else 0.0)
        self._thread.join(max(0.0, max(since, self._loaded_at) + limit - time.monotonic()))
        if self._thread.is_alive():
            self._give_up(f"it did not take the rest within {limit:g} s")
            self._thread.join(1.0)

    def leave(self) -> None:
        """Do not wait: the run is being killed. The process ends by itself and marks its run as killed."""
        if self._process is not None:
            self._process.terminate()  # first: once the thread ends, the process ends, as if the run had failed
        with self._condition:
            self._dead = True
            self._condition.notify()

    # ------------------------------------------------------------------------------------------------- the thread

    def _put(self, message: dict[str, Any]) -> None:
        size = len(json.dumps(message))
        with self._condition:
            if self._dead:
                return
            self._waiting.append((message, size))
            self._backlog += size
            too_much = self._backlog > MAX_BACKLOG
            self._condition.notify()
        if too_much:
            self._give_up("it is slower than the run")

    def _take(self) -> dict[str, Any] | None:
        """The next message, numbers of several steps together; None when there is no more to do."""
        with self._condition:
            while not self._waiting and not self._dead:
                self._condition.wait()
            if self._dead:
                return None
            message = self._pop()
            while message["kind"] == "log" and self._waiting and self._waiting[0][0]["kind"] == "log":
                if len(message["rows"]) >= MAX_ROWS:
                    break
                message = {"kind": "log", "rows": message["rows"] + self._pop()["rows"]}
            return message

    def _pop(self) -> dict[str, Any]:
        message, size = self._waiting.popleft()
        self._backlog -= size
        return message

    def _serve(self) -> None:
        try:
            self._process = TrackerProcess(self._tracker, self._folder / f"{self.name}.log")
            self._process.ask(None, LOAD_S)
            while (message := self._take()) is not None:
                self._send(self._process, message)
                if message["kind"] == "finish":
                    return
        except Exception as error:  # of the tracker, of its files, of metrics.jsonl: never the run's
            self._give_up(str(error))
        finally:
            self._loaded.set()
            if self._process is not None:
                self._process.end(self._timeout_s)

    def _send(self, process: TrackerProcess, message: dict[str, Any]) -> None:
        if message["kind"] == "start":
            self._start(process, message)
        elif message["kind"] == "log":
            self._log(process, [(step, values) for step, values in message["rows"]])
        elif message["kind"] == "completions" and message["step"] <= self._last_step:
            return
        else:
            process.ask(message, self._upload_timeout_s if message["kind"] == "model" else self._timeout_s)

    def _start(self, process: TrackerProcess, message: dict[str, Any]) -> None:
        process.ask({"kind": "prepare", "run": message["run"]}, LOAD_S)
        self._loaded_at = time.monotonic()
        self._loaded.set()
        started = Started(**process.ask({"kind": "start", "run": message["run"]}, self._timeout_s))
        self._started, self._last_step = started, started.last_step
        self._remember()
        if started.where:
            self._note(f"{self._tracker.shown}: {started.where}")
        for rows in _earlier(Path(message["history"]), message["run"]["first_step"]):
            self._log(process, rows)

    def _log(self, process: TrackerProcess, rows: list[Row]) -> None:
        new = [row for row in rows if row[0] > self._last_step]
        if new:
            process.ask({"kind": "log", "rows": new}, self._timeout_s)
            self._last_step = new[-1][0]
            self._remember()

    def _give_up(self, reason: str) -> None:
        with self._condition:
            if self._dead:
                return
            self._dead = True
            self._waiting.clear()
            self._condition.notify()
        shown, log, run = self._tracker.shown, self._folder / f"{self.name}.log", self._folder.parent
        self._note(
            f"warning: {shown} is given up ({reason}); the run goes on, metrics.jsonl has all numbers, and "
            f"`rlvr train run_dir={run} resume=true` sends what is missing (details: {log})"
        )
        with suppress(OSError), log.open("a") as file:
            file.write(f"given up: {reason}\n")
        if self._process is not None:
            self._process.kill()

    # ------------------------------------------------------------------------------------------------------ state

    @property
    def _state(self) -> Path:
        return self._folder / f"{self.name}.json"

    def _known(self) -> Started | None:
        """What `Started` said of the run's earlier part; None if there is none, or the file is damaged."""
        try:
            return Started(**json.loads(self._state.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _remember(self) -> None:
        """Not synced to the disk: losing it costs a second run in the tracker, no number."""
        temporary = self._state.with_name(f".{self._state.name}.tmp")
        text = json.dumps(asdict(replace(self._started, last_step=self._last_step)))
        with suppress(OSError):
            temporary.write_text(text)
            os.replace(temporary, self._state)


def _earlier(history: Path, first_step: int) -> Iterator[list[Row]]:
    """The lines of metrics.jsonl before a step, some at a time."""
    lines = [line for line in read_metrics(history) if line["step"] < first_step] if history.exists() else []
    rows = [(int(line["step"]), finite(line)) for line in lines]
    yield from (rows[start : start + MAX_ROWS] for start in range(0, len(rows), MAX_ROWS))


def finite(line: Mapping[str, float | None]) -> dict[str, float]:
    """The numbers of a line of metrics.jsonl but `step`; a null, which stands for NaN and infinity, is left out."""
    return {name: value for name, value in line.items() if name != "step" and value is not None and value == value}
