"""All trackers of a run: each has a queue and a thread that serves it, and the run waits for none but at its end.

Numbers do not wait in the queue: the thread reads them from metrics.jsonl, so none is lost when the queue is full.
`RUN/trackers/<label>.json` holds what `Started` said and the last step that was sent; `RUN/trackers/<label>.log` what
the library printed.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from rlvr import __version__
from rlvr.tracking.files import writing
from rlvr.tracking.rollouts import EpisodeRecord
from rlvr.tracking.settings import TrackerSettings
from rlvr.tracking.trackers.base import Row, RunFacts, Started, Status, Tracker, without_password

LOAD_S = 120.0
"""Loading a library and making a store have a limit of their own: long on a busy machine, but they cannot hang."""

LEAVE_S = 2.0
"""How long a run that is being killed waits for its trackers to note it."""

POLL_S = 0.05

MAX_WAITING = 500
"""Steps and tables of completions that may wait for a tracker that is slower than the run."""

MAX_ROWS = 100
"""Steps that are sent at once."""

MAX_TEXT = 10_000
"""Characters of a prompt or completion that trackers get; the rollout files have all."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What trackers are told about a run beside its numbers: the experiment's name, and the values of config.yaml."""

    experiment: str
    config: dict[str, Any]


class Trackers:
    """`with Trackers(...) as trackers: trackers.begin(0); trackers.log(...); trackers.end("finished")`

    With an empty `report_to` nothing is started and nothing is done. A block that is left by an error marks the
    trackers' runs as failed, by Ctrl-C or SIGTERM as killed. `note` is called with one sentence, only by the run's
    thread.
    """

    def __init__(self, settings: TrackerSettings, about: Reported, folder: Path, note: Callable[[str], None]) -> None:
        self._settings, self._folder, self._note = settings, folder, note
        self._facts = RunFacts(
            name=settings.run_name or folder.resolve().name,
            experiment=about.experiment,
            group=settings.group,
            tags=list(settings.tags),
            config=about.config,
            folder=str(folder.absolute()),
            timeout_s=settings.timeout_s,
            version=__version__,
            known=None,
            first_step=0,
        )
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._all: list[TrackerThread] = []
        self._begun = self._ended = False
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self._settings.report_to:
            with writing(self._folder / "trackers"):
                (self._folder / "trackers").mkdir(exist_ok=True)
            for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
                if stream:  # pythonw has none
                    self._open.enter_context(redirect(_Stream(stream)))
        limits = {"load": LOAD_S, "prepare": LOAD_S, "model": self._settings.upload_timeout_s}
        self._all = [
            TrackerThread(tracker, self._facts, self._folder, self._notes.put, limits)
            for tracker in self._settings.reported
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._open:
            if self._ended:
                return
            if self._begun and (error is None or isinstance(error, Exception)):
                self.end("killed" if error is None else "failed")
                return
            for tracker in self._all:  # before the first number, or SystemExit, KeyboardInterrupt: at once
                tracker.leave()
            deadline = time.monotonic() + (LEAVE_S if self._begun else 0.0)
            for tracker in self._all:
                tracker.abandon(deadline)

    def begin(self, first_step: int) -> None:
        """Start the trackers' runs, or go on with them; metrics.jsonl has the lines before `first_step`."""
        for tracker in self._all:
            tracker.begin(first_step)
        self._begun = True

    def log(self, step: int) -> None:
        """The numbers of a step are in metrics.jsonl."""
        for tracker in self._all:
            tracker.log(step)
        self._say()

    def completions(self, step: int, records: Sequence[EpisodeRecord]) -> None:
        """What was sampled at a step, as it stands in the rollout file."""
        limit = self._settings.max_completions
        if self._all and limit and records:
            rows = completion_rows(step, records[:limit])
            for tracker in self._all:
                tracker.completions(step, rows)

    def end(self, status: Status) -> None:
        """Hand over the files and the model, and wait, for a limited time, until all is there."""
        self._ended = True
        for tracker in self._all:
            tracker.end(status)
        since = time.monotonic()
        for tracker in self._all:
            self._say()
            tracker.join(since)
        self._say()

    def _say(self) -> None:
        while not self._notes.empty():
            self._note(self._notes.get())


class TrackerThread:
    """Serves one tracker from a daemon thread; gives it up, with one note, when it fails or takes too long.

    `limits` are the seconds that a call of some methods may take; the others have `run.timeout_s`.
    """

    def __init__(
        self, tracker: Tracker, run: RunFacts, folder: Path, note: Callable[[str], None], limits: dict[str, float]
    ) -> None:
        self.tracker = tracker.model_copy()  # what it keeps in private attributes belongs to this run
        self._run, self._folder, self._note, self._limits = run, folder, note, limits
        self._state = folder / "trackers" / f"{tracker.label}.json"
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
        known = None
        with suppress(OSError, ValueError, TypeError):  # there is none, or it is damaged
            known = Started(**json.loads(self._state.read_text()))
        self._queue.put((self._start, replace(self._run, known=known, first_step=first_step)))

    def log(self, step: int) -> None:
        self._offer(self._send_numbers, step)

    def completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        self._dropped += not self._offer(self._send_completions, step, rows)

    def end(self, status: Status) -> None:
        final = Path(self._run.folder, "final")
        self._model = str(final) if self.tracker.keeps_model and status == "finished" and final.is_dir() else None
        self._queue.put((self._send_files,))
        self._queue.put((self._finish, status))

    def join(self, since: float) -> None:
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
        """Whether there is room in the queue, and a thread to take from it."""
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
        return self._limits.get(what, self._run.timeout_s)

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
        started = self._ask("start", run)
        if not isinstance(started, Started):
            raise TypeError(f"its method start must return Started(...), not {type(started).__name__}")
        self._remember(started)
        if self._started.where:
            self._note(f"{self.tracker.shown}: {self._started.where}")

    def _send_numbers(self, step: float) -> None:
        """The lines of metrics.jsonl that the tracker lacks, up to a step."""
        rows = list(self._new_rows(step))
        for first in range(0, len(rows), MAX_ROWS):
            self._ask("log", part := rows[first : first + MAX_ROWS])
            self._remember(replace(self._started, last_step=part[-1][0]))

    def _new_rows(self, last: float) -> Iterator[Row]:
        """Without nulls, which stand for NaN and infinity."""
        with Path(self._folder, "metrics.jsonl").open("rb") as file:
            file.seek(self._position)
            while (text := file.readline()).endswith(b"\n") and (line := json.loads(text))["step"] <= last:
                self._position = file.tell()
                if (step := line.pop("step")) > self._started.last_step:
                    yield step, {name: value for name, value in line.items() if value is not None}

    def _send_completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        if step > self._started.last_step:
            self._send_numbers(step - 1)  # first: the steps of W&B never go back
            self._ask("completions", step, rows)

    def _send_files(self) -> None:
        paths = [Path(self._run.folder, name) for name in ("metrics.jsonl", "config.yaml", "report.html")]
        if paths[0].exists():
            self._send_numbers(float("inf"))
        self._ask("files", [str(path) for path in paths if path.is_file()])
        if self._model:
            self._ask("model", self._model)

    def _finish(self, status: Status) -> None:
        if self._loaded_at:
            self._ask("finish", status)

    def _remember(self, started: Started) -> None:
        """Not synced to the disk: losing it costs a second run in the tracker, no number."""
        self._started = started
        temporary = self._state.with_name(f".{self._state.name}.tmp")
        with suppress(OSError):
            temporary.write_text(json.dumps(asdict(started)))
            os.replace(temporary, self._state)


def completion_rows(step: int, records: Sequence[EpisodeRecord]) -> list[dict[str, Any]]:
    """A table of episodes: the first prompt, everything that the model and its tools wrote after it, and the reward."""
    parts = sorted({name for record in records for name in record.reward_parts})
    return [
        {
            "step": step,
            "example_id": record.example_id,
            "group": record.group,
            "sample_index": record.sample_index,
            "prompt": _short(record.turns[0].prompt),
            "completion": _short("".join(turn.completion + (turn.reply or "") for turn in record.turns)),
            "answer": _short(record.answer),
            "reward": record.reward,
            "advantage": record.advantage,
            "stop_reason": record.stop_reason,
        }
        | {f"part_{name}": record.reward_parts.get(name) for name in parts}
        for record in records
    ]


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} [... {len(text) - MAX_TEXT} more characters]"


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
    """stdout or stderr, but what the thread of a tracker prints goes to its log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return getattr(_of_this_thread, "log", self._stream).write(text)  # W&B keeps this method, for all threads

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_of_this_thread, "log", self._stream), name)
