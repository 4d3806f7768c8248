"""BM25 (Robertson and Zaragoza 2009) in Lucene's variant, computed by `bm25s` (arXiv:2407.03618)."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from rlvr.data.rows import DataError
from rlvr.progress import progress
from rlvr.registry import register
from rlvr.retrieval.base import Corpus, Document
from rlvr.retrieval.corpus import damaged, made
from rlvr.retrieval.ranking import Index, Scores
from rlvr.retrieval.retriever import IndexRetriever
from rlvr.retrieval.text import make_stemmer, words

K1, B = 1.5, 0.75
SHOWN_EVERY = 500  # passages
FORMAT = "2"  # version of stored indexes, part of their name


class Bm25Index(Index):
    """Documents with their scores for each word.

    The score of a document is the sum over the query's words (repeated ones count again) of
    `ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 * (1 - b + b * length / mean length))`; a document without any
    word of the query is no hit.
    """

    floor = 0.0

    def __init__(self, documents: Sequence[Document], *, split: Callable[[str], list[str]], bm25: Any) -> None:
        super().__init__(documents)
        self.split, self._bm25 = split, bm25  # bm25s.BM25

    def scores(self, query: str) -> Scores:
        vocabulary = self._bm25.vocab_dict
        ids = [vocabulary[word] for word in self.split(query) if word in vocabulary]
        return self._bm25.get_scores_from_ids(ids) if ids else np.zeros(len(self.documents), dtype=np.float32)


@register("retriever", "bm25", "lexical")
class Bm25(IndexRetriever):
    """Common words: BM25 with k1 1.5 and b 0.75."""

    uses: ClassVar[frozenset[str]] = frozenset({"stem", "remove_stop_words"})
    is_instant: ClassVar[bool] = True
    _stem: Any = None
    _bm25s: Any = None

    def load(self) -> None:
        self._bm25s, self._stem = _library(), make_stemmer(self.retrieval)

    def index(self, documents: Sequence[Document]) -> Bm25Index:
        return Bm25Index(documents, split=self._split, bm25=self._counted(documents))

    def corpus_index(self, corpus: Corpus) -> Bm25Index:
        """Takes seconds for tens of thousands of passages. A stored index is mapped into memory.

        DataError: no passage has a word, or the stored index is damaged.
        """
        settings = self.retrieval
        name = "bm25-" + ("stem" if settings.stem else "plain") + "-stop" * settings.remove_stop_words
        folder = made(corpus.folder / f"{name}-{FORMAT}", lambda draft: self._store(corpus, draft))
        try:
            bm25 = self._bm25s.BM25.load(folder, mmap=True, allow_pickle=False, show_progress=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged(folder, error) from None
        if bm25.scores["num_docs"] != len(corpus.documents):
            raise damaged(folder, "it is of another corpus")
        # every slice of a memory map costs microseconds; slices of a plain view do not
        for array in ("data", "indices", "indptr"):
            bm25.scores[array] = np.asarray(bm25.scores[array])
        return Bm25Index(corpus.documents, split=self._split, bm25=bm25)

    def _split(self, text: str) -> list[str]:
        stem = self._stem  # a private attribute of a pydantic model: slow to look up
        return [stem(word) for word in words(text, self.retrieval)]

    def _counted(self, documents: Sequence[Document], on_progress: Callable[[int, int], None] | None = None) -> Any:
        vocabulary: dict[str, int] = {}
        ids: list[list[int]] = []
        for document in documents:
            ids.append([vocabulary.setdefault(word, len(vocabulary)) for word in self._split(document.full)])
            if on_progress is not None and len(ids) % SHOWN_EVERY == 0:
                on_progress(len(ids), len(documents))
        bm25 = self._bm25s.BM25(method="lucene", k1=K1, b=B, int_dtype="int64")  # numpy indexes fastest so
        if vocabulary:
            bm25.index((ids, vocabulary), create_empty_token=False, show_progress=False)
        else:  # bm25s cannot index nothing
            bm25.vocab_dict = {}
        return bm25

    def _store(self, corpus: Corpus, draft: Path) -> None:
        with progress("counting words") as on_progress:
            bm25 = self._counted(corpus.documents, on_progress)
        if not bm25.vocab_dict:
            raise DataError(f"no passage of {corpus.folder.name} has a word of two letters: bm25 cannot search it.")
        bm25.save(draft, allow_pickle=False, show_progress=False)


def _library() -> ModuleType:
    """Import bm25s without JAX, which would take most of a GPU's memory."""
    before = sys.modules.get("jax.lax")
    sys.modules["jax.lax"] = None  # type: ignore[assignment]
    try:
        import bm25s
    finally:
        del sys.modules["jax.lax"]
        if before is not None:
            sys.modules["jax.lax"] = before
    return bm25s
