"""A part of a reward that stops a run at a known step, until a file is gone."""

import time
from pathlib import Path

from rlvr.rewards.base import Part
from rlvr.settings import Text, setting
from rlvr.types import Attempt
from tests.system.harness import num_lines

FIRST_HELD = 6
"""The step that does not end: metrics.jsonl has those before it."""


class Hold(Part):
    """Waits in step `FIRST_HELD` while the folder of `run` has a file `hold`."""

    in_process = True
    run: Text = setting("", "the run folder")

    def grade(self, attempt: Attempt) -> float:
        folder = Path(self.run)
        while num_lines(folder) == FIRST_HELD and (folder.parent / "hold").exists():
            time.sleep(0.01)
        return 1.0
