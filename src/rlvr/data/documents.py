"""A document: what questions come with, what is searched."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """`Document(id="3", title="Lyon", text="Lyon is a city in France.")`; an id is unique among its documents."""

    id: str
    title: str
    text: str

    @property
    def full(self) -> str:
        """The indexed text: `"Lyon\\nLyon is a city in France."`"""
        return f"{self.title}\n{self.text}"
