"""Record files of evaluations: appended to while an evaluation runs, and resumable.

F.jsonl.partial    one line per episode, appended when it ends: a kill loses at most one line
F.jsonl            all records, in order, written at the end; then the partial file is deleted

A file has one writer at a time; a second process is refused.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO

from rlvr.errors import UserError
from rlvr.records.files import writing
from rlvr.records.graded import EvaluationRecord, read_records, write_jsonl
from rlvr.records.jsonl import to_line


class RecordFile:
    """The records at `path`, including those of an earlier run; locked for this process inside a `with` block.

    `problems` names unreadable lines of an earlier run; these episodes, and failed ones, are measured again.
    """

    def __init__(self, path: Path, settings: Collection[str]) -> None:
        """`settings` are those of this run's records. UserError if the file has records of other settings or none, or
        another process writes it."""
        self.path = path.resolve()  # replace the target of a link, not the link
        self.partial = self.path.with_name(self.path.name + ".partial")
        self.problems: list[str] = []
        self._kept: dict[tuple[str, str, int], EvaluationRecord] = {}
        self._lock = _locked(self.partial, path)
        try:
            self._resume(path, settings)
        except BaseException:
            self.__exit__()
            raise

    def _resume(self, path: Path, settings: Collection[str]) -> None:
        whole, problems = read_records(self.path, name=str(path)) if self.path.exists() else ([], [])
        if problems and not whole:
            raise UserError(f"{path} is there and holds no records of an evaluation: name another --output.")
        started, more = read_records(self.partial)
        self.problems += [*problems, *more]
        other = next((record for record in [*whole, *started] if record.settings not in settings), None)
        if other is not None:
            raise UserError(
                f"{path} holds records of other settings, model or task ({other.model} on {other.task}, split "
                f"{other.split}): name another --output, or delete it."
            )
        for record in [*whole, *started]:
            if record.failure is None or self._kept.get(record.key, record).failure is not None:
                self._kept[record.key] = record
        if more:  # the last line may be incomplete: start a new one
            self._write(b"\n")

    def known(self, settings: str) -> dict[tuple[str, int], EvaluationRecord]:
        """The graded records with these settings, by example id and sample index."""
        return {key[1:]: one for key, one in self._kept.items() if key[0] == settings and one.failure is None}

    def add(self, record: EvaluationRecord) -> None:
        """Append one line, unbuffered. UserError if the disk is full."""
        self._write(to_line(record))
        self._kept[record.key] = record

    def _write(self, line: bytes) -> None:
        with writing(self.partial), self.partial.open("ab", buffering=0) as file:
            while line:  # a full disk accepts a part first, and the next attempt raises
                line = line[file.write(line) :]

    def finish(self, records: Sequence[EvaluationRecord]) -> None:
        """Write the complete file: `records` in order, then the others of earlier runs, failures included."""
        keys = {record.key for record in records}
        others = [record for key, record in self._kept.items() if key not in keys]
        write_jsonl(str(self.path), [*records, *others])
        self.partial.unlink(missing_ok=True)

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *reason: object) -> None:
        begun = os.fstat(self._lock.fileno())
        if begun.st_nlink and not begun.st_size:  # it still exists and is empty
            self.partial.unlink()
        self._lock.close()


def _locked(partial: Path, name: Path) -> IO[bytes]:
    """The open file, locked until it is closed or the process ends."""
    while True:
        with writing(partial):
            partial.parent.mkdir(parents=True, exist_ok=True)
            file = partial.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise UserError(
                f"{name} is being written by another process: wait for it, or choose another one."
            ) from error
        except OSError:
            return file  # no lock support, as on some network file systems
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another process has just removed it
