"""A file of records that grows while an evaluation runs, and lets a later one go on from it.

F.jsonl.partial    one line an episode, appended as it ends: a kill loses at most the line that was being written
F.jsonl            everything, in order, written at the end; then the other file goes

While one process writes, a second one is refused.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

from rlvr.errors import UserError
from rlvr.tracking.evaluations import EvaluationRecord, read_records, to_line, write_jsonl
from rlvr.tracking.files import writing

Known = Mapping[tuple[str, int], EvaluationRecord]
"""Records by example id and sample index."""


class RecordFile:
    """The records at `path`, those of an earlier run included; held by this process for the time of a `with` block.

    `problems` names the lines of an earlier run that could not be read; what they held is measured again. So is what
    failed: the reason may be gone.
    """

    def __init__(self, path: Path, settings: Collection[str]) -> None:
        """`settings` are those that this run's records will have.

        Raises:
            UserError: there are records of other settings, a file that holds no records, or another process that
                writes some.
        """
        self.path = path.resolve()  # the file behind a link, not the link, is replaced
        self.partial = self.path.with_name(self.path.name + ".partial")
        self.problems: list[str] = []
        self._known: dict[tuple[str, str, int], EvaluationRecord] = {}
        self._failed: dict[tuple[str, str, int], EvaluationRecord] = {}
        self._lock = _locked(self.partial, path)
        try:
            self._take(path, settings)
        except BaseException:
            self.__exit__()
            raise

    def _take(self, path: Path, settings: Collection[str]) -> None:
        """Know what is there, if it may be gone on with."""
        whole, problems = self._read(self.path, path)
        if problems and not whole:
            raise UserError(f"{path} is there and holds no records of an evaluation: name another --output.")
        started, more = self._read(self.partial, self.partial)
        self.problems += [*problems, *more]
        other = next((record for record in [*whole, *started] if record.settings not in settings), None)
        if other is not None:
            raise UserError(
                f"{path} holds records of other settings, model or task ({other.model} on {other.task}, split "
                f"{other.split}): name another --output, or delete it."
            )
        for record in [*whole, *started]:
            (self._known if record.failure is None else self._failed)[record.key] = record
        if more:  # the last line may be torn: the next one starts on a line of its own
            self._write(b"\n")

    def _read(self, path: Path, name: Path) -> tuple[list[EvaluationRecord], list[str]]:
        return read_records(path, name=str(name)) if path.exists() else ([], [])

    def known(self, settings: str) -> Known:
        """What is there of an evaluation with these settings."""
        return {key[1:]: record for key, record in self._known.items() if key[0] == settings}

    def add(self, record: EvaluationRecord) -> None:
        """Append one line, handed to the operating system at once. UserError if there is no space."""
        self._write(to_line(record))
        self._known[record.key] = record

    def _write(self, line: bytes) -> None:
        with writing(self.partial), self.partial.open("ab", buffering=0) as file:
            while line:  # where space runs out a part is written, and the next attempt says why
                line = line[file.write(line) :]

    def finish(self, records: Sequence[EvaluationRecord]) -> None:
        """Write the whole file: `records` in their order, then what else was there before, failures included."""
        keys = {record.key for record in records}
        others = [record for key, record in {**self._failed, **self._known}.items() if key not in keys]
        write_jsonl(str(self.path), [*records, *others])
        self.partial.unlink(missing_ok=True)

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *reason: object) -> None:
        begun = os.fstat(self._lock.fileno())
        if begun.st_nlink and not begun.st_size:  # it is still there, and empty
            self.partial.unlink()
        self._lock.close()


def _locked(partial: Path, name: Path) -> IO[bytes]:
    """The file, held by this process until it is closed or the process ends, however it ends."""
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
            return file  # a file system without locks, as some network ones: nothing guards it there
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another process ended at this moment and removed it
