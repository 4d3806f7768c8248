"""The console: lines, the live display, hints; an error of it never ends a run."""

import io
import os
from typing import Any

import pytest

from rlvr.tracking.console import Console, summarize
from tests.terminal import terminal


class Clock:
    """One second passes with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def metrics(step: int) -> dict[str, float]:
    return {"reward/mean": step / 10, "time/tokens_per_s": 5120.4}


def run(console: Console, steps: int = 10) -> None:
    with console:
        console.stage("warm start", 4)
        for step in range(1, 5):
            console.advance(step, {"loss": 1 / step})
        console.stage("training")
        for step in range(1, steps + 1):
            console.log(step, metrics(step))


def plain(total: int = 100, *, every: int = 100, **options: Any) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console("plain", every, total, stream=stream, **options), stream


def test_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.tracking.console.monotonic", Clock())
    console, stream = plain(10, every=4)
    run(console)
    assert stream.getvalue().splitlines() == [
        "warm start: 4 steps",
        "warm start 4/4  loss 0.250",
        "training: 10 steps",
        "training 4/10  reward 0.400  5,120 tokens/s  eta 0:06",
        "training 8/10  reward 0.800  5,120 tokens/s  eta 0:02",
        "training 10/10  reward 1.000  5,120 tokens/s",
    ]


def test_every_evaluation_has_its_line_with_its_interval() -> None:
    console, stream = plain()
    console.log(0, {"eval/rpn/accuracy": 0.5, "eval/rpn/accuracy_low": 0.46, "eval/rpn/accuracy_high": 0.54})
    assert stream.getvalue() == "training 0/100  accuracy 0.500 [0.460, 0.540]\n"


def test_the_eta_of_a_resumed_stage_counts_its_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.tracking.console.monotonic", Clock())
    console, stream = plain(every=1)
    console.stage("training", done=90)
    console.log(91, {})
    assert stream.getvalue().splitlines() == ["training: 10 steps", "training 91/100  eta 0:09"]


def terminal_output(monkeypatch: pytest.MonkeyPatch, term: str) -> str:
    """What a run writes to a real (pseudo) terminal."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "200")
    with terminal() as (file, chunks), os.fdopen(file, "w", closefd=False) as stream:
        run(Console("auto", 1, 10, stream=stream))
    return b"".join(chunks).decode()


def test_a_terminal_gets_a_live_line_and_its_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    text = terminal_output(monkeypatch, "xterm")
    assert "4/4" in text  # the finished warm start stays
    assert "10/10" in text
    assert "reward 1.000" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_brackets_of_a_text_are_shown_as_they_are(mode) -> None:
    stream = io.StringIO()
    with Console(mode, 1, 10, stream=stream) as console:
        console.stage("training")
        console.note("see [bold]x[/bold]")
    assert "see [bold]x[/bold]" in stream.getvalue()


def test_a_hint_is_printed_once() -> None:
    console, stream = plain()
    for step in range(1, 30):
        console.log(step, {"reward/mean": 0.0})
    assert stream.getvalue().count("Every reward was 0 in each of the last 5 steps (reward/mean 0; wrong: 0)") == 1
    assert stream.getvalue().startswith("step 5: ")


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_has_gone_does_not_end_the_run() -> None:
    run(Console("plain", 1, 10, stream=Gone()))


def test_the_headline_may_be_a_part_of_the_reward() -> None:
    metrics = {"eval/a/accuracy": 0.1, "eval/a/part_format": 0.5, "eval/b/part_format": 0.25}
    assert summarize(metrics, "part_format") == "a part format 0.500  b part format 0.250"
    assert summarize(metrics) == "accuracy 0.100"


def test_a_diagnosis_needs_only_a_few_steps() -> None:
    console, stream = plain(penalties={"length"})
    console.diagnose()
    assert stream.getvalue() == ""  # no step, nothing to say
    good = {"reward/mean": 0.5, "reward/answer": 0.5, "reward/length": 0.0}
    console.log(1, good)
    console.diagnose()
    assert stream.getvalue() == "diagnosis: nothing looks wrong\n"
    wrong, stream = plain()
    for step in range(1, 4):
        wrong.log(step, good | {"rollout/truncated_share": 0.9})
    wrong.diagnose()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "diagnosis: 2 things to look at"
    assert [line.split()[0] for line in lines[1:]] == ["-", "-"]
    assert "each of the last 3 steps" in lines[1]
