"""Retrievers over indexes of this process: a question's own paragraphs, or a corpus."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rlvr.retrieval.base import Document, Index, Indexer, Search

KEPT_INDEXES = 512


@dataclass(frozen=True, kw_only=True)
class IndexSearch:
    """Searches what `index` returns; in a thread where that takes long, so that other episodes go on meanwhile."""

    index: Callable[[], Index]
    in_thread: bool

    async def __call__(self, query: str, top_n: int) -> list[Document]:
        """See `Search`."""
        return await asyncio.to_thread(self._find, query, top_n) if self.in_thread else self._find(query, top_n)

    def _find(self, query: str, top_n: int) -> list[Document]:
        if top_n < 1:
            return []
        index = self.index()
        return [index.documents[hit.index] for hit in index.search([query], top_n)[0]]


class ParagraphRetriever:
    """Each question's own documents. The indexes of the last `KEPT_INDEXES` questions are kept."""

    def __init__(self, indexer: Indexer, *, in_thread: bool) -> None:
        self._indexer = indexer
        self._in_thread = in_thread
        self._indexes: OrderedDict[str, Index] = OrderedDict()
        self._lock = threading.Lock()  # of the dictionary only: an index may be made twice, which does no harm

    def over(self, key: str, documents: Sequence[Document], supporting: Collection[str]) -> Search:
        """See `Retriever.over`. The index is made at the first search."""
        own = tuple(documents)
        return IndexSearch(index=lambda: self._index(key, own), in_thread=self._in_thread)

    def _index(self, key: str, documents: tuple[Document, ...]) -> Index:
        with self._lock:
            index = self._indexes.get(key)
            if index is not None and index.documents == documents:  # a key alone is not trusted to say what may be seen
                self._indexes.move_to_end(key)
                return index
        index = self._indexer.build(documents)
        with self._lock:
            self._indexes[key] = index
            if len(self._indexes) > KEPT_INDEXES:
                self._indexes.popitem(last=False)
        return index


class CorpusRetriever:
    """One index for all questions."""

    def __init__(self, index: Index) -> None:
        self._search = IndexSearch(index=lambda: index, in_thread=True)

    def over(self, key: str, documents: Sequence[Document], supporting: Collection[str]) -> Search:
        """See `Retriever.over`."""
        return self._search
