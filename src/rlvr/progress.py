"""Progress bars on a terminal, all of them in one live display on stderr. Elsewhere nothing is shown.

    with progress("indexing") as on_progress:
        on_progress(done, total)

The console of a run lends its display with `shown_in`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import TextWrapper
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_displays: list[Progress | None] = []
"""The innermost last; None: nothing may be shown."""


def is_terminal(stream: TextIO | None) -> bool:
    return bool(stream) and not stream.closed and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def wrapped(text: str, width: int) -> str:
    """The text with breaks between words and a hanging indent; paths and other long words stay whole."""
    layout = TextWrapper(width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(layout.fill(line) for line in text.split("\n"))


def live_display(stream: TextIO, *, transient: bool) -> tuple[Console, Progress]:
    """A display whose lines have the fields `numbers` and `eta`. rich is imported here: plain runs do not need it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Count(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.total is None else f"{task.completed:,.0f}/{task.total:,.0f}")

    console = Console(file=stream, force_terminal=True)
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=10),
        Count(),
        # the only column that is cut on a narrow terminal
        TextColumn("{task.fields[numbers]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        TextColumn("{task.fields[eta]}", markup=False),
    ]
    display = Progress(
        *columns,
        console=console,
        refresh_per_second=4,  # more would slow down a run with one core
        transient=transient,
        expand=True,
        redirect_stdout=is_terminal(sys.stdout),  # not a pipe
    )
    return console, display


@contextmanager
def shown_in(display: Progress | None) -> Iterator[None]:
    """Within the block bars are lines of `display`; with None they are not shown."""
    _displays.append(display)
    try:
        if display is None:
            yield
        else:
            with display:  # shows the cursor again at the end
                yield
    finally:
        _displays.remove(display)


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar while the block runs: `on_progress(done, total)` moves it; before the first call it only shows life."""
    if not _displays:
        own = live_display(sys.stderr, transient=True)[1] if is_terminal(sys.stderr) else None
        with shown_in(own), progress(label) as on_progress:
            yield on_progress
        return
    display = _displays[-1]
    if display is None:
        yield lambda done, total: None
        return
    line = display.add_task(label, total=None, numbers="", eta="")
    try:
        yield lambda done, total: display.update(line, completed=done, total=total)
    finally:
        display.remove_task(line)
