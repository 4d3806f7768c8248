"""All trackers of a run."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlvr import __version__
from rlvr.tracking.files import writing
from rlvr.tracking.jsonl import metrics_line
from rlvr.tracking.rollouts import EpisodeRecord
from rlvr.tracking.settings import TrackerSettings
from rlvr.tracking.trackers.base import RunFacts, Status
from rlvr.tracking.trackers.remote import RemoteTracker, finite

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
        self._all: list[RemoteTracker] = []
        self._begun = self._ended = False

    def __enter__(self) -> Self:
        settings = self._settings
        if settings.report_to:
            folder = self._folder / "trackers"
            with writing(folder):
                folder.mkdir(exist_ok=True)
            self._all = [
                RemoteTracker(
                    tracker,
                    folder=folder,
                    note=self._notes.put,
                    timeout_s=settings.timeout_s,
                    upload_timeout_s=settings.upload_timeout_s,
                )
                for tracker in settings.reported
            ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if error is None or isinstance(error, Exception):
            self.end("killed" if error is None else "failed")
        else:  # SystemExit, KeyboardInterrupt: at once
            for tracker in self._all:
                tracker.leave()

    def begin(self, first_step: int) -> None:
        """Start the trackers' runs, or go on with them; metrics.jsonl has the lines before `first_step`."""
        settings, folder = self._settings, self._folder.absolute()
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
            first_step=first_step,
        )
        for tracker in self._all:
            tracker.begin(facts, self._folder / "metrics.jsonl")
        self._begun = True

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The numbers of a step, as they stand in metrics.jsonl."""
        if self._all:
            values = finite(json.loads(metrics_line(step, metrics)))
            for tracker in self._all:
                tracker.log(step, values)
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
            if not self._begun:  # stopped before the first number
                tracker.leave()
                continue
            tracker.end(status, self._files(), self._model(tracker, status))
        since = time.monotonic()
        for tracker in self._all if self._begun else ():
            self._say()
            tracker.join(since=since, with_model=self._model(tracker, status) is not None)
        self._say()

    def _files(self) -> list[Path]:
        names = ("config.yaml", "metrics.jsonl", "report.html")
        return [path for name in names if (path := self._folder / name).is_file()]

    def _model(self, tracker: RemoteTracker, status: Status) -> Path | None:
        model = self._folder / "final"
        return model if tracker.keeps_model and status == "finished" and model.is_dir() else None

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
