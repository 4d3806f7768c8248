"""A tracker of the user's own that never comes back: the run ends all the same, in time and with its own status."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.harness import SMALL, Command, Finished, num_lines, pretrained, python_rlvr, rlvr, wait_until

HANGING = """
import atexit, threading, time
from rlvr.tracking.trackers.base import Tracker

def forever():
    while True:
        time.sleep(60)

class Hang(Tracker):
    at: str = "log"

    def load(self):
        print("chatter of a library")
        atexit.register(forever)
        threading.Thread(target=forever).start()

    def log(self, rows):
        if self.at == "log":
            forever()

    def finish(self, status):
        forever()
"""


@pytest.fixture
def words(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A run that reports to it, in the current folder."""
    (tmp_path / "hanging.py").write_text(HANGING)
    monkeypatch.chdir(tmp_path)
    return (*SMALL, *pretrained(model), "run_dir=run", "tracker.report_to=[hanging:Hang]", "tracker.timeout_s=0.5")


@pytest.mark.parametrize(("at", "start"), [("log", rlvr), ("finish", python_rlvr)])
def test_pitfall_37_a_tracker_that_hangs_keeps_no_process(
    at: str, start: Callable[..., Finished], words: tuple[str, ...], tmp_path: Path
) -> None:
    done = start("train", *words, f"tracker.hang.at={at}", "tracker.console=plain", cwd=tmp_path)
    assert done.code == 0, done.err
    assert [line.split(":")[0] for line in done.out.splitlines()] == ["rpn", "model", "curve", "try it"]
    (warning,) = [line for line in done.err.splitlines() if line.startswith("warning: ")]
    assert f"Hang is disabled (no answer to `{at}` within 0.5 s)" in warning
    assert "Traceback" not in done.err
    assert (tmp_path / "run" / "final" / "model.safetensors").is_file()
    assert "chatter of a library" in (tmp_path / "run" / "trackers" / "hang.log").read_text()


def test_pitfall_37_a_signal_ends_a_run_whose_tracker_hangs(words: tuple[str, ...], tmp_path: Path) -> None:
    command = Command("train", *words, "trainer.max_steps=9999", log=tmp_path / "log", cwd=tmp_path)
    wait_until(lambda: num_lines(tmp_path / "run") >= 2, timeout_s=300)
    command.send(signal.SIGTERM)
    assert command.wait(300) == 143, command.err
    assert any((tmp_path / "run" / "checkpoints").iterdir())
