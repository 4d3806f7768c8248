"""MuSiQue, arXiv:2108.00573: questions of 2 to 4 hops with 20 paragraphs each, 2 to 4 of which support the answer.

    {"id": "2hop__574419_270105", "question": "What is the seat of the county where ...?", "answer": "Stanley",
     "answer_aliases": [], "answerable": true,
     "paragraphs": [{"idx": 0, "title": "Port Blair", "paragraph_text": "Port Blair ...", "is_supporting": false}, ...]}

A document's id is its `idx`; two paragraphs may have one title. The number of hops is that of the supporting
paragraphs. In a corpus a passage supports if title and text are those of a supporting paragraph.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from rlvr.registry import register
from rlvr.retrieval.base import Document
from rlvr.rows import DataError, Row
from rlvr.tasks.multihop_sets import Library, aliases, cell, gold, records, to_problem
from rlvr.tasks.multihop_settings import EvalSets, MultiHopSettings, TrainSets, sets
from rlvr.tasks.problems import Problem
from rlvr.tasks.splits import NO_GOLD

FIELDS = ("id", "question", "answer", "answer_aliases", "answerable", "paragraphs")
COLUMNS = ("idx", "title", "paragraph_text", "is_supporting")


@register("task", "musique")
class Musique(MultiHopSettings):
    """MuSiQue, arXiv:2108.00573: questions of 2 to 4 hops over 20 paragraphs."""

    hub_id: ClassVar[str] = "bdsaglam/musique"
    rules, match, fields = "musique", "title_and_text", FIELDS
    train_sets: TrainSets = sets("musique", "bdsaglam/musique,answerable", "train", "train")
    eval_sets: EvalSets = sets("musique", "bdsaglam/musique,answerable", "validation", "dev")

    def parse(self, row: Row) -> Problem | str:
        return parse(row, self.library)


def parse(row: Row, library: Library | None = None) -> Problem | str:
    """The problem of a row, or why it is left out. With a library its documents are the passages that support it."""
    answer = gold(row, "answer")
    if row.fields.get("answerable", True) is False:
        return "cannot be answered"
    if answer is None:
        return NO_GOLD
    if not row.fields.get("paragraphs"):
        return "have no paragraphs"
    documents, supporting = _paragraphs(row)
    if not supporting:
        return "have no supporting paragraph"
    support = {name: name for name in supporting}
    wanted: dict[Hashable, str] = {}
    if library is not None:
        wanted = {library.key(document): document.id for document in documents if document.id in supporting}
        documents, support = library.matching(wanted)
        if library.is_known and len(set(support.values())) < len(wanted):
            return "have supporting paragraphs that are not in the corpus"
    golds = (answer, *aliases(row, "answer_aliases"))
    num_support = len(wanted) if library is not None else len(supporting)
    return to_problem(row, golds, documents, len(supporting), support=support, wanted=wanted, num_support=num_support)


def _paragraphs(row: Row) -> tuple[tuple[Document, ...], list[str]]:
    """The documents, and the ids of those that support."""
    documents: dict[str, Document] = {}
    supporting: list[str] = []
    for place, (idx, title, text, is_supporting) in enumerate(records(row, "paragraphs", COLUMNS)):
        name = f"paragraphs[{place}]"
        if isinstance(idx, bool) or not isinstance(idx, int):
            raise row.wrong(f"{name}.idx", idx, "a whole number")
        if not isinstance(is_supporting, bool | int):
            raise row.wrong(f"{name}.is_supporting", is_supporting, "true or false")
        document = Document(
            id=str(idx), title=cell(row, f"{name}.title", title), text=cell(row, f"{name}.paragraph_text", text)
        )
        if document.id in documents:
            raise DataError(f"{row.place}: field 'paragraphs' has the idx {idx} twice; each paragraph needs its own.")
        documents[document.id] = document
        supporting += [document.id] if is_supporting else []
    return tuple(documents.values()), supporting
