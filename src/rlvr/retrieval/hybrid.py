"""Search by words and by meaning at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rlvr.registry import register
from rlvr.retrieval.base import Corpus, Document, Hits
from rlvr.retrieval.bm25 import Bm25, Bm25Index
from rlvr.retrieval.retriever import IndexRetriever, find_retriever
from rlvr.retrieval.semantic import SemanticIndex

if TYPE_CHECKING:
    from rlvr.retrieval.ranking import Scores

MEANING = 1.5
"""BM25 points that one standard deviation of the cosines is worth; docs/retrieval.md says how it was chosen."""
SMALLEST_SPREAD = 1e-6


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
        from rlvr.retrieval.ranking import best

        return [best(self.scores(query), top_n) for query in queries]


def fuse(by_words: Scores, by_meaning: Scores) -> Scores:
    """BM25 scores [N] plus `MEANING` times the standardized cosines [N].

    After Wang, Zhuang and Zuccon, ICTIR 2021, who interpolate BM25 with a dense retriever: ranks (reciprocal rank
    fusion) forget by how much one document fits better than the next. BM25 stays as it is, since its size says how
    telling the query's words are: a rare name weighs more than a few common words, and between those the meaning
    decides. Cosines are standardized over the documents that are searched, as models differ in how they spread them.

    `fuse([3, 2, 0], [0.1, 0.5, 0.6])` is about [0.9, 2.7, 1.4]: best is the second one, which both find good.
    """
    import numpy as np

    from rlvr.retrieval.ranking import NO_HIT

    if not len(by_meaning) or by_meaning[0] == NO_HIT:  # for all or none
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
        """Both parts."""
        names = ("bm25", f"semantic/{self.model}" if self.model else "semantic")
        self._bm25, self._semantic = (find_retriever(name, self.retrieval) for name in names)
        self._bm25.load()
        self._semantic.load()

    def index(self, documents: Sequence[Document]) -> HybridIndex:
        """See `IndexRetriever.index`."""
        return HybridIndex(self._bm25.index(documents), self._semantic.index(documents))

    def corpus_index(self, corpus: Corpus) -> HybridIndex:
        """See `IndexRetriever.corpus_index`."""
        return HybridIndex(self._bm25.corpus_index(corpus), self._semantic.corpus_index(corpus))
