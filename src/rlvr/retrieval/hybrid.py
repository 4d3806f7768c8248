"""Hybrid search: BM25 plus embeddings."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from rlvr.registry import register
from rlvr.retrieval.base import Corpus, Document
from rlvr.retrieval.bm25 import Bm25, Bm25Index
from rlvr.retrieval.ranking import Index, Scores
from rlvr.retrieval.retriever import IndexRetriever, find_retriever
from rlvr.retrieval.semantic import SemanticIndex

MEANING = 1.5
"""BM25 points per standard deviation of the cosines; chosen in benchmarks/results/retrieval.md."""
SMALLEST_SPREAD = 1e-6


class HybridIndex(Index):
    def __init__(self, bm25: Bm25Index, semantic: SemanticIndex) -> None:
        super().__init__(bm25.documents)
        self._bm25, self._semantic = bm25, semantic

    def scores(self, query: str) -> Scores:
        return fuse(self._bm25.scores(query), self._semantic.scores(query))


def fuse(by_words: Scores, by_meaning: Scores) -> Scores:
    """BM25 scores [N] plus `MEANING` times the standardized cosines [N].

    After Wang, Zhuang and Zuccon, ICTIR 2021, who interpolate BM25 with a dense retriever: ranks (reciprocal rank
    fusion) lose by how much one document fits better than the next. BM25 keeps its scale, which says how informative
    the query's words are: a rare name outweighs a few common words; among common words the cosine decides. Cosines are
    standardized over the searched documents, as models spread them differently.

    `fuse([3, 2, 0], [0.1, 0.5, 0.6])` is about [0.9, 2.7, 1.4]: best is the second one, which both rate highly.
    """
    if not len(by_meaning):
        return by_meaning
    spread = max(float(by_meaning.std()), SMALLEST_SPREAD)
    return by_words + np.float32(MEANING / spread) * (by_meaning - by_meaning.mean())


@register("retriever", "hybrid")
class Hybrid(IndexRetriever):
    """Words and meaning: BM25 scores plus 1.5 times the standardized cosines, see `fuse`."""

    takes_model: ClassVar[bool] = True
    uses: ClassVar[frozenset[str]] = Bm25.uses
    _bm25: Any = None
    _semantic: Any = None

    def load(self) -> None:
        names = ("bm25", f"semantic/{self.model}" if self.model else "semantic")
        self._bm25, self._semantic = (find_retriever(name, self.retrieval) for name in names)
        self._bm25.load()
        self._semantic.load()

    def index(self, documents: Sequence[Document]) -> HybridIndex:
        return HybridIndex(self._bm25.index(documents), self._semantic.index(documents))

    def corpus_index(self, corpus: Corpus) -> HybridIndex:
        return HybridIndex(self._bm25.corpus_index(corpus), self._semantic.corpus_index(corpus))
