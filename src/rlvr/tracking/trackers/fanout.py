"""All trackers of a run."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlvr import __version__
from rlvr.tracking.files import writing
from rlvr.tracking.rollouts import EpisodeRecord
from rlvr.tracking.settings import TrackerSettings
from rlvr.tracking.trackers.base import RunFacts, Status
from rlvr.tracking.trackers.thread import TrackerThread, separate_prints

LEAVE_S = 2.0
"""How long a run that is being killed waits for its trackers to note it."""

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
        self._settings, self._about, self._folder, self._note = settings, about, folder, note
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._all: list[TrackerThread] = []
        self._begun = self._ended = False
        self._open = ExitStack()

    def __enter__(self) -> Self:
        settings, folder = self._settings, self._folder.absolute()
        if settings.report_to:
            with writing(folder / "trackers"):
                (folder / "trackers").mkdir(exist_ok=True)
            self._open.enter_context(separate_prints())
        facts = RunFacts(
            name=settings.run_name or folder.resolve().name,
            experiment=self._about.experiment,
            group=settings.group,
            tags=list(settings.tags),
            config=self._about.config,
            folder=str(folder),
            timeout_s=settings.timeout_s,
            version=__version__,
            known=None,
            first_step=0,
        )
        self._all = [
            TrackerThread(tracker, facts, self._folder, self._notes.put, upload_timeout_s=settings.upload_timeout_s)
            for tracker in settings.reported
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
            else:  # before the first number, or SystemExit, KeyboardInterrupt: at once
                self._leave()

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
            tracker.join(since=since)
        self._say()

    def _leave(self) -> None:
        for tracker in self._all:
            tracker.leave()
        deadline = time.monotonic() + (LEAVE_S if self._begun else 0.0)
        for tracker in self._all:
            tracker.abandon(deadline)

    def _say(self) -> None:
        """Notes of the trackers' threads."""
        while not self._notes.empty():
            self._note(self._notes.get())


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
