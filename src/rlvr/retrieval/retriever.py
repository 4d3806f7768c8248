"""What a retriever is, and retrievers by name: `open_retriever("semantic/BAAI/bge-small-en-v1.5", settings)`."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import PrivateAttr, ValidationError

from rlvr import registry
from rlvr.errors import ConfigError, UserError, suggestion
from rlvr.retrieval.base import Corpus, Document, Index, RetrievalError, Search
from rlvr.retrieval.settings import RetrievalSettings
from rlvr.retrieval.text import bounded, has_words
from rlvr.settings import Component, validated

KEPT_INDEXES = 512


class Found(NamedTuple):
    """A document, and how well it fits: comparable within one answer only."""

    document: Document
    score: float


class Retriever(Component, ABC):
    """Finds documents among those of a question, or in a corpus that all questions share.

    A retriever of your own needs `search`. Its fields are its settings, `task.retrieval.own.*`; what it needs while it
    runs is kept in private attributes (`_client: Any = None`), which `load` sets.
    """

    group: ClassVar[str] = "retriever"
    takes_model: ClassVar[bool] = False
    """Whether its name may carry an argument: `semantic/MODEL`."""
    uses: ClassVar[frozenset[str]] = frozenset()
    """The fields of `RetrievalSettings` that it reads, beside scope, corpus, index_dir and own."""
    is_local: ClassVar[bool] = True
    """Whether it searches any documents that it is given: the oracle and the services do not."""
    is_instant: ClassVar[bool] = False
    """Whether a search of a question's own documents takes a millisecond at most, and so needs no thread."""
    gives_all: ClassVar[bool] = False
    """Whether it gives all that it finds, at most `task.max_top_n`, whatever `task.top_n` says."""

    _retrieval: RetrievalSettings = PrivateAttr(default_factory=RetrievalSettings)
    _model: str | None = None
    _corpus: Corpus | None = None

    @property
    def retrieval(self) -> RetrievalSettings:
        """The settings that retrievers share."""
        return self._retrieval

    @property
    def model(self) -> str | None:
        """What follows the slash of its name: MODEL of `semantic/MODEL`."""
        return self._model

    @property
    def corpus(self) -> Corpus | None:
        """With scope=corpus, once it is open, the documents of all questions."""
        return self._corpus

    def check(self, tool_timeout_s: float = math.inf) -> None:
        """Raise ConfigError for settings that it cannot work with. The calls of its tool are given up after a time."""
        if self.retrieval.scope == "corpus" and self.retrieval.corpus is None:
            raise ConfigError(
                f"task.retrieval.scope=corpus: needs a file of passages with task.retriever={self.name}; set "
                "task.retrieval.corpus."
            )

    def load(self) -> None:
        """Load its model, or look for its service, before the first search."""

    def open(self) -> Self:
        """Make it ready to search: models are loaded, and a corpus is indexed.

        Raises:
            ConfigError: no such model, corpus or address, or settings that do not go together.
            CorpusError: the corpus or its stored index is damaged.
        """
        self.check()
        self.load()
        if self.is_local and self.retrieval.corpus is not None and self.retrieval.scope == "corpus":
            from rlvr.retrieval.corpus import open_corpus

            index_dir = None if self.retrieval.index_dir is None else Path(self.retrieval.index_dir)
            self._open_corpus(open_corpus(Path(self.retrieval.corpus).expanduser(), index_dir))
        return self

    def _open_corpus(self, corpus: Corpus) -> None:
        self._corpus = Corpus(documents=tuple(corpus.documents), folder=corpus.folder)

    @abstractmethod
    def search(
        self, query: str, documents: Sequence[Document], top_n: int
    ) -> Sequence[Document] | Awaitable[Sequence[Document]]:
        """At most `top_n` (1 or more) of the documents, best first.

        The query has a word and at most `text.MAX_QUERY_CHARS`. Several threads may search at once; an asynchronous
        method runs on the event loop. An exception ends the run: it must not turn into episodes that find nothing.
        """

    def over(self, documents: Sequence[Document], supporting: Collection[str]) -> Search:
        """A search for one question: over its own documents, or with scope=corpus over the corpus.

        `supporting` are the ids of the documents that hold the answer; only the oracle looks at them.
        """
        return partial(self._find, tuple(documents) if self._corpus is None else self._corpus.documents)

    async def _find(self, documents: Sequence[Document], query: str, top_n: int) -> list[Document]:
        query = bounded(query)
        if top_n < 1 or not has_words(query):
            return []
        with self._must_not_fail():
            if inspect.iscoroutinefunction(self.search) or (self.is_instant and self._corpus is None):
                found = self.search(query, documents, top_n)
            else:
                found = await asyncio.to_thread(self.search, query, documents, top_n)
            return list(await found if inspect.isawaitable(found) else found)[:top_n]

    def ranked(self, query: str, documents: Sequence[Document], top_n: int) -> list[Found]:
        """What a search finds, with scores: 1, 1/2, 1/3, ... where the retriever gives none."""
        found = asyncio.run(self._find(documents, query, top_n))
        return [Found(document, 1 / rank) for rank, document in enumerate(found, start=1)]

    @contextmanager
    def _must_not_fail(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # foreign code
            raise RetrievalError(
                f"task.retriever={self.name}: its search failed ({type(error).__name__}: {str(error)[:200]!a})."
            ) from error


class IndexRetriever(Retriever, ABC):
    """A retriever that indexes documents before it searches. The last `KEPT_INDEXES` questions' indexes are kept."""

    _corpus_index: Index | None = None
    _indexes: OrderedDict[tuple[Document, ...], Index] = PrivateAttr(default_factory=OrderedDict)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)  # of the dictionary: an index may be made twice

    @abstractmethod
    def index(self, documents: Sequence[Document]) -> Index:
        """An index over a few documents, in memory."""

    def corpus_index(self, corpus: Corpus) -> Index:
        """An index over a corpus; one that takes long is stored in the corpus's folder, and read from there."""
        return self.index(corpus.documents)

    def search(self, query: str, documents: Sequence[Document], top_n: int) -> list[Document]:
        """See `Retriever.search`."""
        index = self._kept_index(documents)
        return [index.documents[hit.index] for hit in index.search([query], top_n)[0]]

    def ranked(self, query: str, documents: Sequence[Document], top_n: int) -> list[Found]:
        """See `Retriever.ranked`. An index of other documents than the corpus is not kept."""
        index = self._index_of_corpus(documents) or self.index(documents)
        return [Found(index.documents[hit.index], hit.score) for hit in index.search([query], top_n)[0]]

    def _open_corpus(self, corpus: Corpus) -> None:
        self._corpus, self._corpus_index = corpus, self.corpus_index(corpus)

    def _index_of_corpus(self, documents: Sequence[Document]) -> Index | None:
        return self._corpus_index if self._corpus is not None and documents is self._corpus.documents else None

    def _kept_index(self, documents: Sequence[Document]) -> Index:
        if (index := self._index_of_corpus(documents)) is not None:
            return index
        key = tuple(documents)
        with self._lock:
            if (index := self._indexes.get(key)) is not None:
                self._indexes.move_to_end(key)
                return index
        index = self.index(key)
        with self._lock:
            self._indexes[key] = index
            if len(self._indexes) > KEPT_INDEXES:
                self._indexes.popitem(last=False)
        return index


def find_retriever(name: str, retrieval: RetrievalSettings) -> Retriever:
    """The retriever `name` with its settings, nothing loaded: `bm25`, `semantic/MODEL`, `my_search:Elastic`.

    Raises ConfigError for a name that is none, and for wrong `task.retrieval.own`.
    """
    kind, slash, model = name.partition("/")
    component = registry.find("retriever", kind)
    if slash and not (model and component.takes_model):
        forms = f"{kind} or {kind}/MODEL" if component.takes_model else kind
        raise ConfigError(f"task.retriever={name}: there is no such retriever; write {forms}.")
    try:
        retriever = validated(component, retrieval.own)
    except ValidationError as error:
        first = error.errors()[0]
        key, known = ".".join(map(str, first["loc"])), list(component.model_fields)
        said = f"{first['msg'].replace('Input should', 'must')}; {kind} has {', '.join(known)}."
        if key not in known:
            said = f"there is no such key; {suggestion(key, known) if known else f'{kind} has no settings.'}"
        raise ConfigError(f"task.retrieval.own.{key}={retrieval.own.get(key)}: {said}") from None
    retriever._retrieval, retriever._model = retrieval, model or None
    return retriever


def open_retriever(name: str, retrieval: RetrievalSettings) -> Retriever:
    """`find_retriever`, ready to search; see `Retriever.open`."""
    return find_retriever(name, retrieval).open()
