"""A file of records that grows while an evaluation runs, and lets a later one go on from it.

F.jsonl.partial    one line an episode, appended as it ends: a kill loses at most the line that was being written
F.jsonl            everything, in order, written at the end; then the other file goes
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rlvr.errors import UserError
from rlvr.tracking.evaluations import EvaluationRecord, read_records, to_line, write_jsonl
from rlvr.tracking.files import write_atomically, writing

Known = Mapping[tuple[str, int], EvaluationRecord]
"""Records by example id and sample index."""


class RecordFile:
    """The records at `path`, those of an earlier run included.

    `problems` names the lines of an earlier run that could not be read; what they held is measured again. So is what
    failed: the reason may be gone.
    """

    def __init__(self, path: Path, settings: Collection[str], *, how: str = "name another --output") -> None:
        """`settings` are those that this run's records will have; `how` says what to do about others.

        Raises:
            UserError: there are records of other settings, or a file that holds no records.
        """
        self.path = path.resolve()  # the file behind a link, not the link, is replaced
        self.partial = self.path.with_name(self.path.name + ".partial")
        self.problems: list[str] = []
        self._known: dict[tuple[str, str, int], EvaluationRecord] = {}
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        whole, problems = self._read(self.path, path)
        if problems and not whole:
            raise UserError(f"{path} is there and holds no records of an evaluation: {how}.")
        started, more = self._read(self.partial, self.partial)
        self.problems += [*problems, *more]
        other = next((record for record in [*whole, *started] if record.settings not in settings), None)
        if other is not None:
            raise UserError(
                f"{path} holds records of other settings, model or task ({other.model} on {other.task}, split "
                f"{other.split}): {how}, or delete it."
            )
        for record in [*whole, *started]:
            if record.failure is None:
                self._known[record.key] = record
        if more:  # what is torn is cut off, so that the next line starts on a line of its own
            lines = [to_line(record) for record in started]
            write_atomically(self.partial, b"".join(lines))

    def _read(self, path: Path, name: Path) -> tuple[list[EvaluationRecord], list[str]]:
        return read_records(path, name=str(name)) if path.exists() else ([], [])

    def known(self, settings: str) -> Known:
        """What is there of an evaluation with these settings."""
        return {key[1:]: record for key, record in self._known.items() if key[0] == settings}

    def add(self, record: EvaluationRecord) -> None:
        """Append one line, handed to the operating system at once. UserError if there is no space."""
        self._known[record.key] = record
        with writing(self.partial), self.partial.open("ab", buffering=0) as file:
            file.write(to_line(record))

    def finish(self, records: Sequence[EvaluationRecord]) -> None:
        """Write the whole file: `records` in their order, then what else was there before."""
        keys = {record.key for record in records}
        others = [record for key, record in self._known.items() if key not in keys]
        write_jsonl(str(self.path), [*records, *others])
        self.partial.unlink(missing_ok=True)
