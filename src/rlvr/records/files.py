"""Atomic file writes, and clear messages for failed ones."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlvr.errors import UserError

ERROR = "error.txt"
"""In a run folder: the sentence with which the run failed."""
PRUNED = "pruned.txt"
"""In a run folder: why the run was pruned, in a sentence."""

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "the file would exceed the limit on file sizes (ulimit -f); raise it",
}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating system error inside the block into a `UserError` with file and remedy.

    Errors of safetensors and tokenizers (in Rust) are no `OSError`s but end in `(os error 28)`.
    """
    try:
        yield
    except OSError as error:
        file = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else path
        remedy = _REMEDIES.get(error.errno or 0, f"{error.strerror or error}; choose another folder")
        raise UserError(f"Cannot write {file}: {remedy}.") from error
    except Exception as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if not found:
            raise
        raise UserError(f"Cannot write {path}: {_REMEDIES.get(int(found[1]), str(error))}.") from error


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file's content atomically. UserError: the disk is full, or the path is not writable; the old content is
    kept."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            if temporary.exists():  # only after a failure, whose reason `unlink` must not hide
                temporary.unlink()
        sync_folder(path.parent)
