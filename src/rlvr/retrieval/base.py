"""Records of retrieval: documents, a corpus, search results."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from rlvr.data.documents import Document
from rlvr.errors import UserError


class RetrievalError(UserError):
    """A service stays down, or a search result is unusable: the run ends instead of continuing with reward 0."""


class NoAnswerError(RetrievalError):
    """A service did not answer one search: the tool tells the model, and the run continues."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """`Corpus(documents=StoredDocuments(...), folder=Path("~/.cache/rlvr/retrieval/musique-3f2a..."))`"""

    documents: Sequence[Document]
    folder: Path


def first_wrong(error: ValidationError) -> str:
    """`results.0.index: Input should be a valid integer`, for an answer of another program."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"


class Found(NamedTuple):
    """A document and its score, comparable within one answer only."""

    document: Document
    score: float


Search = Callable[[str, int], Awaitable[list[Document]]]
"""The search of one episode: (query, `top_n`) -> at most `top_n` documents, best first.

Results do not depend on other episodes. Raises `NoAnswerError` if a service does not answer, `RetrievalError` if it
stays down.
"""
