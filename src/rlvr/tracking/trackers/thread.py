"""A tracker as the run sees it: a bounded queue and a thread that serves it; only `join`, at the end, waits."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

from rlvr.tracking.trackers.base import RunFacts, Started, Status, Tracker, without_password

LOAD_S = 120.0
"""Loading a library and making a store have a limit of their own: long on a busy machine, but they cannot hang."""

MAX_WAITING = 500
"""Steps and tables of completions that may wait for a tracker that is slower than the run."""

MAX_ROWS = 100
"""Steps that are sent at once."""

POLL_S = 0.05


class TrackerThread:
    """Serves one tracker from a daemon thread; gives it up, with one note, when it fails or takes too long.

    Numbers do not wait in the queue: the thread reads them from metrics.jsonl, so none is lost when the queue is full.
    `RUN/trackers/<label>.json` holds what `Started` said and the last step that was sent; `RUN/trackers/<label>.log`
    what the library printed.
    """

    def __init__(
        self, tracker: Tracker, run: RunFacts, folder: Path, note: Callable[[str], None], *, upload_timeout_s: float
    ) -> None:
        self.tracker = tracker.model_copy()  # what it keeps in private attributes belongs to this run
        self._run, self._folder, self._note, self._upload_timeout_s = run, folder, note, upload_timeout_s
        self._metrics, self._state = folder / "metrics.jsonl", folder / "trackers" / f"{tracker.label}.json"
        self._log_path = self._state.with_suffix(".log")
        self._queue: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._call: tuple[str, float] | None = None  # what the tracker does, and until when it may
        self._started, self._model = Started(), None
        self._loaded_at, self._position, self._dropped = 0.0, 0, 0
        self._dead, self._lock = False, threading.Lock()
        self._thread = threading.Thread(target=self._serve, name=f"tracker {tracker.label}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------ called by the run

    def begin(self, first_step: int) -> None:
        """Start the tracker's run, or go on with it."""
        self._queue.put((self._start, replace(self._run, known=self._known(), first_step=first_step)))

    def log(self, step: int) -> None:
        """metrics.jsonl has the numbers of a step."""
        self._offer(self._send_numbers, step)

    def completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        """Sampled completions of a step; not empty, all with the same keys."""
        self._dropped += not self._offer(self._send_completions, step, rows)

    def end(self, status: Status) -> None:
        """The last thing: files, the model, and how the run ended."""
        final = Path(self._run.folder, "final")
        self._model = str(final) if self.tracker.keeps_model and status == "finished" and final.is_dir() else None
        self._queue.put((self._send_files,))
        self._queue.put((self._finish, status))

    def join(self, *, since: float) -> None:
        """Wait until all is sent, for a limited time from `since` (of `time.monotonic`) on."""
        limit = self._limit("finish") + (self._limit("model") if self._model else 0.0)
        while self._thread.is_alive() and not self._dead:
            self._thread.join(POLL_S)
            self._check()
            if self._loaded_at and time.monotonic() > max(since, self._loaded_at) + limit:
                self._give_up(f"it did not take the rest within {limit:g} s")
        if self._dropped and not self._dead:
            self._note(
                f"warning: {self.tracker.shown} is slower than the run: it has all numbers, but no completions of "
                f"{self._dropped} steps; raise tracker.rollouts_every"
            )

    def leave(self) -> None:
        """The run is being killed: what waits is dropped but for how it ended."""
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        self._queue.put((self._finish, "killed"))

    def abandon(self, deadline: float) -> None:
        """Wait no longer than until `deadline` (of `time.monotonic`)."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._dead = True

    def _offer(self, *job: Any) -> bool:
        """Whether there is room in the queue, and somebody to take from it."""
        self._check()
        if self._dead or self._queue.qsize() >= MAX_WAITING:
            return False
        self._queue.put(job)
        return True

    def _check(self) -> None:
        """Give up a tracker whose call takes too long."""
        if (call := self._call) is not None and time.monotonic() > call[1]:
            self._give_up(f"no answer to `{call[0]}` within {self._limit(call[0]):g} s")

    def _give_up(self, reason: str, details: str = "") -> None:
        with self._lock:
            if self._dead:
                return
            self._note(
                f"warning: {self.tracker.shown} is given up ({reason}); the run goes on, metrics.jsonl has all "
                f"numbers, and `rlvr train run_dir={self._folder} resume=true` sends what is missing "
                f"(details: {self._log_path})"
            )
            with suppress(OSError), self._log_path.open("a") as file:
                file.write(f"{details}given up: {reason}\n")
            self._dead = True  # last: the run waits for no dead tracker, and this may be the tracker's own thread

    def _limit(self, what: str) -> float:
        return {"load": LOAD_S, "prepare": LOAD_S, "model": self._upload_timeout_s}.get(what, self._run.timeout_s)

    # ------------------------------------------------------------------------------------------------- the thread

    def _serve(self) -> None:
        try:
            with self._log_path.open("a", buffering=1) as _of_this_thread.log:
                self._ask("load")
                job = None
                while job != self._finish:
                    job, *arguments = self._queue.get()
                    job(*arguments)
        except (Exception, SystemExit) as error:  # of the tracker, of its files, of metrics.jsonl: never the run's
            self._give_up(sentence(error), without_password(traceback.format_exc()))

    def _ask(self, what: str, *arguments: Any) -> Any:
        """Call a method of the tracker; ends the thread if the tracker was given up meanwhile."""
        self._call = what, time.monotonic() + self._limit(what)
        answer = getattr(self.tracker, what)(*arguments)
        self._check()
        self._call = None
        if self._dead:
            raise SystemExit
        return answer

    def _start(self, run: RunFacts) -> None:
        self._ask("prepare", run)
        self._loaded_at = time.monotonic()
        self._remember(self._ask("start", run))
        if self._started.where:
            self._note(f"{self.tracker.shown}: {self._started.where}")

    def _send_numbers(self, step: float) -> None:
        """The lines of metrics.jsonl that the tracker lacks, up to a step."""
        for rows in self._new_rows(step):
            self._ask("log", rows)
            self._remember(replace(self._started, last_step=rows[-1][0]))

    def _new_rows(self, last: float) -> Iterator[list[tuple[int, dict[str, float]]]]:
        with self._metrics.open("rb") as file:
            file.seek(self._position)
            rows = []
            while (text := file.readline()).endswith(b"\n") and (line := json.loads(text))["step"] <= last:
                self._position = file.tell()
                if line["step"] > self._started.last_step:
                    rows.append((line["step"], finite(line)))
                if len(rows) == MAX_ROWS:
                    yield rows
                    rows = []
            if rows:
                yield rows

    def _send_completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        if step > self._started.last_step:
            self._send_numbers(step - 1)  # first: the steps of W&B never go back
            self._ask("completions", step, rows)

    def _send_files(self) -> None:
        if self._metrics.exists():
            self._send_numbers(float("inf"))
        paths = [Path(self._run.folder, name) for name in ("config.yaml", "metrics.jsonl", "report.html")]
        self._ask("files", [str(path) for path in paths if path.is_file()])
        if self._model:
            self._ask("model", self._model)

    def _finish(self, status: Status) -> None:
        if self._loaded_at:
            self._ask("finish", status)

    # ------------------------------------------------------------------------------------------------------ state

    def _known(self) -> Started | None:
        """What `Started` said of the run's earlier part; None if there is none, or the file is damaged."""
        try:
            return Started(**json.loads(self._state.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _remember(self, started: Started) -> None:
        """Not synced to the disk: losing it costs a second run in the tracker, no number."""
        self._started = started
        temporary = self._state.with_name(f".{self._state.name}.tmp")
        with suppress(OSError):
            temporary.write_text(json.dumps(asdict(started)))
            os.replace(temporary, self._state)


def finite(line: Mapping[str, float | None]) -> dict[str, float]:
    """The numbers of a line of metrics.jsonl but `step`; a null, which stands for NaN and infinity, is left out."""
    return {name: value for name, value in line.items() if name != "step" and value is not None}


def sentence(error: BaseException, limit: int = 120) -> str:
    """`MlflowException: API request to http://... failed...: ConnectionRefusedError: ...`: the error and its root."""
    root = error
    while (inner := root.__cause__ or root.__context__) is not None:
        root = inner
    both = [without_password(f"{type(one).__name__}: {one}") for one in dict.fromkeys((error, root))]
    texts = [" ".join(text.split()).rstrip(". :") for text in both]
    return ": ".join(text if len(text) <= limit else f"{text[:limit]}..." for text in texts)


_of_this_thread = threading.local()  # `log`, in the thread of a tracker


class _Stream:
    """stdout or stderr, but a tracker's thread writes to its log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return getattr(_of_this_thread, "log", self._stream).write(text)  # W&B keeps this method, for all threads

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_of_this_thread, "log", self._stream), name)


@contextmanager
def separate_prints() -> Iterator[None]:
    """In the block, what the thread of a tracker prints goes to its log."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and _Stream(stream) for stream in before)  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
