"""The examples that are programs of their own."""

import re
from pathlib import Path

from tests.system.harness import Command

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_loop_of_ones_own_learns_with_core_and_algorithms_alone(tmp_path: Path) -> None:
    script = EXAMPLES / "loop_in_sixty_lines.py"
    text = script.read_text()
    assert len(text.splitlines()) <= 60
    assert set(re.findall(r"^from (\w+\.\w+)", text, re.MULTILINE)) == {"rlvr.algorithms", "rlvr.core", "rlvr.types"}
    command = Command(log=tmp_path / "err", out=tmp_path / "out", script=script)
    assert command.wait(300.0) == 0, command.err
    shown = (tmp_path / "out").read_text()
    rewards = [float(reward) for reward in re.findall(r"reward (\S+),", shown)]
    assert rewards[-1] > 0.7 > 0.4 > rewards[0]  # chance is about 0.02
