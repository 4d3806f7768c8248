"""A corpus: a file of passages, kept as a folder that is read by place and mapped into memory.

The folder's name holds a hash of the file, so a changed corpus gets new indexes. It looks like

    corpus-3f2a.../documents/rows.jsonl               ["m0", "Port Blair", "Port Blair is the capital of ..."]
    corpus-3f2a.../documents/offsets.npy              where each row begins
    corpus-3f2a.../bm25-stem-stop-2/                  see `bm25s.BM25.save`
    corpus-3f2a.../embeddings-c08f.../embeddings.npy  see `SemanticIndex`
"""

from __future__ import annotations

import gzip
import hashlib
import json
import mmap
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvr.errors import ConfigError
from rlvr.retrieval.base import Corpus, CorpusError, Document
from rlvr.retrieval.text import readable

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
FORMAT = "1"
"""Of the folder; part of its hash."""


class StoredDocuments(Sequence[Document]):
    """The passages in `folder`, read when asked for, each by itself. Any number of threads may read."""

    def __init__(self, folder: Path) -> None:
        try:
            self._offsets: npt.NDArray[np.int64] = np.load(folder / "offsets.npy")  # [N + 1], bytes
            with (folder / "rows.jsonl").open("rb") as file:
                self._rows = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise damaged(folder, error) from None
        if self._offsets.ndim != 1 or self._offsets[-1] != len(self._rows):
            raise damaged(folder, "offsets.npy does not belong to rows.jsonl")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Document:  # pyright: ignore[reportIncompatibleMethodOverride]
        place = range(len(self))[index]  # IndexError, negative ones
        document_id, title, text = json.loads(self._rows[self._offsets[place] : self._offsets[place + 1]])
        return Document(id=document_id, title=title, text=text)


def open_corpus(file: str | Path, index_dir: str | Path | None) -> Corpus:
    """The passages of a file; read and stored if that was not done before for exactly these bytes.

    Args:
        file: one JSON object a line (.jsonl) or a JSON list of objects (.json), either also as .gz, with "text" and
            perhaps "title" and "id" (else its number, from 0); other fields are ignored.
        index_dir: where folders are kept; None for `default_folder()`.

    Raises:
        ConfigError: there is no such file, or its name has another ending.
        CorpusError: it is damaged, empty, or repeats an id; names the line.
    """
    path = Path(file).expanduser()
    name = next((path.name.removesuffix(ending) for ending in reversed(ENDINGS) if path.name.endswith(ending)), None)
    if not path.is_file():
        raise ConfigError(f"there is no corpus {path}: name a file of passages ({', '.join(ENDINGS)}).")
    if name is None:
        raise ConfigError(f"{path}: a corpus ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}; rename or convert it.")
    digest = hashlib.sha256(f"{FORMAT} {path.name.removesuffix('.gz').rpartition('.')[2]}\n".encode())
    with path.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    folder = (
        default_folder() if index_dir is None else Path(index_dir).expanduser()
    ) / f"{name}-{digest.hexdigest()[:16]}"
    stored = made(folder / "documents", lambda draft: _store(path, draft))
    return Corpus(documents=StoredDocuments(stored), folder=folder)


def _store(path: Path, folder: Path) -> None:
    offsets, ids = [0], set[str]()
    with (folder / "rows.jsonl").open("wb") as file:
        for number, (place, row) in enumerate(_rows(path)):
            document = _document(row, number, place)
            if document.id in ids:
                raise CorpusError(f"{place}: the id {_shown(document.id)} occurs twice; each passage needs its own.")
            ids.add(document.id)
            stored = json.dumps([document.id, document.title, document.text]).encode() + b"\n"
            offsets.append(offsets[-1] + file.write(stored))
    if not ids:
        raise CorpusError(f"{path} has no passages; give one JSON object with title and text a line.")
    np.save(folder / "offsets.npy", np.array(offsets, dtype=np.int64))


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Places for messages, and what is there."""
    place = str(path)
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            if path.name.removesuffix(".gz").endswith(".jsonl"):
                for number, line in enumerate(file, start=1):
                    place = f"{path}, line {number}"
                    if line.strip():
                        yield place, json.loads(line.decode("utf-8-sig"))
                return
            rows = json.loads(file.read().decode("utf-8-sig"))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(f"{place}: the file is damaged ({error}); get it again.") from None
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{place}: this is not JSON in UTF-8 ({error}); mend or remove it.") from None
    if not isinstance(rows, list):
        raise CorpusError(f"{path}: a .json corpus is a list of objects, but this is {_shown(rows)}.")
    yield from ((f"{path}, passage {number}", row) for number, row in enumerate(rows, start=1))


def _document(row: Any, number: int, place: str) -> Document:
    if not isinstance(row, dict):
        raise CorpusError(f"{place}: a passage is a JSON object, but this is {_shown(row)}.")
    fields = {"id": row.get("id", number), "title": row.get("title", ""), "text": row.get("text")}
    if type(fields["id"]) is int:
        fields["id"] = str(fields["id"])
    for name, value in fields.items():
        if not isinstance(value, str):
            raise CorpusError(f"{place}: {name} must be text, but is {_shown(value)}; mend or remove the passage.")
    return Document(**{name: readable(value) for name, value in fields.items()})


def _shown(value: object) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


# ------------------------------------------------------------------------------- folders that are complete or absent


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/rlvr/retrieval`, or `~/.cache/rlvr/retrieval`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlvr" / "retrieval"


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
        try:
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
        _to_disk(folder.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def damaged(folder: Path, reason: object) -> CorpusError:
    """The error for a stored folder that cannot be read."""
    return CorpusError(f"the index in {folder} is damaged ({reason}); delete that folder, and it is made again.")


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
