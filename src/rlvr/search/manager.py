"""Runs the trials of a search: some at a time, each in a process of its own."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import join

from rlvr.evaluation.intervals import Interval
from rlvr.lines import override_lines
from rlvr.records.files import ERROR, PRUNED
from rlvr.report.listing import is_locked
from rlvr.rewards.sandbox import end_with_parent
from rlvr.search.pruning import scores
from rlvr.search.settings import SweepSettings
from rlvr.search.space import Space
from rlvr.search.trials import Trial, propose, read_trials, write_trials

PROGRAM = (sys.executable, "-m", "rlvr")
POLL_S = 0.1
HOPELESS = 3
"""Failures after which a command ends while no trial has come through: it is wrong, not the points."""


@dataclass(kw_only=True)
class Search:
    folder: Path
    space: Space
    settings: SweepSettings
    name: str  # the metric
    base: Sequence[str]  # words of the training command before the overrides
    more: Sequence[str]  # overrides of every trial that its own command does not need
    say: Callable[[str], None]
    trials: dict[int, Trial] = field(init=False)
    _waiting: list[int] = field(init=False)  # trials of an earlier command that have not ended
    _running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)
    _told: set[int] = field(default_factory=set, init=False)  # processes that were asked to end
    _failures: list[str] = field(default_factory=list, init=False)  # reasons
    interrupted: set[int] = field(default_factory=set, init=False)  # trials ended by a signal that is not ours

    def __post_init__(self) -> None:
        self.trials = read_trials(self.folder, self.say)
        for number, trial in self.trials.items():
            if trial.state == "failed" and not scores(Path(trial.folder), self.name):  # its start was refused
                self.trials[number] = replace(trial, state="running", reason="")
        self._waiting = [number for number, trial in sorted(self.trials.items()) if trial.state == "running"]

    @property
    def hopeless(self) -> str:
        """Why the last trial failed, if enough have to give up; else empty."""
        is_enough = len(self._failures) >= HOPELESS
        is_hopeless = is_enough and all(trial.state in ("running", "failed") for trial in self.trials.values())
        return self._failures[-1] if is_hopeless else ""

    def run(self, stopped: Callable[[], bool]) -> None:
        """Run trials until all have ended, or `stopped()`: then those that run save and end."""
        try:
            while True:
                self._collect()
                if stopped():
                    self._end_all()
                elif not self.hopeless:
                    self._fill()
                if not self._running and (stopped() or self.hopeless or not self._is_left()):
                    return
                time.sleep(POLL_S)
        finally:
            for process in self._running.values():  # a second signal
                process.terminate()

    def _is_left(self) -> bool:
        return bool(self._waiting) or len(self.trials) < self.settings.trials

    def _fill(self) -> None:
        """Start as many trials as may run: those that an earlier command left, when nothing writes their folder any
        more, then new ones."""
        for number in list(self._waiting):
            if len(self._running) < self.settings.jobs and not is_locked(Path(self.trials[number].folder)):
                self._waiting.remove(number)
                self._start(self.trials[number])
        while len(self._running) + len(self._waiting) < self.settings.jobs and len(self.trials) < self.settings.trials:
            trial = self._next()
            self.trials[trial.number] = trial
            write_trials(self.folder, self.trials)
            if trial.state == "running":
                self._start(trial)

    def _next(self) -> Trial:
        """The next trial; a point that was tried before has the result that it had: training it repeats its numbers."""
        number = len(self.trials)
        point = propose(self.space, self.trials, number, self.settings)
        for trial in self.trials.values():
            if trial.params == point and trial.state != "running":
                self.say(f"trial {number}: the point of trial {trial.number} again")
                return replace(trial, number=number, reason=trial.reason or f"as trial {trial.number}")
        overrides = tuple(self.space.overrides(point))
        return Trial(
            number=number,
            state="running",
            params=point,
            overrides=overrides,
            folder=str(self.folder / f"trial-{number}"),
            command=join(["rlvr", *self.base, *self.space.fixed, *overrides]),
        )

    def _start(self, trial: Trial) -> None:
        folder = Path(trial.folder)
        words = [*self.base, *self.space.fixed, *trial.overrides, *self.more, *override_lines({"run_dir": folder})]
        if (folder / "config.yaml").is_file():
            words.append("resume=true")
        if self.settings.prune:
            words += ["--prune-against", str(self.folder)]
        self.say(f"trial {trial.number} of {self.settings.trials}: {' '.join(trial.overrides)} (log: {folder}.log)")
        with self._log(trial).open("ab") as log:
            self._running[trial.number] = subprocess.Popen(
                [*PROGRAM, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches this process, which asks the trials to end
                preexec_fn=partial(end_with_parent, signal.SIGTERM),
            )

    def _log(self, trial: Trial) -> Path:
        return Path(f"{trial.folder}.log")

    def _end_all(self) -> None:
        for number, process in self._running.items():
            if number not in self._told:
                self._told.add(number)
                process.terminate()

    def _collect(self) -> None:
        """Note the results of the trials that have ended."""
        for number, process in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[number]
            if code < 0 or code > 128:
                self._was_stopped(number, code if code < 0 else 128 - code)
                continue
            trial = outcome(self.trials[number], self.name, code, self._log(self.trials[number]))
            self.trials[number] = trial
            self._failures += [trial.reason] if trial.state == "failed" else []
            write_trials(self.folder, self.trials)
            self.say(f"trial {number}: {said(trial)}")

    def _was_stopped(self, number: int, code: int) -> None:
        if number not in self._told:
            self.interrupted.add(number)
            self.say(f"trial {number}: ended by {signal.Signals(-code).name}, not by this command")


def outcome(trial: Trial, name: str, code: int, log: Path) -> Trial:
    """The trial after its process has ended with this status, from what its run has written."""
    folder = Path(trial.folder)
    intervals = scores(folder, name)
    pruned, error = _text(folder / PRUNED), _text(folder / ERROR)
    if code != 0:
        return _measured(replace(trial, state="failed", reason=error or _last_error(log)), intervals)
    if pruned:
        return _measured(replace(trial, state="pruned", reason=pruned), intervals)
    if not intervals:
        return replace(trial, state="failed", reason=f"{name} was not measured")
    return _measured(replace(trial, state="done", reason=""), intervals)


def _measured(trial: Trial, intervals: dict[int, Interval]) -> Trial:
    step = max(intervals, default=0)
    last = intervals.get(step)
    if last is None:
        return trial
    values = tuple((one, intervals[one].value) for one in sorted(intervals))
    return replace(trial, step=step, score=last.value, low=last.low, high=last.high, scores=values)


def said(trial: Trial) -> str:
    """`done, 0.862 (0.829 to 0.889)`"""
    if trial.state in ("failed", "pruned"):
        return f"{trial.state}: {trial.reason}"
    return f"{trial.state}, {interval(trial)}"


def interval(trial: Trial) -> str:
    if trial.score is None:
        return "-"
    if trial.low is None or trial.high is None:
        return f"{trial.score:.3f}"
    return str(Interval(value=trial.score, low=trial.low, high=trial.high))


def _text(file: Path) -> str:
    return file.read_text("utf-8", errors="replace").strip() if file.is_file() else ""


def _last_error(log: Path) -> str:
    lines = _text(log).splitlines() or ["it printed nothing"]
    return lines[-1].removeprefix("rlvr: error: ")
