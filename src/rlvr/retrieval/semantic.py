"""Semantic search: cosines of passage and query embeddings."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlvr.registry import register
from rlvr.retrieval.base import Corpus, Document
from rlvr.retrieval.corpus import damaged, made
from rlvr.retrieval.encoder import Encoder, Vectors, load_encoder
from rlvr.retrieval.ranking import Index, Scores
from rlvr.retrieval.retriever import IndexRetriever


class SemanticIndex(Index):
    """Documents with their vectors. Every document is a hit for every query."""

    def __init__(self, documents: Sequence[Document], *, vectors: Vectors, encoder: Encoder) -> None:
        super().__init__(documents)
        self.vectors, self.encoder = vectors, encoder  # [N, D], unit length

    def scores(self, query: str) -> Scores:
        return self.vectors @ self.encoder.query(query) if self.documents else np.zeros(0, dtype=np.float32)


@register("retriever", "semantic")
class Semantic(IndexRetriever):
    """Meaning: a `sentence-transformers` model, 256 tokens, float32, cosine."""

    takes_model: ClassVar[bool] = True
    _encoder: Any = None

    def load(self) -> None:
        self._encoder = load_encoder(self.model)

    def index(self, documents: Sequence[Document]) -> SemanticIndex:
        vectors = self._encoder.paragraphs([document.full for document in documents])
        return SemanticIndex(documents, vectors=vectors, encoder=self._encoder)

    def corpus_index(self, corpus: Corpus) -> SemanticIndex:
        """Takes minutes for ten thousand passages on a CPU, once."""
        folder = corpus.folder / f"embeddings-{self._encoder.fingerprint}"

        def encode(draft: Path) -> None:
            print(f"rlvr: encoding {len(corpus.documents):,} passages, once for this corpus and model", file=sys.stderr)
            vectors = self._encoder.corpus([document.full for document in corpus.documents])
            np.save(draft / "embeddings.npy", vectors)

        made(folder, encode)
        try:
            vectors = np.load(folder / "embeddings.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise damaged(folder, error) from None
        if vectors.ndim != 2 or len(vectors) != len(corpus.documents):
            raise damaged(folder, "it is of another corpus")
        return SemanticIndex(corpus.documents, vectors=np.asarray(vectors), encoder=self._encoder)
