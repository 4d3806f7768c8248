"""A corpus: a file of passages, kept as a folder that is read by place and mapped into memory.

The folder's name holds a hash of the file, so a changed corpus gets new indexes. It looks like

    corpus-3f2a.../documents/rows.jsonl               ["m0", "Port Blair", "Port Blair is the capital of ..."]
    corpus-3f2a.../documents/offsets.npy              where each row begins
    corpus-3f2a.../bm25-stem-stop-2/                  see `Bm25Index.save`
    corpus-3f2a.../embeddings-c08f.../embeddings.npy  see `SemanticIndex`
"""

from __future__ import annotations

import gzip
import hashlib
import json
import mmap
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast, overload

import numpy as np
import numpy.typing as npt

from rlvr.errors import ConfigError
from rlvr.retrieval.base import Corpus, CorpusError, Document
from rlvr.retrieval.store import damaged, default_folder, made
from rlvr.retrieval.text import readable

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
MAX_PASSAGE_BYTES = 1 << 20
MAX_LIST_BYTES = 2 << 30
FORMAT = "1"
"""Of the folder; part of its hash."""


class StoredDocuments(Sequence[Document]):
    """The passages in `folder`, read when asked for. Any number of threads may read."""

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

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> list[Document]: ...
    def __getitem__(self, index: int | slice) -> Document | list[Document]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]  # IndexError, negative ones
        row = self._rows[self._offsets[place] : self._offsets[place + 1]]
        document_id, title, text = json.loads(row)
        return Document(id=document_id, title=title, text=text)


def open_corpus(path: Path, index_dir: Path | None) -> Corpus:
    """The passages of a file; read and stored if that was not done before for exactly these bytes.

    Args:
        path: one JSON object a line (.jsonl) or a JSON list of objects (.json), either also as .gz, with "text" and
            perhaps "title" and "id" (else its number, from 0); other fields are ignored.
        index_dir: where folders are kept; None for `default_folder()`.

    Raises:
        ConfigError: there is no such file, or its name has another ending.
        CorpusError: it is damaged, empty, or repeats an id; names the line.
    """
    name = next((path.name.removesuffix(ending) for ending in reversed(ENDINGS) if path.name.endswith(ending)), None)
    if not path.is_file():
        raise ConfigError(f"there is no corpus {path}: name a file of passages ({', '.join(ENDINGS)}).")
    if name is None:
        raise ConfigError(f"{path}: a corpus ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}; rename or convert it.")
    digest = hashlib.sha256(f"{FORMAT} {path.name.removesuffix('.gz').rpartition('.')[2]}\n".encode())
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    folder = (index_dir or default_folder()).expanduser() / f"{name}-{digest.hexdigest()[:16]}"
    stored = made(folder / "documents", lambda draft: _store(path, draft))
    return Corpus(documents=StoredDocuments(stored), folder=folder)


def _store(path: Path, folder: Path) -> None:
    offsets, ids = [0], set[str]()
    with (folder / "rows.jsonl").open("wb") as file:
        for place, document in _documents(path):
            if document.id in ids:
                raise CorpusError(f"{place}: the id {_shown(document.id)} occurs twice; each passage needs its own.")
            ids.add(document.id)
            row = json.dumps([document.id, document.title, document.text]).encode() + b"\n"
            offsets.append(offsets[-1] + file.write(row))
    if not ids:
        raise CorpusError(f"{path} has no passages; give one JSON object with title and text a line.")
    np.save(folder / "offsets.npy", np.array(offsets, dtype=np.int64))


def _documents(path: Path) -> Iterator[tuple[str, Document]]:
    """Places for messages, and passages."""
    rows = _lines(path) if path.name.removesuffix(".gz").endswith(".jsonl") else _list(path)
    for number, (place, row) in enumerate(rows):
        yield place, _document(row, number, place)


def _document(row: Any, number: int, place: str) -> Document:
    if not isinstance(row, dict):
        raise CorpusError(f"{place}: a passage is a JSON object, but this is {_shown(row)}.")
    document_id, title, text = row.get("id", number), row.get("title", ""), row.get("text")
    if isinstance(document_id, int) and not isinstance(document_id, bool):
        document_id = str(document_id)
    for name, value in (("id", document_id), ("title", title), ("text", text)):
        if not isinstance(value, str):
            raise CorpusError(f"{place}: {name} must be text, but is {_shown(value)}; mend or remove the passage.")
    return Document(id=readable(cast(str, document_id)), title=readable(title), text=readable(cast(str, text)))


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with _open(path) as file:
        number = 0
        while True:
            number += 1
            place = f"{path}, line {number}"
            line = _read(file.readline, MAX_PASSAGE_BYTES, place)
            if not line:
                return
            if line.strip():
                yield place, _parse(line, place)


def _list(path: Path) -> Iterator[tuple[str, Any]]:
    with _open(path) as file:
        rows = _parse(_read(file.read, MAX_LIST_BYTES, str(path)), str(path))
    if not isinstance(rows, list):
        raise CorpusError(f"{path}: a .json corpus is a list of objects, but this is {_shown(rows)}.")
    for number, row in enumerate(rows, start=1):
        yield f"{path}, passage {number}", row


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.name.endswith(".gz") else path.open("rb")


def _read(read: Any, max_bytes: int, place: str) -> bytes:
    try:
        data = read(max_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(f"{place}: the file is damaged ({error}); get it again.") from None
    if len(data) > max_bytes:
        raise CorpusError(f"{place}: more than {max_bytes:,} bytes; cut it into smaller passages.")
    return data


def _parse(data: bytes, place: str) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{place}: this is not JSON in UTF-8 ({error}); mend or remove it.") from None


def _shown(value: object) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
