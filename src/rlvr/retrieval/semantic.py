"""Search by meaning: cosines of passages' and queries' vectors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rlvr.registry import register
from rlvr.retrieval.base import Corpus, Document, Hits
from rlvr.retrieval.retriever import IndexRetriever
from rlvr.retrieval.store import damaged, made
from rlvr.retrieval.text import bounded, has_words

if TYPE_CHECKING:
    from rlvr.retrieval.encoder import Encoder, Vectors
    from rlvr.retrieval.ranking import Scores


class SemanticIndex:
    """Documents with their vectors. Every document is a hit of every query that has a word."""

    def __init__(self, *, documents: Sequence[Document], vectors: Vectors, encoder: Encoder) -> None:
        self.documents = documents
        self.vectors = vectors  # [N, D], unit length
        self.encoder = encoder

    def scores(self, query: str) -> Scores:
        """[N]: cosines, -1 to 1; `NO_HIT` for a query without words."""
        import numpy as np

        from rlvr.retrieval.ranking import NO_HIT

        query = bounded(query)
        if not has_words(query) or not self.documents:
            return np.full(len(self.documents), NO_HIT, dtype=np.float32)
        return self.vectors @ self.encoder.query(query)

    def search(self, queries: Sequence[str], top_n: int) -> list[Hits]:
        """See `Index.search`."""
        from rlvr.retrieval.ranking import best

        return [best(self.scores(query), top_n) for query in queries]


@register("retriever", "semantic")
class Semantic(IndexRetriever):
    """Meaning: a `sentence-transformers` model, 256 tokens, float32, cosine."""

    takes_model: ClassVar[bool] = True
    _encoder: Any = None

    def load(self) -> None:
        """The model."""
        from rlvr.retrieval.encoder import load_encoder

        self._encoder = load_encoder(self.model)

    def index(self, documents: Sequence[Document]) -> SemanticIndex:
        """Half a second for 20 paragraphs that were not seen before, on one CPU core."""
        vectors = self._encoder.paragraphs([document.full for document in documents])
        return SemanticIndex(documents=documents, vectors=vectors, encoder=self._encoder)

    def corpus_index(self, corpus: Corpus) -> SemanticIndex:
        """Minutes for ten thousand passages on a CPU, once."""
        import numpy as np

        folder = corpus.folder / f"embeddings-{self._encoder.fingerprint}"
        made(folder, lambda draft: np.save(draft / "embeddings.npy", self._encode(corpus.documents)))
        try:
            vectors = np.load(folder / "embeddings.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise damaged(folder, error) from None
        if vectors.ndim != 2 or len(vectors) != len(corpus.documents):
            raise damaged(folder, "it is of another corpus")
        return SemanticIndex(documents=corpus.documents, vectors=np.asarray(vectors), encoder=self._encoder)

    def _encode(self, documents: Sequence[Document]) -> Vectors:
        print(f"rlvr: encoding {len(documents):,} passages, once for this corpus and model", file=sys.stderr)
        return self._encoder.corpus([document.full for document in documents])
