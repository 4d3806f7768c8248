"""The passages of a corpus, by id, and those among them that support an answer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

from rlvr.retrieval.base import Document
from rlvr.tasks.rows import clean

Match = Literal["title", "title_and_text"]


class Library:
    """Passages that all questions share; two may have one title. Read once at the start, then read-only.

    Of an external service nothing is known before it is asked: `Library(None, ...)`.
    """

    def __init__(self, documents: Sequence[Document] | None, match: Match) -> None:
        """`match` says what makes a passage the supporting one: its title, or its title and text."""
        self.is_known = documents is not None
        self._documents = documents or ()
        self._match: Match = match
        self._places: dict[str, int] = {}
        self._by_key: dict[int, list[int]] = {}  # by hash: texts would be in memory a second time
        for place, document in enumerate(self._documents):
            self._places[document.id] = place
            self._by_key.setdefault(hash(self.key(document)), []).append(place)

    def __len__(self) -> int:
        return len(self._documents)

    def key(self, document: Document) -> Hashable:
        """What has to be equal for a passage to be the supporting one."""
        return passage_key(document.title, document.text, self._match)

    def get(self, name: str) -> Document | None:
        """The passage with this id, if it is known."""
        place = self._places.get(name)
        return None if place is None else self._documents[place]

    def matching(self, wanted: Mapping[Hashable, str]) -> tuple[tuple[Document, ...], dict[str, str]]:
        """The passages with some keys and, by their ids, the values that `wanted` gives them.

        `{("Lyon", "Lyon is ..."): "3"}` -> `(Document(id="m17", ...),)` and `{"m17": "3"}`.
        """
        found: dict[str, Document] = {}
        support: dict[str, str] = {}
        for key, name in wanted.items():
            for place in self._by_key.get(hash(key), ()):
                document = self._documents[place]
                if self.key(document) == key:
                    found[document.id], support[document.id] = document, name
        return tuple(found.values()), support


def passage_key(title: str, text: str, match: Match) -> Hashable:
    """The key of `Library` for a passage."""
    return clean(title) if match == "title" else (clean(title), clean(text))
