"""Search by words and by meaning at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlvr.retrieval.base import Corpus, Document, Hits
from rlvr.retrieval.bm25 import Bm25, Bm25Index
from rlvr.retrieval.ranking import NO_HIT, Scores, best
from rlvr.retrieval.semantic import Semantic, SemanticIndex

SEMANTIC_WEIGHT = 0.5


class HybridIndex:
    """Two indexes over the same documents, their scores fused; see `fuse`."""

    def __init__(self, bm25: Bm25Index, semantic: SemanticIndex) -> None:
        self.documents = bm25.documents
        self._bm25 = bm25
        self._semantic = semantic

    def scores(self, query: str) -> Scores:
        """[N]; `NO_HIT` for a query without words."""
        return fuse(self._bm25.scores(query), self._semantic.scores(query))

    def search(self, queries: Sequence[str], top_n: int) -> list[Hits]:
        """See `Index.search`."""
        return [best(self.scores(query), top_n) for query in queries]


def fuse(by_words: Scores, by_meaning: Scores) -> Scores:
    """Both score vectors [N] mapped to 0..1, and their weighted mean [N].

    Bruch et al., arXiv:2210.11934: a convex combination of normalized scores beats reciprocal rank fusion, as ranks
    forget by how much one document fits better than the next. BM25 is divided by its largest score, cosines are
    stretched between the smallest and the largest one.
    """
    if not len(by_meaning) or by_meaning[0] == NO_HIT:  # for all or none
        return by_meaning
    words = by_words / max(by_words.max(initial=0), np.finfo(np.float32).tiny)
    low, high = by_meaning.min(), by_meaning.max()
    meaning = (by_meaning - low) / max(high - low, np.finfo(np.float32).tiny)
    return (1 - SEMANTIC_WEIGHT) * words + SEMANTIC_WEIGHT * meaning


@dataclass(frozen=True, kw_only=True)
class Hybrid:
    """The `Indexer` of both."""

    bm25: Bm25
    semantic: Semantic

    def build(self, documents: Sequence[Document]) -> HybridIndex:
        """See `Indexer`."""
        return HybridIndex(self.bm25.build(documents), self.semantic.build(documents))

    def open(self, corpus: Corpus) -> HybridIndex:
        """See `Indexer`."""
        return HybridIndex(self.bm25.open(corpus), self.semantic.open(corpus))
