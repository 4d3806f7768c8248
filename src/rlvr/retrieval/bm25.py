"""BM25 (Robertson and Zaragoza 2009) in Lucene's variant, computed by `bm25s` (arXiv:2407.03618)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from rlvr.registry import register
from rlvr.retrieval.base import Corpus, CorpusError, Document, Hits
from rlvr.retrieval.retriever import IndexRetriever
from rlvr.retrieval.settings import RetrievalSettings
from rlvr.retrieval.store import damaged, made
from rlvr.retrieval.text import bounded, make_stemmer, words

if TYPE_CHECKING:
    from rlvr.retrieval.ranking import Scores

K1, B = 1.5, 0.75
FORMAT = "2"
"""Of stored indexes: part of their name."""
_importing = threading.Lock()

Stem = Callable[[str], str]


class Bm25Index:
    """Documents with their scores for each word.

    The score of a document is the sum over the query's words (repeated ones count again) of
    `ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 * (1 - b + b * length / mean length))`; a document that shares
    no word with the query is no hit.
    """

    def __init__(self, *, documents: Sequence[Document], settings: RetrievalSettings, stem: Stem, bm25: Any) -> None:
        self.documents = documents
        self._settings = settings
        self._stem = stem
        self._bm25 = bm25  # bm25s.BM25

    def save(self, folder: Path) -> None:
        """Write arrays (.npy) and vocabulary (.json) into `folder`; at least one document must have a word."""
        self._bm25.save(folder, allow_pickle=False, show_progress=False)

    @property
    def has_words(self) -> bool:
        """Whether any document has one."""
        return bool(self._bm25.vocab_dict)

    def word_ids(self, query: str) -> list[int]:
        """Of the query's words that some document has."""
        vocabulary, stem = self._bm25.vocab_dict, self._stem
        found = [vocabulary.get(stem(word)) for word in words(bounded(query), self._settings)]
        return [word_id for word_id in found if word_id is not None]

    def scores(self, query: str) -> Scores:
        """[N], float32; 0 exactly where a document shares no word with the query: every word adds more than 0."""
        import numpy as np

        ids = self.word_ids(query)
        return self._bm25.get_scores_from_ids(ids) if ids else np.zeros(len(self.documents), dtype=np.float32)

    def search(self, queries: Sequence[str], top_n: int) -> list[Hits]:
        """See `Index.search`."""
        from rlvr.retrieval.ranking import best

        return [best(self.scores(query), top_n, above=0) for query in queries]


@register("retriever", "bm25", "lexical")
class Bm25(IndexRetriever):
    """Common words: BM25 with k1 1.5 and b 0.75."""

    uses: ClassVar[frozenset[str]] = frozenset({"stem", "remove_stop_words"})
    is_instant: ClassVar[bool] = True
    _stem: Any = None

    def load(self) -> None:
        """The stemmer."""
        self._stem = make_stemmer(self.retrieval)

    def index(self, documents: Sequence[Document]) -> Bm25Index:
        """A few milliseconds for the paragraphs of a question."""
        vocabulary: dict[str, int] = {}
        ids = [
            [vocabulary.setdefault(self._stem(word), len(vocabulary)) for word in words(document.full, self.retrieval)]
            for document in documents
        ]
        bm25 = _bm25s().BM25(method="lucene", k1=K1, b=B, int_dtype="int64")  # numpy adds faster by its own integers
        if vocabulary:
            bm25.index((ids, vocabulary), create_empty_token=False, show_progress=False)
        else:  # bm25s cannot index nothing
            bm25.vocab_dict = {}
        return self._index(documents, bm25)

    def corpus_index(self, corpus: Corpus) -> Bm25Index:
        """Seconds for tens of thousands of passages. What was stored is mapped into memory.

        Raises:
            CorpusError: no passage has a word, or the stored index is damaged.
        """
        import numpy as np

        settings = self.retrieval
        name = "bm25-" + ("stem" if settings.stem else "plain") + "-stop" * settings.remove_stop_words
        folder = made(corpus.folder / f"{name}-{FORMAT}", lambda draft: self._store(corpus, draft))
        try:
            bm25 = _bm25s().BM25.load(folder, mmap=True, allow_pickle=False, show_progress=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged(folder, error) from None
        if bm25.scores["num_docs"] != len(corpus.documents):
            raise damaged(folder, "it is of another corpus")
        # A memory map is a class of its own whose every slice costs microseconds; a plain view of it does not.
        for array in ("data", "indices", "indptr"):
            bm25.scores[array] = np.asarray(bm25.scores[array])
        return self._index(corpus.documents, bm25)

    def _index(self, documents: Sequence[Document], bm25: Any) -> Bm25Index:
        return Bm25Index(documents=documents, settings=self.retrieval, stem=self._stem, bm25=bm25)

    def _store(self, corpus: Corpus, draft: Path) -> None:
        index = self.index(corpus.documents)
        if not index.has_words:
            raise CorpusError(f"no passage of {corpus.folder.name} has a word of two letters: bm25 cannot search it.")
        index.save(draft)


def _bm25s() -> ModuleType:
    """The module. On import it would start JAX where that is installed, which takes most of a GPU's memory."""
    with _importing:
        if "bm25s" not in sys.modules:
            hidden = "jax.lax" if "jax" in sys.modules else "jax"
            before = sys.modules.get(hidden)
            sys.modules[hidden] = None  # type: ignore[assignment]
            try:
                import bm25s
            finally:
                del sys.modules[hidden]
                if before is not None:
                    sys.modules[hidden] = before
            return bm25s
        import bm25s

        return bm25s
