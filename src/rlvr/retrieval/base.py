"""Records of retrieval: documents, a corpus, the hits of an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, overload

from rlvr.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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


class Hits(Sequence[Hit]):
    """The hits of one query, best first: indices [K] and scores [K]; a `Hit` is made when it is looked at.

    A thousand queries with a hundred hits each would spend most of their time on making 100,000 small objects.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, indices: npt.NDArray[np.int64], scores: npt.NDArray[np.float32]) -> None:
        self.indices = indices
        self.scores = scores

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> Hits: ...
    def __getitem__(self, place: int | slice) -> Hit | Hits:
        if isinstance(place, slice):
            return Hits(self.indices[place], self.scores[place])
        return Hit(int(self.indices[place]), float(self.scores[place]))

    def __eq__(self, other: object) -> bool:
        """With any sequence of hits."""
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    def __repr__(self) -> str:
        return repr(list(self))


class Index(Protocol):
    """Documents that can be searched. Read-only once made, so any number of threads may search at once."""

    documents: Sequence[Document]

    def search(self, queries: Sequence[str], top_n: int) -> list[Hits]:
        """For each query at most `top_n` hits, best first; equal scores by index.

        A query without words has no hits; a long one is cut, see `text.MAX_QUERY_CHARS`.
        """
        ...


class Search(Protocol):
    """The search of one episode. What other episodes do never changes what it finds."""

    async def __call__(self, query: str, top_n: int) -> list[Document]:
        """At most `top_n` documents, best first. Raises `RetrievalError` where a service stays down."""
        ...
