"""The oracle: the documents that hold the answer, whatever is asked; it tells whether retrieval is the problem."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rlvr.retrieval.base import Document, Search


@dataclass(frozen=True, kw_only=True)
class GoldenSearch:
    """A question's supporting documents, in the order in which it has them."""

    documents: Sequence[Document]

    async def __call__(self, query: str, top_n: int) -> list[Document]:
        """The first `top_n` of them."""
        return list(self.documents[: max(top_n, 0)])


class GoldenRetriever:
    """Gives each question its supporting documents."""

    def over(self, key: str, documents: Sequence[Document], supporting: Collection[str]) -> Search:
        """See `Retriever.over`."""
        return GoldenSearch(documents=[document for document in documents if document.id in supporting])
