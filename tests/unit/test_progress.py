"""Bars go into the display that is there, and nowhere without a terminal."""

import io
import re

import pytest
from rich.progress import Progress

from rlvr.progress import is_terminal, live_display, progress, shown_in, wrapped


def test_without_a_terminal_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_terminal(io.StringIO())
    assert not is_terminal(None)
    with progress("indexing") as on_progress:
        on_progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_bars_are_lines_of_the_display_around_them() -> None:
    stream = io.StringIO()
    _, display = live_display(stream, transient=True)

    def shown(display: Progress) -> list[tuple[str, float, float | None]]:
        return [(task.description, task.completed, task.total) for task in display.tasks]

    with shown_in(display), progress("outer"):
        with progress("[inner]") as on_progress:
            on_progress(3, 1200)
            assert shown(display) == [("outer", 0, None), ("[inner]", 3, 1200)]
            display.refresh()
        with shown_in(None), progress("hidden"):
            assert len(shown(display)) == 1
    assert shown(display) == []
    assert "[inner]" in stream.getvalue()
    assert "3/1,200" in stream.getvalue()


def test_lines_break_between_words_with_a_hanging_indent() -> None:
    path = "runs/rpn_test-20261123-202224/final"
    text = wrapped(f"model: {path} x\ntry it: rlvr eval {path}\n", width=40)
    assert text == f"model:\n  {path} x\ntry it: rlvr eval\n  {path}\n"


def test_a_narrow_terminal_cuts_the_numbers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    _, display = live_display(stream, transient=False)
    numbers = "reward 0.379  accuracy 0.232 [0.197, 0.271]  5,537 tokens/s"
    with display:
        display.add_task("training", total=60, completed=20, numbers=numbers, eta="eta 0:27")
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()).splitlines()[-1]
    assert re.fullmatch(r"training \S{10} 20/60 reward 0.379  accuracy 0.232 .*… eta 0:27", shown.strip())
