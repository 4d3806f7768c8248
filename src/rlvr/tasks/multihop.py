"""Multi-hop questions: search, read, search again, then answer and cite.

    assistant  retrieve_documents(query="county of Van Hook Township")
    tool       Document ID: 7
               # Van Hook Township, Mountrail County, North Dakota
               Van Hook Township is ...
    assistant  complete(reasoning="...", final_answer="Stanley", cited_doc_ids=["7", "12"])

Each episode has its own documents, search and notes (`Notes`); shared objects are immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from rlvr.data.multihop_sets import Library
from rlvr.data.problems import Problem
from rlvr.envs.tools import ToolError
from rlvr.retrieval.base import Document, NoAnswerError, Search
from rlvr.rewards.completion import Ids, Text
from rlvr.rewards.metrics import Metric
from rlvr.rewards.multihop import QaState, Rules, final_answer, official_scores
from rlvr.rewards.text import golds_of
from rlvr.types import Attempt, GradedAnswer, Message

TOOLS = ("retrieve_documents", "get_document", "list_documents", "complete")
MAX_LISTED = 100
"""Most documents that `list_documents` names."""
MAX_OUTPUT_CHARS = 50_000
"""Longest result of a tool call, in characters."""


@dataclass(kw_only=True)
class Notes(QaState):
    """The state of an episode: readable documents, and for the reward, those read."""

    documents: dict[str, Document]  # the question's own; with a corpus, those found
    library: Library | None
    wanted: Mapping[Hashable, str]
    search: Search
    question: tuple[Message, ...]  # the first prompt

    def find(self, name: str) -> Document | None:
        return self.documents.get(name) or (self.library.get(name) if self.library is not None else None)

    def note(self, document: Document) -> None:
        """Record that the model is shown this document."""
        self.retrieved[document.id] = None
        self.documents[document.id] = document
        name = None if self.library is None else self.wanted.get(self.library.key(document))
        if name is not None:
            self.support[document.id] = name
        self.trace.note("document", document.title, document.id in self.support, document.id)

    @property
    def distractors(self) -> Sequence[str]:
        return [document.title for document in self.documents.values() if document.id not in self.support]

    def reading(self, ids: Sequence[str]) -> tuple[Message, ...] | None:
        """The first prompt with only these documents below it; None if one does not exist."""
        documents = [self.find(name) for name in ids]
        if None in documents:
            return None
        *before, last = self.question
        shown = "\n\n".join([last.content, *(render(document) for document in documents if document is not None)])
        return (*before, replace(last, content=shown))

    def title(self, name: str) -> str:
        document = self.find(name)
        return "" if document is None else document.title


# -------------------------------------------------------------------------------------------------------- the tools


def retrieving(default: int, most: int) -> Callable[..., object]:
    async def retrieve_documents(query: str, *, top_n: int = default, state: Notes) -> str:
        if not query.strip():
            raise ToolError("the query is empty: write what to look for")
        state.trace.note("query", query)
        try:
            documents = await state.search(query, min(max(top_n, 1), most))
        except NoAnswerError:
            raise ToolError("the search service does not answer; try again, or go on without it") from None
        for document in documents:
            state.note(document)
        return "\n\n".join(map(render, documents)) or "No document has any of these words."

    retrieve_documents.__doc__ = f"""Find the documents that fit a query best.

    Args:
        query: What to look for, in words.
        top_n: How many documents to return, at most {most}.
    """
    return retrieve_documents


def get_document(doc_id: Text, state: Notes) -> str:
    """Read one document.

    Args:
        doc_id: The id of the document.
    """
    document = state.find(doc_id.strip())
    state.trace.note("query", "", None if document is not None else False, doc_id.strip())
    if document is None:
        raise ToolError(f"there is no document {doc_id[:40]!r}")
    state.note(document)
    return render(document)


def list_documents(state: Notes) -> str:
    """List the ids and titles of the documents."""
    listed = titles(tuple(state.documents.values())) or "none"
    if state.library is None:
        return listed
    known = f"There are {len(state.library):,} documents. " if state.library.is_known else ""
    return f"{known}Found so far:\n{listed}"


def complete(final_answer: Text, reasoning: Text = "", cited_doc_ids: Ids = []) -> str:  # noqa: B006
    """Give the final answer. This ends the task.

    Args:
        reasoning: How the answer follows from the documents.
        final_answer: The answer, as short as possible.
        cited_doc_ids: The ids of the documents that the answer rests on.
    """
    return "done"


def render(document: Document) -> str:
    return f"Document ID: {document.id}\n# {document.title}\n{document.text}"


def titles(documents: Sequence[Document]) -> str:
    """`7. Van Hook Township` per document, at most `MAX_LISTED`."""
    lines = [f"{document.id}. {document.title}" for document in documents[:MAX_LISTED]]
    more = len(documents) - MAX_LISTED
    return "\n".join([*lines, f"and {more:,} more"] if more > 0 else lines)


# ------------------------------------------------------------------------------------------------------- the metric


class OfficialAnswer(Metric):
    """Official exact match of the final answer. Votes: the answer as written."""

    rules: Rules

    async def grade(self, attempt: Attempt) -> GradedAnswer:
        completion = final_answer(attempt)
        if completion is None:
            return GradedAnswer(answer=None, correct=False)
        scores = official_scores(self.rules, completion.answer, golds_of(attempt.example))
        return GradedAnswer(answer=completion.answer, correct=scores.em == 1.0)


# ---------------------------------------------------------------------------------------------------- demonstrations


def demonstration(problem: Problem) -> tuple[Mapping[str, object], ...]:
    """Search for each supporting document by title, then answer and cite them; empty if none is known."""
    about = problem.metadata
    supporting = [document for document in about["documents"] if document.id in about["support"]]
    if not supporting:
        return ()
    searches = [{"name": "retrieve_documents", "arguments": {"query": document.title}} for document in supporting]
    answer = {
        "reasoning": f"It is in {' and '.join(document.title for document in supporting)}.",
        "final_answer": problem.answer,
        "cited_doc_ids": [document.id for document in supporting],
    }
    return (*searches, {"name": "complete", "arguments": answer})
