"""A corpus: a file of passages, stored as a memory-mapped folder with random access.

The folder's name holds a hash of the file, so a changed corpus gets new indexes. Layout:

    corpus-3f2a.../documents/rows.jsonl               ["m0", "Port Blair", "Port Blair is the capital of ..."]
    corpus-3f2a.../documents/offsets.npy              start of each row
    corpus-3f2a.../bm25-stem-stop-2/                  see `bm25s.BM25.save`
    corpus-3f2a.../embeddings-c08f.../embeddings.npy  see `SemanticIndex`
"""

import hashlib
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rlvr.data.rows import DataError, check_file, read_file
from rlvr.places import cache_folder
from rlvr.retrieval.base import Corpus, Document
from rlvr.retrieval.text import readable

FORMAT = "1"  # of the folder; part of the hash


class StoredDocuments(Sequence[Document]):
    """The passages in `folder`, read one by one on demand. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        try:
            self._offsets: npt.NDArray[np.int64] = np.load(folder / "offsets.npy")  # [N + 1], bytes
            with (folder / "rows.jsonl").open("rb") as file:
                self._rows = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if self._offsets[-1] != len(self._rows):
                raise ValueError("offsets.npy does not belong to rows.jsonl")
        except (OSError, ValueError, IndexError) as error:
            raise damaged(folder, error) from None

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Document:  # pyright: ignore[reportIncompatibleMethodOverride]
        place = range(len(self))[index]  # IndexError, negative ones
        document_id, title, text = json.loads(self._rows[self._offsets[place] : self._offsets[place + 1]])
        return Document(id=document_id, title=title, text=text)


def open_corpus(file: str | Path, index_dir: str | Path | None) -> Corpus:
    """The passages of a file (see `read_file`), stored once per file content.

    A row has "text" and optionally "title" and "id" (default: its number, from 0). Folders are in `index_dir`, or
    `default_folder()`. ConfigError for a missing file or unknown ending; DataError, naming the line, if it is damaged,
    empty, or repeats an id.
    """
    path = Path(file).expanduser()
    check_file(path)
    name, _, kind = path.name.removesuffix(".gz").rpartition(".")
    digest = hashlib.sha256(f"{FORMAT} {kind}\n".encode())
    with path.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    root = default_folder() if index_dir is None else Path(index_dir).expanduser()
    folder = root / f"{name}-{digest.hexdigest()[:16]}"
    stored = made(folder / "documents", lambda draft: _store(path, draft))
    return Corpus(documents=StoredDocuments(stored), folder=folder)


def _store(path: Path, folder: Path) -> None:
    offsets, ids = [0], set[str]()
    with (folder / "rows.jsonl").open("wb") as file:
        for number, row in enumerate(read_file(path)):
            fields = {"id": number, "title": "", **row.fields}
            if type(fields["id"]) is int:
                fields["id"] = str(fields["id"])
            passage = []
            for key in ("id", "title", "text"):
                value = fields.get(key)
                if not isinstance(value, str):
                    raise row.wrong(key, value, "must be a text")
                passage.append(readable(value))
            if passage[0] in ids:
                raise DataError(f"{row.place}: the id {passage[0]!a:.60} occurs twice; each passage needs its own.")
            ids.add(passage[0])
            offsets.append(offsets[-1] + file.write(json.dumps(passage).encode() + b"\n"))
    np.save(folder / "offsets.npy", np.array(offsets, dtype=np.int64))


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/rlvr/retrieval`, or `~/.cache/rlvr/retrieval`."""
    return cache_folder() / "retrieval"


def made(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`; if it does not exist, `make` fills a temporary one, which is then renamed.

    If two processes make the same folder, the first one wins and the other's work is discarded. A killed process leaves
    a folder `.<name>.*` behind, which is never read.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        make(draft)
        for path in draft.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        draft.chmod(0o755)  # mkdtemp's folder is private
        try:
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def damaged(folder: Path, reason: object) -> DataError:
    return DataError(f"the index in {folder} is damaged ({reason}); delete that folder, and it is made again.")
