"""What a terminal shows while the product works, and that a pipe gets plain lines."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conftest import CACHE
from tests.system.harness import ENVIRONMENT, SCRATCH, SMALL, Command
from tests.terminal import terminal

BAR, HIDE, SHOW = "━", "\x1b[?25l", "\x1b[?25h"


def on_terminal(*words: str, cwd: Path, term: str = "xterm", cache: str | None = None) -> tuple[str, str]:
    """stdout, and what `rlvr WORDS` writes to a terminal of 200 columns."""
    variables = ENVIRONMENT | {"TERM": term, "COLUMNS": "200", "XDG_CACHE_HOME": cache or str(cwd / "cache")}
    out = cwd / "out"
    with terminal() as (file, chunks):
        device = Path(os.ttyname(file))
        code = Command(*words, log=device, out=out, cwd=cwd, environment=variables).wait()
    shown = b"".join(chunks).decode()
    assert code == 0, shown
    said = out.read_text()
    out.unlink()
    return said, shown


def check_live(shown: str, *labels: str) -> None:
    assert [label for label in labels if label not in shown] == [], shown
    assert BAR in shown
    assert shown.rindex(SHOW) > shown.rindex(HIDE), "the terminal has its cursor back"
    assert "Traceback" not in shown


def test_a_run_shows_bars_and_why_the_warm_start_loss_jumps(tmp_path: Path) -> None:
    words = (*SMALL, *SCRATCH, "warm_start.num_steps=300", "warm_start.final_phase_steps=100", "tracker.console=auto")
    out, shown = on_terminal("train", *words, "run_dir=run", cwd=tmp_path)
    assert out.startswith("rpn: held-out accuracy")
    check_live(shown, "loading libraries", "reading data", "warm start", "300/300", "evaluating rpn", "2/2")
    assert "from here 15% of the answers show their steps, not 100% (warm_start.final_phase_steps)" in shown


def test_an_evaluation_and_an_index_show_bars(model: Path, tmp_path: Path) -> None:
    out, shown = on_terminal("eval", str(model), "--num-examples", "30", cwd=tmp_path)
    assert "30 held-out examples" in out
    check_live(shown, "loading libraries", f"loading {model}", "evaluating")  # counts: the test above
    rows = [{"id": str(number), "text": f"Passage {number} is about Oslo."} for number in range(1200)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("retrieve", "corpus.jsonl", "--query", "Oslo", "--retriever", "bm25")
    out, shown = on_terminal(*words, cwd=tmp_path)
    assert out.startswith("bm25\n")
    check_live(shown, "opening the corpus", "counting words")


@pytest.mark.parametrize("words", [("tracker.console=plain",), ()])
def test_a_plain_console_and_a_dumb_terminal_get_lines(words: tuple[str, ...], first_run: Path, tmp_path: Path) -> None:
    """The warm start is that of `first_run`."""
    settings = (*SMALL, *SCRATCH, "tracker.console=auto", *words, "run_dir=run")
    _, shown = on_terminal("train", *settings, cwd=tmp_path, term="xterm" if words else "dumb", cache=CACHE.name)
    lines = shown.partition("task: rpn")[2]
    assert "\r\ntraining 2/2  reward" in lines
    assert "\x1b" not in lines
