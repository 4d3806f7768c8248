"""What a retriever is: documents go in, an index answers queries, an episode gets a search of its own."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from rlvr.errors import UserError


class CorpusError(UserError):
    """A file of passages, or the folder made from it, is damaged. Names the place."""


class RetrievalError(UserError):
    """A service stays down, or answers what cannot be used: the run ends, it does not go on with reward 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """`Document(id="3", title="Lyon", text="Lyon is a city in France.")`; an id is unique among its documents."""

    id: str
    title: str
    text: str

    @property
    def full(self) -> str:
        """What is indexed: `"Lyon\\nLyon is a city in France."`"""
        return f"{self.title}\n{self.text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """`Corpus(documents=StoredDocuments(...), folder=Path("~/.cache/rlvr/retrieval/musique-3f2a..."))`"""

    documents: Sequence[Document]
    folder: Path


class Hit(NamedTuple):
    """A document's place in `Index.documents`, and how well it fits: comparable within one answer only."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    score: float


class Index(Protocol):
    """Documents that can be searched. Read-only once made, so any number of threads may search at once."""

    documents: Sequence[Document]

    def search(self, queries: Sequence[str], top_n: int) -> list[list[Hit]]:
        """For each query at most `top_n` hits, best first; equal scores by index.

        A query without words has no hits; a long one is cut, see `text.MAX_QUERY_CHARS`.
        """
        ...


class Indexer(Protocol):
    """Makes indexes of one kind."""

    def build(self, documents: Sequence[Document]) -> Index:
        """Over a few documents, in memory."""
        ...

    def open(self, corpus: Corpus) -> Index:
        """Over a corpus; built and stored in its folder if that was not done before with the same settings."""
        ...


class Search(Protocol):
    """What one episode may search. Nothing that another episode does can change what it finds."""

    async def __call__(self, query: str, top_n: int) -> list[Document]:
        """At most `top_n` documents, best first. Raises `RetrievalError` where a service stays down."""
        ...


class Retriever(Protocol):
    """Makes searches: over a question's own documents, or over a corpus which all questions share."""

    def over(self, key: str, documents: Sequence[Document], supporting: Collection[str]) -> Search:
        """A search for one question.

        `documents` are the question's own, and `key` names that set (the example's id and what noise left): the same
        key always comes with the same documents, so that their index can be kept for the rest of a group.
        `supporting` are the ids of the documents that hold the answer; only the oracle looks at them. With a corpus,
        `documents` are searched by the oracle only.
        """
        ...

    async def close(self) -> None:
        """Let connections go."""
        ...
