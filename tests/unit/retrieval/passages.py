"""Passages and settings for tests."""

import asyncio
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr.retrieval.base import Document
from rlvr.retrieval.bm25 import Bm25
from rlvr.retrieval.ranking import Index
from rlvr.retrieval.retriever import Retriever, find_retriever
from rlvr.retrieval.settings import RetrievalSettings

STEMMED = RetrievalSettings(stem=True, remove_stop_words=True)
PLAIN = RetrievalSettings(stem=False, remove_stop_words=False)
TEXTS = (
    ("Marie Curie", "Marie Curie was a physicist. She was born in Warsaw and worked in Paris."),
    ("Warsaw", "Warsaw is the capital and largest city of Poland, on the river Vistula."),
    ("Paris", "Paris is the capital of France. The Seine flows through it."),
    ("Vistula", "The Vistula is the longest river of Poland; it ends in the Baltic Sea."),
    ("Seine", "The Seine is a river in northern France."),
    ("Paris", "Paris is a town in Texas, the seat of Lamar County."),
    ("", ""),
    ("Chopin", "Frédéric Chopin composed for the piano; a son of 華沙 (Warsaw)."),
)


def documents() -> list[Document]:
    """Eight: two with the same title, one empty."""
    return [Document(id=f"d{number}", title=title, text=text) for number, (title, text) in enumerate(TEXTS)]


def write_corpus(folder: Path, name: str = "corpus.jsonl") -> Path:
    """`documents()` as a file; its name says in which form."""
    rows = [{"id": entry.id, "title": entry.title, "text": entry.text} for entry in documents()]
    text = json.dumps(rows) if ".jsonl" not in name else "".join(json.dumps(row) + "\n" for row in rows)
    data = text.encode()
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def retrieval(**changes: Any) -> RetrievalSettings:
    return RetrievalSettings(**{"timeout_s": 5.0, "max_retries": 2, "max_document_chars": 4_000} | changes)


def bm25(settings: RetrievalSettings = STEMMED) -> Bm25:
    """A retriever without a corpus."""
    retriever = find_retriever("bm25", settings).open()
    assert isinstance(retriever, Bm25)
    return retriever


def places(index: Index, query: str, top_n: int) -> list[int]:
    """Where in `documents()` what an index finds stands."""
    return [int(found.document.id.removeprefix("d")) for found in index.search(query, top_n)]


def ranked(retriever: Retriever, found: Sequence[Document], query: str, top_n: int = 5) -> list[int]:
    """The same of what a retriever finds among some documents."""
    hits = asyncio.run(retriever.ranked(query, found, top_n))
    return [int(hit.document.id.removeprefix("d")) for hit in hits]
