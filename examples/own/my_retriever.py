"""A retriever of your own: passages that share the most runs of three characters with the query.

In the folder of this file:

    rlvr retrieve CORPUS --retriever my_retriever:Trigrams --query "longest river of Poland"
    rlvr train --config-name musique task.retriever=my_retriever:Trigrams task.retrieval.own.width=4

The fields of the class are its settings, `task.retrieval.own.*`. It searches a question's own paragraphs, a corpus
(task.retrieval.scope=corpus), or serves one: `rlvr retrieve CORPUS --retriever my_retriever:Trigrams --serve`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from rlvr.retrieval.base import Document
from rlvr.retrieval.retriever import Retriever
from rlvr.settings import PositiveInt, setting


class Trigrams(Retriever):
    """Overlap of character runs: forgives misspelt names."""

    width: PositiveInt = setting(3, "characters of a run")

    def search(self, query: str, documents: Sequence[Document], top_n: int) -> list[Document]:
        """The documents with the largest share of the query's runs; equal ones in their order."""
        wanted = runs(query, self.width)
        shares = [len(wanted & runs(document.full, self.width)) for document in documents]
        order = sorted(range(len(documents)), key=lambda place: -shares[place])
        return [documents[place] for place in order[:top_n] if shares[place] > 0]


@lru_cache(maxsize=50_000)
def runs(text: str, width: int) -> frozenset[str]:
    """`runs("Lyon", 3)` is {"lyo", "yon"}."""
    text = " ".join(text.lower().split())
    return frozenset(text[start : start + width] for start in range(len(text) - width + 1))
