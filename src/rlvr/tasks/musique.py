"""MuSiQue, arXiv:2108.00573: questions of 2 to 4 hops with 20 paragraphs each, 2 to 4 of which support the answer.

    {"id": "2hop__574419_270105", "question": "What is the seat of the county where ...?", "answer": "Stanley",
     "answer_aliases": [], "answerable": true,
     "paragraphs": [{"idx": 0, "title": "Port Blair", "paragraph_text": "Port Blair ...", "is_supporting": false}, ...],
     "question_decomposition": [{"question": "Van Hook Township >> county", "answer": "Mountrail County",
                                 "paragraph_support_idx": 7}, {"question": "What is the seat of #1 ?", ...}]}

A document's id is its `idx`; titles may repeat. The number of hops is the number of supporting paragraphs. In a corpus
a passage supports if title and text equal those of a supporting paragraph. The decomposition may be missing.
"""

from collections.abc import Hashable
from typing import Annotated, ClassVar

from pydantic import BaseModel

from rlvr.data.multihop_sets import Hop, Library, Question, table
from rlvr.data.problems import Problem
from rlvr.data.rows import Cell, DataError, FilledText, Row
from rlvr.registry import register
from rlvr.retrieval.base import Document
from rlvr.tasks.loading import NO_GOLD
from rlvr.tasks.multihop_settings import EvalSets, MultiHopSettings, TrainSets, sets


@register("task", "musique")
class Musique(MultiHopSettings):
    """MuSiQue, arXiv:2108.00573: questions of 2 to 4 hops over 20 paragraphs."""

    hub_id: ClassVar[str] = "bdsaglam/musique"
    has_decompositions: ClassVar[bool] = True
    rules, match = "musique", "title_and_text"
    fields = ("id", "question", "answer", "answer_aliases", "answerable", "paragraphs", "question_decomposition")
    train_sets: TrainSets = sets("musique", "bdsaglam/musique,answerable", "train", "train")
    eval_sets: EvalSets = sets("musique", "bdsaglam/musique,answerable", "validation", "dev")

    def parse(self, row: Row) -> Problem | str:
        return parse(row, self.library)


class _Paragraph(BaseModel):
    idx: int
    title: Cell
    paragraph_text: Cell
    is_supporting: bool


class _Hop(BaseModel):
    question: FilledText
    answer: FilledText
    paragraph_support_idx: int | None = None


class _Question(Question):
    answer_aliases: Annotated[list[Cell] | None, table()] = None
    answerable: bool | None = True
    paragraphs: Annotated[list[_Paragraph] | None, table(*_Paragraph.model_fields)] = None
    question_decomposition: Annotated[list[_Hop] | None, table(*_Hop.model_fields)] = None


def parse(row: Row, library: Library | None = None) -> Problem | str:
    """The problem of a row, or the reason to exclude it. With a library its documents are the supporting passages."""
    question: _Question = row.read(_Question)
    if question.answerable is False:
        return "cannot be answered"
    if not question.answer:
        return NO_GOLD
    if not question.paragraphs:
        return "have no paragraphs"
    documents = tuple(
        Document(id=str(one.idx), title=one.title, text=one.paragraph_text) for one in question.paragraphs
    )
    if len({document.id for document in documents}) < len(documents):
        raise DataError(f"{row.place}: field 'paragraphs' has an idx twice; each paragraph needs its own.")
    support = {str(one.idx): str(one.idx) for one in question.paragraphs if one.is_supporting}
    hops, wanted = len(support), dict[Hashable, str]()
    decomposition = _decomposition(question, {document.id for document in documents}, row)
    if not support:
        return "have no supporting paragraph"
    if library is not None:
        wanted = {library.key(document): document.id for document in documents if document.id in support}
        passages = library.matching(wanted)
        if passages is None:
            return "have supporting paragraphs that are not in the corpus"
        documents, support = passages
    return question.problem(
        documents,
        hops,
        aliases=tuple(filter(None, question.answer_aliases or ())),
        support=support,
        wanted=wanted,
        num_support=len(wanted) or hops,
        decomposition=decomposition,
    )


def _decomposition(found: _Question, known: set[str], row: Row) -> tuple[Hop, ...]:
    """DataError for a hop whose paragraph is not there."""
    hops = list[Hop]()
    for hop in found.question_decomposition or ():
        fact = None if hop.paragraph_support_idx is None else str(hop.paragraph_support_idx)
        if fact is not None and fact not in known:
            said = "must have the idx of a paragraph as paragraph_support_idx"
            raise row.wrong("question_decomposition", hop.paragraph_support_idx, said)
        hops.append(Hop(question=hop.question, answer=hop.answer, fact=fact))
    return tuple(hops)
