"""The examples that are programs of their own."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_loop_of_ones_own_learns_with_the_core_alone() -> None:
    script = EXAMPLES / "loop_in_sixty_lines.py"
    text = script.read_text()
    assert len(text.splitlines()) <= 60
    assert set(re.findall(r"^from (\w+\.\w+)", text, re.MULTILINE)) == {"rlvr.core", "rlvr.types"}
    shown = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=300).stdout
    rewards = [float(reward) for reward in re.findall(r"reward (\S+),", shown)]
    assert rewards[-1] > 0.7 > 0.4 > rewards[0]  # chance is about 0.02
