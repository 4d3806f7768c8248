"""Progress of a run on stderr: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TextIO

from rlvr.progress import is_terminal, live_display, shown_in, wrapped
from rlvr.tracking.health import WINDOW, hints
from rlvr.tracking.signals import SIGNALS

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import Progress, TaskID
    from rich.text import Text

Mode = Literal["auto", "live", "plain", "none"]


def format_duration(seconds: float) -> str:
    """`format_duration(75)` is `1:15`, `format_duration(3675)` is `1:01:15`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def summarize(metrics: Mapping[str, float], headline: str = "accuracy") -> str:
    """The main metrics: `reward 0.512  accuracy 0.830 [0.794, 0.861]  5,120 tokens/s`.

    Failed verifiers, and many unreadable or cut-off answers, are shown at once; hints wait for more steps. With several
    evaluation sets each headline is named after its task: `gsm8k accuracy 0.412 [...]`.
    """
    parts = [f"loss {metrics['loss']:.3f}"] if "loss" in metrics else []
    if "reward/mean" in metrics:
        parts.append(f"reward {metrics['reward/mean']:.3f}")
    marked = (signal for name, signal in SIGNALS.items() if signal.mark and not signal.is_fine(metrics.get(name, 0.0)))
    parts += [f"{signal.mark} {metrics[signal.name]:.0%}" for signal in marked]
    shown = [name for name in sorted(metrics) if name.startswith("eval/") and name.endswith(f"/{headline}")]
    for name in shown:
        task = f"{name.split('/')[1]} " if len(shown) > 1 else ""
        low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
        interval = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
        parts.append(f"{task}{headline.replace('_', ' ')} {metrics[name]:.3f}{interval}")
    if metrics.get("time/tokens_per_s", 0) > 0:  # a step that only evaluates has no training tokens
        parts.append(f"{metrics['time/tokens_per_s']:,.0f} tokens/s")
    return "  ".join(parts)


class Console:
    """`with Console("auto", log_every=10, total_steps=80) as console: console.stage("training", 80); ...`

    Progress must never end a run: if stderr is closed or its reader is gone, the console becomes silent.
    """

    def __init__(
        self,
        mode: Mode,
        log_every: int,
        total_steps: int,
        *,
        headline: str = "accuracy",
        penalties: Collection[str] = (),
        stream: TextIO | None = None,
    ) -> None:
        self._stream = stream = stream or sys.stderr
        if stream is None or stream.closed:
            mode = "none"
        elif mode == "auto":
            mode = "live" if is_terminal(stream) else "plain"
        self._mode: Mode = mode
        self._log_every, self._total_steps = log_every, total_steps
        self._headline, self._penalties = headline, penalties
        self._name, self._total, self._first, self._started = "training", total_steps, 0, monotonic()
        self._history: list[dict[str, float]] = []
        self._accuracy: dict[str, float] = {}
        self._said: set[str] = set()
        self._rich: RichConsole | None = None
        self._progress: Progress | None = None
        self._bar: TaskID | None = None

    def __enter__(self) -> Self:
        if self._mode == "live":
            self._rich, self._progress = live_display(self._stream, transient=False)
        self._shown = shown_in(self._progress)
        self._shown.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.__exit__(kind, error, trace)
        self._progress = None

    def stage(self, name: str, total: int | None = None, *, done: int = 0) -> None:
        """Begin a stage of `total` steps (default: the run's); a resumed run has `done` of them already."""
        self._name, self._total = name, self._total_steps if total is None else total
        self._first, self._started = done, monotonic()
        if self._progress is not None:
            self._bar = self._progress.add_task(name, total=self._total, completed=done, numbers="", eta="")
        else:
            self.note(f"{name}: {self._total - done} steps")

    def advance(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Move the progress bar to `step`; `metrics` as in `summarize` ("loss" for the warm start)."""
        self._show(step, summarize(metrics or {}, self._headline), step % self._log_every == 0 or step == self._total)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a training step, and always an evaluation; then report hints, each once."""
        evaluated = {name: value for name, value in metrics.items() if name.startswith("eval/")}
        self._accuracy = evaluated or self._accuracy
        due = bool(evaluated) or step % self._log_every == 0 or step == self._total
        shown = dict(metrics) | (self._accuracy if self._mode == "live" else evaluated)
        self._show(step, summarize(shown, self._headline), due)
        self._remember(step, metrics)
        for hint in hints(self._history, penalties=self._penalties):
            if hint.key not in self._said:
                self._said.add(hint.key)
                self.note(f"step {step}: {hint.text}")

    def show(self, lines: Sequence[Sequence[tuple[str, str]]]) -> None:
        """Print lines of (text, rich style); without a live terminal the styles are ignored."""
        from rich.text import Text

        for line in lines:  # the text is never parsed as markup
            self.note("".join(text for text, _ in line).rstrip() if self._rich is None else Text.assemble(*line))

    def diagnose(self) -> None:
        steps = sum("reward/mean" in metrics for metrics in self._history)
        if steps == 0:
            return
        found = hints(self._history, window=min(steps, WINDOW), penalties=self._penalties)
        count = "1 thing" if len(found) == 1 else f"{len(found)} things"
        self.note("diagnosis: " + (f"{count} to look at" if found else "nothing looks wrong"))
        for hint in found:
            self.note(f"- {hint.text}")

    def _remember(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the data for `hints`: all evaluations, and the last steps."""
        kept = [{n: v for n, v in old.items() if n.startswith("eval/")} for old in self._history[:-WINDOW]]
        self._history = [old for old in kept if old] + self._history[-WINDOW:] + [dict(metrics)]

    def _show(self, step: int, numbers: str, due: bool) -> None:
        eta = ""
        if self._first < step < self._total:  # at the stage's mean speed
            left = (monotonic() - self._started) / (step - self._first) * (self._total - step)
            eta = f"eta {format_duration(left)}"
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, completed=step, numbers=numbers, eta=eta)
        elif due:
            self.note("  ".join(part for part in (f"{self._name} {step}/{self._total}", numbers, eta) if part))

    def note(self, text: str | Text) -> None:
        if self._mode == "none":
            return
        try:
            if self._rich is not None and self._progress is not None:
                shown = wrapped(text, self._rich.width) if isinstance(text, str) else text
                self._rich.print(shown, markup=False, highlight=False)
            else:
                print(text, file=self._stream, flush=True)
        except (OSError, ValueError):  # the pipe's reader is gone, or the stream is closed
            self._mode = "none"
