"""All trackers of a run: each has a thread of its own, and the run waits for none but at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Self, TextIO

from rlvr import __version__
from rlvr.tracking.files import writing
from rlvr.tracking.rollouts import EpisodeRecord, completion_rows
from rlvr.tracking.settings import TrackerSettings
from rlvr.tracking.trackers.base import RunFacts, Status
from rlvr.tracking.trackers.thread import TrackerThread, of_this_thread

LEAVE_S = 2.0
"""Seconds that a run that is being killed waits for its trackers."""


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
        self._settings, self._folder = settings, folder
        run = RunFacts(
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
        upload_s = settings.upload_timeout_s
        self._all = [TrackerThread(tracker, run, folder, note, upload_s) for tracker in settings.reported]
        self._begun = self._ended = False
        self._redirected = ExitStack()

    def __enter__(self) -> Self:
        if self._all:
            with writing(self._folder / "trackers"):
                (self._folder / "trackers").mkdir(exist_ok=True)
            for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
                if stream:  # pythonw has none
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
            for tracker in self._all:  # before the first number, or SystemExit, KeyboardInterrupt: at once
                with tracker.jobs.mutex:
                    tracker.jobs.queue.clear()
                tracker.jobs.put((tracker.finish, "killed"))
            deadline = monotonic() + (LEAVE_S if self._begun else 0.0)
            for tracker in self._all:
                tracker.thread.join(max(0.0, deadline - monotonic()))
                tracker.is_given_up = True

    def begin(self, first_step: int) -> None:
        """Start the trackers' runs, or go on with them; metrics.jsonl has the lines before `first_step`."""
        for tracker in self._all:
            tracker.jobs.put((tracker.begin, first_step))
        self._begun = True

    def log(self, step: int) -> None:
        """The numbers of a step are in metrics.jsonl."""
        for tracker in self._all:
            tracker.offer(tracker.send_numbers, step)

    def completions(self, step: int, records: Sequence[EpisodeRecord]) -> None:
        """What was sampled at a step, as in its rollout file."""
        rows = completion_rows(step, records[: self._settings.max_completions]) if self._all else []
        for tracker in self._all if rows else ():
            tracker.num_dropped += not tracker.offer(tracker.send_completions, step, rows)

    def end(self, status: Status) -> None:
        """Hand over the files and the model, and wait, for a limited time, until all is there."""
        self._ended, since = True, monotonic()
        for tracker in self._all:
            tracker.jobs.put((tracker.send_files, status))
            tracker.jobs.put((tracker.finish, status))
        for tracker in self._all:
            tracker.wait(since, status)


class _Stream:
    """stdout or stderr, but what the thread of a tracker prints goes to its log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return getattr(of_this_thread, "log", self._stream).write(text)  # W&B keeps this method, for all threads

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(of_this_thread, "log", self._stream), name)
