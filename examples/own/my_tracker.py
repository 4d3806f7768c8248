"""A tracker of your own: every number of metrics.jsonl as a line `step,name,value` of a CSV file.

In the folder of this file:

    rlvr train --config-name rpn_test tracker.report_to=[my_tracker:Csv] tracker.csv.path=all.csv

The fields of the class are its settings, `tracker.csv.*`: the section has the name of the class. Its methods are called
in a thread of its own, so it may be slow or fail without harm to the run.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr.settings import Text, setting
from rlvr.tracking.trackers.base import Row, RunFacts, Started, Tracker


class Csv(Tracker):
    """A CSV file of all numbers."""

    path: Text = setting("numbers.csv", "the file, inside the run folder unless it is absolute")
    _path: Any = None  # what it needs while it runs; not a setting

    def start(self, run: RunFacts) -> Started:
        """Write the header, or go on after the last complete step of an earlier part of the run."""
        self._path = Path(run.folder, self.path)
        if run.known is None or not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("step,name,value\n")
            return Started(where=str(self._path))
        last_step = run.known.last_step
        with self._path.open(newline="") as file:  # a process that was killed may have written more
            kept = [row for row in csv.reader(file) if row[:1] == ["step"] or int(row[0]) <= last_step]
        with self._path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(kept)
        return Started(where=str(self._path), last_step=last_step)

    def log(self, rows: Sequence[Row]) -> None:
        """Append the numbers of some steps."""
        with self._path.open("a", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerows((step, name, value) for step, values in rows for name, value in values.items())
