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
from typing import TYPE_CHECKING

from rlvr.data.multihop_sets import Library
from rlvr.data.problems import Problem
from rlvr.envs.tools import Tool, ToolError, load_tool, make_tool
from rlvr.errors import UserError
from rlvr.retrieval.base import Document, NoAnswerError, Search
from rlvr.retrieval.retriever import open_retriever
from rlvr.rewards.base import Verifier
from rlvr.rewards.completion import ARGUMENTS, Ids, Text
from rlvr.rewards.metrics import Metric
from rlvr.rewards.multihop import QaState, Rules, final_answer, official_scores, potential
from rlvr.rewards.text import golds_of
from rlvr.tasks.prompting import DOCUMENTS, PARAGRAPHS
from rlvr.tasks.tool_play import ToolEnvironments
from rlvr.types import Attempt, Example, GradedAnswer, Message

if TYPE_CHECKING:
    from rlvr.tasks.base import Functions
    from rlvr.tasks.multihop_settings import MultiHopSettings

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
        found = [self.find(name) for name in ids]
        if None in found:
            return None
        *before, last = self.question
        shown = "\n\n".join([last.content, *(render(document) for document in found if document is not None)])
        return (*before, replace(last, content=shown))

    def title(self, name: str) -> str:
        document = self.find(name)
        return "" if document is None else document.title


# -------------------------------------------------------------------------------------------------------- the tools


def make_tools(settings: MultiHopSettings, functions: Functions) -> list[Tool]:
    """The tools of the settings, in order; `module:function` is a user's tool."""
    timeout_s = settings.tool_timeout_s
    # the oracle may return all: the first two of four documents would hide the others
    retrieve = _retrieve(settings.max_top_n if settings.returns_all else settings.top_n, settings.max_top_n)
    made = {
        "retrieve_documents": make_tool(retrieve, timeout_s=timeout_s, max_output_chars=MAX_OUTPUT_CHARS),
        "get_document": make_tool(get_document, timeout_s=timeout_s, inline=True, max_output_chars=MAX_OUTPUT_CHARS),
        "list_documents": make_tool(list_documents, timeout_s=timeout_s, inline=True),
        "complete": make_tool(complete, timeout_s=timeout_s, inline=True, final=True),
    }
    # the model is told that all of these are required, in this order, although less is accepted
    parameters = made["complete"].schema["function"]["parameters"]
    for name in ARGUMENTS:
        parameters["properties"][name] = parameters["properties"].pop(name)
        parameters["properties"][name].pop("default", None)
    parameters["required"] = list(ARGUMENTS)
    for name in set(settings.tools) - {*made}:
        function = functions.get(name)
        made[name] = (
            load_tool(name, timeout_s=timeout_s) if function is None else make_tool(function, timeout_s=timeout_s)
        )
    return [made[name] for name in settings.tools]


def _retrieve(default: int, most: int) -> Callable[..., object]:
    async def retrieve_documents(query: str, *, top_n: int = default, state: Notes) -> str:
        if not query.strip():
            raise ToolError("the query is empty: write what to look for")
        state.trace.note("query", query)
        try:
            found = await state.search(query, min(max(top_n, 1), most))
        except NoAnswerError:
            raise ToolError("the search service does not answer; try again, or go on without it") from None
        for document in found:
            state.note(document)
        return "\n\n".join(map(render, found)) or "No document has any of these words."

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


# ----------------------------------------------------------------------------------------------- episodes and metric


class MultiHopEnvs(ToolEnvironments):
    def __init__(self, settings: MultiHopSettings, verifier: Verifier, functions: Functions) -> None:
        super().__init__(
            make_tools(settings, functions),
            verifier,
            state=self.notes,
            max_turns=settings.num_turns,
            potential=potential(settings.progress_coef) if settings.progress_coef > 0 else None,
            reminds=settings.no_call == "remind",
        )
        self.settings, self._library = settings, settings.library
        self._retriever = open_retriever(settings.retriever, settings.retrieval)

    def fields(self, problem: Problem) -> Mapping[str, str]:
        """`{documents}` of the prompt: ids and titles; `{paragraphs}`: their texts, too."""
        documents = problem.metadata.get("documents", ())
        return {DOCUMENTS: titles(documents), PARAGRAPHS: "\n\n".join(map(render, documents)) or "none"}

    def notes(self, example: Example) -> Notes:
        """The state of a new episode. UserError for a user's question without paragraphs to search."""
        about = example.metadata
        if "documents" not in about and self._library is None:
            raise UserError(
                f"{self.settings.name}: a question of your own has no paragraphs to search: add --set "
                "task.retrieval.scope=corpus --set task.retrieval.corpus=FILE, a corpus that the data set goes with."
            )
        documents: tuple[Document, ...] = about.get("documents", ())
        support = dict(about.get("support", {}))
        return Notes(
            support=support,
            num_support=about.get("num_support", 1),
            hops=about.get("hops", 0),
            decomposition=about.get("decomposition", ()),
            rules=self.settings.rules,
            scope=self.settings.retrieval.scope,
            documents={} if self._library is not None else {document.id: document for document in documents},
            library=self._library,
            wanted=about.get("wanted", {}),
            search=self._retriever.over(documents, tuple(support)),
            question=example.messages,
        )


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
    found = [document for document in about["documents"] if document.id in about["support"]]
    if not found:
        return ()
    searches = [{"name": "retrieve_documents", "arguments": {"query": document.title}} for document in found]
    answer = {
        "reasoning": f"It is in {' and '.join(document.title for document in found)}.",
        "final_answer": problem.answer,
        "cited_doc_ids": [document.id for document in found],
    }
    return (*searches, {"name": "complete", "arguments": answer})
