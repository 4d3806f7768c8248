"""The oracle."""

from collections.abc import Collection, Sequence
from typing import ClassVar

from rlvr.registry import register
from rlvr.retrieval.base import Document, Search
from rlvr.retrieval.retriever import Retriever


@register("retriever", "golden")
class Golden(Retriever):
    """The documents with the answer, for any query: shows whether retrieval is the problem."""

    is_local: ClassVar[bool] = False
    returns_all: ClassVar[bool] = True

    def search(self, query: str, documents: Sequence[Document], top_n: int) -> list[Document]:
        return list(documents[: max(top_n, 0)])

    def over(self, documents: Sequence[Document], supporting: Collection[str]) -> Search:
        """The supporting documents in the question's order, also for an empty query."""
        found = [document for document in documents if document.id in supporting]

        async def search(query: str, top_n: int) -> list[Document]:
            return self.search(query, found, top_n)

        return search
