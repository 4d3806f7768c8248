"""All trackers of a run: each has its own thread, and is dropped with one note if it fails or hangs.

The run only waits for them at its end. Metrics do not pass through a tracker's queue: its thread reads them from
metrics.jsonl, so a full queue loses none. `RUN/trackers/<label>.json` holds the result of `start` and the last step
sent; `RUN/trackers/<label>.log` the library's output.
"""

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Self, TextIO

from rlvr import __version__
from rlvr.lines import resuming
from rlvr.records.files import writing
from rlvr.records.rollouts import EpisodeRecord, completion_rows
from rlvr.tracking.settings import TrackerSettings
from rlvr.tracking.trackers.base import Row, RunFacts, Started, Status, Tracker, sentence, without_password

LEAVE_S = 2.0  # seconds that a stopping run waits for its trackers
LOAD_S = 120.0  # seconds for `load` and `prepare`, which may be slow on a busy machine
POLL_S = 0.05
MAX_WAITING = 500  # queue length of a tracker that is slower than the run
MAX_ROWS = 100  # steps per call

of_this_thread = threading.local()  # `log`: file of the tracker thread's output


class Trackers:
    """`with Trackers(...) as trackers: trackers.begin(0, config); trackers.log(...); trackers.end("finished")`

    With an empty `report_to` nothing happens. An error in the block marks the trackers' runs as failed, Ctrl-C or
    SIGTERM as killed. `note` is called with one sentence, only by the run's thread.
    """

    def __init__(
        self, settings: TrackerSettings, folder: Path, note: Callable[[str], None], *, experiment: str
    ) -> None:
        self._settings, self._folder = settings, folder
        run = RunFacts(
            name=settings.run_name or folder.resolve().name,
            experiment=experiment,
            group=settings.group,
            tags=list(settings.tags),
            config={},
            folder=str(folder.absolute()),
            timeout_s=settings.timeout_s,
            version=__version__,
            known=None,
            first_step=0,
        )
        limits = {"load": LOAD_S, "prepare": LOAD_S, "model": settings.upload_timeout_s}
        self._all = [TrackerThread(tracker, run, limits, note) for tracker in settings.reported]
        self._begun = self._ended = False
        self._redirected = ExitStack()

    def __enter__(self) -> Self:
        if self._all:
            with writing(self._folder / "trackers"):
                (self._folder / "trackers").mkdir(exist_ok=True)
            for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
                if stream:  # None under pythonw
                    self._redirected.enter_context(redirect(_Stream(stream)))
        for tracker in self._all:
            tracker.thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._redirected:
            if self._ended:
                return
            if self._begun and (error is None or isinstance(error, Exception)):
                self.end("killed" if error is None else "failed")
                return
            for tracker in self._all:  # before the first metrics, or on SystemExit or KeyboardInterrupt: at once
                with tracker.jobs.mutex:
                    tracker.jobs.queue.clear()
                tracker.jobs.put((tracker.finish, "killed"))
            deadline = monotonic() + (LEAVE_S if self._begun else 0.0)
            for tracker in self._all:
                tracker.thread.join(max(0.0, deadline - monotonic()))
                tracker.is_disabled = True

    def begin(self, first_step: int, config: Any) -> None:
        """Start or resume the trackers' runs; metrics.jsonl has the lines before `first_step`, config.yaml `config`."""
        for tracker in self._all:
            tracker.jobs.put((tracker.begin, first_step, config))
        self._begun = True

    def log(self, step: int) -> None:
        """The metrics of a step are in metrics.jsonl."""
        for tracker in self._all:
            tracker.offer(tracker.send_numbers, step)

    def completions(self, step: int, records: Sequence[EpisodeRecord]) -> None:
        rows = completion_rows(step, records[: self._settings.max_completions]) if self._all else []
        for tracker in self._all if rows else ():
            tracker.num_dropped += not tracker.offer(tracker.send_completions, step, rows)

    def end(self, status: Status) -> None:
        """Send files and model, and wait, for a limited time, until everything is written."""
        self._ended, since = True, monotonic()
        for tracker in self._all:
            tracker.jobs.put((tracker.send_files, status))
            tracker.jobs.put((tracker.finish, status))
        for tracker in self._all:
            tracker.wait(since, status)


class TrackerThread:
    """Runs a tracker's jobs: tuples of a method of this object and its arguments; the last one is `finish`.

    The run's thread calls `offer` and `wait`; it never waits for a tracker call, and reports a dropped tracker.
    """

    def __init__(
        self, tracker: Tracker, run: RunFacts, limits: Mapping[str, float], note: Callable[[str], None]
    ) -> None:
        self._tracker = tracker.model_copy()  # its private attributes belong to this run
        self._run, self._limits, self._note = run, limits, note
        self._state = Path(run.folder, "trackers", f"{tracker.label}.json")
        self._log_path = self._state.with_suffix(".log")
        self.jobs: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self.is_disabled, self.num_dropped = False, 0
        self._call: tuple[str, float] = ("", inf)  # current call and its deadline
        self._failure: str | None = None  # why the thread ended
        self._started, self._is_shown = Started(), False
        self._loaded_at, self._position = 0.0, 0
        self.thread = threading.Thread(target=self._serve, name=f"tracker {tracker.label}", daemon=True)

    def offer(self, *job: Any) -> bool:
        """Queue a job if possible; returns whether it was queued."""
        self._check()
        if self.is_disabled or self.jobs.qsize() >= MAX_WAITING:
            return False
        self.jobs.put(job)
        return True

    def wait(self, since: float, status: Status) -> None:
        """Wait until all jobs are done, for a limited time from `since` (`time.monotonic`) or the end of loading."""
        limit = self._limit("finish") + (self._limit("model") if self._model(status) else 0.0)
        while self.thread.is_alive() and not self.is_disabled:
            self.thread.join(POLL_S)
            self._check()
            if self._loaded_at and monotonic() > max(since, self._loaded_at) + limit:
                self._disable(f"it did not take the rest within {limit:g} s")
        self._check()
        if self.num_dropped and not self.is_disabled:
            self._note(
                f"warning: {self._tracker.display_name} is slower than the run: it has all numbers, but no completions "
                f"of {self.num_dropped} steps; raise tracker.rollouts_every"
            )

    def _check(self) -> None:
        if self._started.where and not self._is_shown:
            self._is_shown = True
            self._note(f"{self._tracker.display_name}: {self._started.where}")
        if reason := self._failure or self._overdue():
            self._disable(reason)

    def _overdue(self) -> str | None:
        what, deadline = self._call
        return f"no answer to `{what}` within {self._limit(what):g} s" if monotonic() > deadline else None

    def _disable(self, reason: str) -> None:
        if self.is_disabled:
            return
        self.is_disabled = True
        self._write(f"disabled: {reason}\n")
        self._note(
            f"warning: {self._tracker.display_name} is disabled ({reason}); the run goes on, metrics.jsonl has all "
            f"numbers, and `rlvr train {resuming(Path(self._run.folder))}` sends what is missing (details: "
            f"{self._log_path})"
        )

    def _limit(self, what: str) -> float:
        return self._limits.get(what, self._run.timeout_s)

    def _model(self, status: Status) -> Path | None:
        folder = Path(self._run.folder, "final")
        return folder if self._tracker.keeps_model and status == "finished" and folder.is_dir() else None

    def _write(self, text: str) -> None:
        with suppress(OSError), self._log_path.open("a") as file:
            file.write(text)

    def _serve(self) -> None:
        try:
            with self._log_path.open("a", buffering=1) as of_this_thread.log:
                self._ask("load")
                job = None
                while job != self.finish:
                    job, *arguments = self.jobs.get()
                    job(*arguments)
        except (Exception, SystemExit) as error:  # errors of tracker or files must not end the run
            self._write(without_password(traceback.format_exc()))  # log here: the run may be killed before it reports
            self._failure = self._overdue() or sentence(error)

    def _ask(self, what: str, *arguments: Any) -> Any:
        """Call a method of the tracker; ends the thread if it took too long."""
        self._call = what, monotonic() + self._limit(what)
        answer = getattr(self._tracker, what)(*arguments)
        if self.is_disabled or self._overdue():
            raise SystemExit
        self._call = "", inf
        return answer

    def begin(self, first_step: int, config: Any) -> None:
        run = replace(self._run, first_step=first_step, config=config)
        with suppress(OSError, ValueError, TypeError):  # missing or damaged
            run = replace(run, known=Started(**json.loads(self._state.read_text())))
        self._ask("prepare", run)
        self._loaded_at = monotonic()
        self._remember(self._ask("start", run))

    def send_numbers(self, last_step: float) -> None:
        """Send the missing lines of metrics.jsonl up to a step, without nulls (NaN, infinity)."""
        rows: list[Row] = []
        with Path(self._run.folder, "metrics.jsonl").open("rb") as file:
            file.seek(self._position)
            while (text := file.readline()).endswith(b"\n") and (line := json.loads(text))["step"] <= last_step:
                self._position = file.tell()
                if (step := line.pop("step")) > self._started.last_step:
                    rows.append((step, {name: value for name, value in line.items() if value is not None}))
        for first in range(0, len(rows), MAX_ROWS):
            self._ask("log", part := rows[first : first + MAX_ROWS])
            self._remember(replace(self._started, last_step=part[-1][0]))

    def send_completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        """Send earlier metrics first, then completions: W&B's steps must increase."""
        if step > self._started.last_step:
            self.send_numbers(step - 1)
            self._ask("completions", step, rows)

    def send_files(self, status: Status) -> None:
        paths = [Path(self._run.folder, name) for name in ("metrics.jsonl", "config.yaml", "report.html")]
        if paths[0].exists():
            self.send_numbers(inf)
        self._ask("files", [str(path) for path in paths if path.is_file()])
        if model := self._model(status):
            self._ask("model", str(model))

    def finish(self, status: Status) -> None:
        if self._loaded_at:  # otherwise it never started
            self._ask("finish", status)

    def _remember(self, started: Started) -> None:
        """Save the state without sync: losing it costs a second run in the tracker, but no metrics."""
        state = json.dumps(asdict(started))  # fails here, in its thread, if `start` returned nothing
        self._started = started
        temporary = self._state.with_name(f".{self._state.name}.tmp")
        with suppress(OSError):
            temporary.write_text(state)
            os.replace(temporary, self._state)


class _Stream:
    """stdout or stderr, with the output of tracker threads redirected to their logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return getattr(of_this_thread, "log", self._stream).write(text)  # W&B keeps this method for all threads

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(of_this_thread, "log", self._stream), name)
