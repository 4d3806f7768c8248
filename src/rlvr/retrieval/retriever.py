"""The retriever interface, and retrievers by name: `open_retriever("semantic/BAAI/bge-small-en-v1.5", settings)`."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Collection, Iterable, Sequence
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import PrivateAttr, ValidationError

from rlvr import registry
from rlvr.errors import ConfigError, UserError, suggestion
from rlvr.imports import described
from rlvr.printable import ascii_text
from rlvr.progress import progress
from rlvr.retrieval.base import Corpus, Document, Found, RetrievalError, Search
from rlvr.retrieval.settings import RetrievalSettings
from rlvr.retrieval.text import MAX_QUERY_CHARS, WORD, readable
from rlvr.settings import Component, validated
from rlvr.threads import CallThreads

if TYPE_CHECKING:
    from rlvr.retrieval.ranking import Index

KEPT_INDEXES = 512


class Retriever(Component, ABC):
    """Finds documents among those of a question, or in a corpus shared by all questions.

    Your own retriever needs `search`. Its fields are its settings, `task.retrieval.own.*`; runtime state goes into
    private attributes (`_client: Any = None`), set by `load`.
    """

    group: ClassVar[str] = "retriever"
    takes_model: ClassVar[bool] = False  # whether its name takes an argument: `semantic/MODEL`
    uses: ClassVar[frozenset[str]] = frozenset()
    """The fields of `RetrievalSettings` it reads, besides scope, corpus, index_dir and own."""
    is_local: ClassVar[bool] = True
    """Whether it searches any given documents: the oracle and the services do not."""
    is_instant: ClassVar[bool] = False
    """Whether searching a question's own documents takes at most a millisecond and needs no thread."""
    returns_all: ClassVar[bool] = False
    """Whether it returns all its results, at most `task.max_top_n`, regardless of `task.top_n`."""

    _retrieval: RetrievalSettings = PrivateAttr(default_factory=RetrievalSettings)
    _model: str | None = None
    _corpus: Corpus | None = None
    _threads: CallThreads = PrivateAttr(default_factory=CallThreads)

    @property
    def retrieval(self) -> RetrievalSettings:
        return self._retrieval

    @property
    def model(self) -> str | None:
        return self._model

    @property
    def corpus(self) -> Corpus | None:
        return self._corpus

    def check(self, tool_timeout_s: float = math.inf) -> None:
        """Raise ConfigError for settings it does not support. `tool_timeout_s` limits the calls of its tool."""
        if self.retrieval.scope == "corpus" and self.retrieval.corpus is None:
            raise ConfigError(
                f"task.retrieval.scope=corpus: needs a file of passages with task.retriever={self.name}; set "
                "task.retrieval.corpus."
            )

    def load(self) -> None:
        """Load its model, or check its service, before the first search."""

    def open(self) -> Self:
        """Prepare for searches: load models, index a corpus.

        Raises:
            ConfigError: missing model, corpus or address, or conflicting settings.
            DataError: the corpus or its stored index is damaged.
        """
        self.check()
        try:
            self.load()
        except Exception as error:
            if isinstance(error, UserError) or type(self).__module__.startswith("rlvr."):
                raise
            raise ConfigError(f"task.retriever={self.name}: its load failed ({described(error)}).") from error
        if self.is_local and self.retrieval.corpus is not None and self.retrieval.scope == "corpus":
            from rlvr.retrieval.corpus import open_corpus

            with progress("opening the corpus"):
                self._open_corpus(open_corpus(self.retrieval.corpus, self.retrieval.index_dir))
        return self

    def _open_corpus(self, corpus: Corpus) -> None:
        self._corpus = Corpus(documents=tuple(corpus.documents), folder=corpus.folder)

    @abstractmethod
    def search(
        self, query: str, documents: Sequence[Document], top_n: int
    ) -> Sequence[Document | Found] | Awaitable[Sequence[Document | Found]]:
        """At most `top_n` (1 or more) of the documents, best first, optionally with scores.

        The query has a word and at most `text.MAX_QUERY_CHARS`. Several threads may search at once; an asynchronous
        method runs on the event loop. An exception ends the run: it must not become episodes without results.
        """

    def over(self, documents: Sequence[Document], supporting: Collection[str]) -> Search:
        """A search for one question: over its own documents, or with scope=corpus over the corpus.

        `supporting` are the ids of the documents with the answer; only the oracle uses them.
        """
        searched = tuple(documents) if self._corpus is None else self._corpus.documents

        async def search(query: str, top_n: int) -> list[Document]:
            return [document for document, _ in await self.ranked(query, searched, top_n)]

        return search

    async def ranked(self, query: str, documents: Sequence[Document], top_n: int) -> list[Found]:
        """Search results with scores: 1, 1/2, 1/3, ... if the retriever gives none.

        Raises RetrievalError if the search fails, or returns anything but documents.
        """
        query = readable(query[:MAX_QUERY_CHARS])
        if top_n < 1 or not WORD.search(query):
            return []
        results: Any
        try:
            if inspect.iscoroutinefunction(self.search) or (self.is_instant and self._corpus is None):
                results = self.search(query, documents, top_n)
            else:
                results = await self._threads.run(self.name, partial(self.search, query, documents, top_n))
            results = await results if inspect.isawaitable(results) else results
            results = (
                list(results) if isinstance(results, Iterable) and not isinstance(results, str | dict) else results
            )
        except UserError:
            raise
        except Exception as error:  # user code
            said = ascii_text(described(error, own_only=True))
            raise RetrievalError(f"task.retriever={self.name}: its search failed ({said}).") from error
        if not self._fits(results, documents):
            raise RetrievalError(
                f"task.retriever={self.name}: its search returned {ascii_text(f'{results!r:.80}')}; it must return a "
                "list of documents out of those that it is given (set is_local = False in a class that finds others)."
            )
        ranked = [one if isinstance(one, Found) else Found(one, 1 / rank) for rank, one in enumerate(results, start=1)]
        return ranked[:top_n]

    def _fits(self, results: Any, documents: Sequence[Document]) -> bool:
        """Whether a search returned allowed documents. The `Found` of our own indexes are not checked."""
        if not isinstance(results, list):
            return False
        if not all(isinstance(one.document if isinstance(one, Found) else one, Document) for one in results):
            return False
        if not self.is_local or all(isinstance(one, Found) for one in results):
            return True
        is_corpus = self._corpus is not None and documents is self._corpus.documents
        known = self._corpus_ids if is_corpus else {document.id for document in documents}
        return all(one.id in known for one in results if isinstance(one, Document))

    @cached_property
    def _corpus_ids(self) -> frozenset[str]:
        assert self._corpus is not None
        return frozenset(document.id for document in self._corpus.documents)


class IndexRetriever(Retriever, ABC):
    """A retriever that indexes documents before it searches. Keeps the indexes of the last `KEPT_INDEXES` questions."""

    _corpus_index: Index | None = None

    @abstractmethod
    def index(self, documents: Sequence[Document]) -> Index:
        """An index over a few documents, in memory."""

    def corpus_index(self, corpus: Corpus) -> Index:
        """An index over a corpus; a slow one is stored in the corpus's folder and reused."""
        return self.index(corpus.documents)

    def search(self, query: str, documents: Sequence[Document], top_n: int) -> list[Found]:
        if self._corpus is not None and documents is self._corpus.documents:
            assert self._corpus_index is not None
            return self._corpus_index.search(query, top_n)
        # a question's documents are a tuple and recur; those of a request to our server do not
        index = self.kept_index(documents) if isinstance(documents, tuple) else self.index(documents)
        return index.search(query, top_n)

    @cached_property
    def kept_index(self) -> Any:
        """`index` with a cache. Two threads may build the same index twice."""
        return lru_cache(KEPT_INDEXES)(self.index)

    def _open_corpus(self, corpus: Corpus) -> None:
        self._corpus, self._corpus_index = corpus, self.corpus_index(corpus)


def find_retriever(name: str, retrieval: RetrievalSettings) -> Retriever:
    """The retriever `name` with its settings, without loading: `bm25`, `semantic/MODEL`, `my_search:Elastic`.

    Raises ConfigError for an unknown name and for wrong `task.retrieval.own`.
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
        said = f"{first['msg'].replace('Input should', 'must')}; {kind} has {', '.join(known) or 'no settings'}."
        if known and key not in known:
            said = f"there is no such key; {suggestion(key, known)}"
        raise ConfigError(f"task.retrieval.own.{key}={retrieval.own.get(key)}: {said}") from None
    retriever._retrieval, retriever._model = retrieval, model or None
    return retriever


def open_retriever(name: str, retrieval: RetrievalSettings) -> Retriever:
    return find_retriever(name, retrieval).open()
