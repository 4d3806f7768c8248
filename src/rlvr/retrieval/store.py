"""Folders that are made once: complete or absent, whoever makes them at the same moment."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rlvr.retrieval.base import CorpusError


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/rlvr/retrieval`, or `~/.cache/rlvr/retrieval`."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "rlvr" / "retrieval"


def made(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`; if it does not exist, `make` fills an empty one beside it, which then takes its name.

    Of two processes that make the same folder the first one wins; the other one's work is thrown away. A process that
    is killed leaves a folder `.<name>.*` behind, which is never read.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        make(draft)
        for file in draft.iterdir():
            _to_disk(file)
        draft.chmod(0o755)  # mkdtemp's own is for this user alone
        _rename(draft, folder)
        _to_disk(folder.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def damaged(folder: Path, reason: object) -> CorpusError:
    """The error for a stored folder that cannot be read."""
    return CorpusError(f"the index in {folder} is damaged ({reason}); delete that folder, and it is made again.")


def _rename(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster
            raise


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
