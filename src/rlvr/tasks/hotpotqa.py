"""HotpotQA, arXiv:1809.09600, and 2WikiMultihopQA, arXiv:2011.01060, in the same format.

    {"_id": "5adddccd...", "question": "Aside from the Apple Remote, what ...?", "answer": "keyboard function keys",
     "type": "bridge", "supporting_facts": [["Apple Remote", 0], ["Front Row (software)", 1], ...],
     "context": [["Siri Remote", ["The Siri Remote is ...", "..."]], ...], "context_complete": true}

The Hub's copies use `id`, and `{"title": [...], "sentences": [[...], ...]}` or JSON text. A document is a context
paragraph, with its index in the context (from 0) as id; it supports if its title is among the supporting facts. The
number of hops is the number of different supporting titles. In a corpus every passage with a supporting title supports,
and one per title is enough.
"""

from collections.abc import Hashable
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel

from rlvr.data.multihop_sets import Library, Question, table
from rlvr.data.problems import Problem
from rlvr.data.rows import Cell, Row
from rlvr.registry import register
from rlvr.retrieval.base import Document
from rlvr.tasks.loading import NO_GOLD
from rlvr.tasks.multihop_settings import EvalSets, MultiHopSettings, TrainSets, sets

INCOMPLETE = "have a context without all supporting paragraphs, and need task.retrieval.scope=corpus"


@register("task", "hotpotqa")
class Hotpotqa(MultiHopSettings):
    """HotpotQA, arXiv:1809.09600: questions of 2 hops over 10 paragraphs."""

    hub_id: ClassVar[str] = "hotpotqa/hotpot_qa"
    rules, match = "hotpotqa", "title"
    fields = ("id", "question", "answer", "type", "supporting_facts", "context")
    train_sets: TrainSets = sets("hotpotqa", "hotpotqa/hotpot_qa,distractor", "train", "train")
    eval_sets: EvalSets = sets("hotpotqa", "hotpotqa/hotpot_qa,distractor", "validation", "dev")

    def parse(self, row: Row) -> Problem | str:
        return parse(row, self.library)


@register("task", "wiki2")
class Wiki2(Hotpotqa):
    """2WikiMultihopQA, arXiv:2011.01060: questions of 2 to 4 hops over 10 paragraphs."""

    hub_id: ClassVar[str] = "xanhho/2WikiMultihopQA"
    fields = ("_id", "question", "answer", "type", "supporting_facts", "context")
    train_sets: TrainSets = sets("2wikimultihopqa", "xanhho/2WikiMultihopQA,", "train", "train")
    eval_sets: EvalSets = sets("2wikimultihopqa", "xanhho/2WikiMultihopQA,", "validation", "dev")


class _Fact(BaseModel):
    title: Cell


class _Paragraph(_Fact):
    sentences: list[Cell]


class _Question(Question):
    type: Cell | None = None
    supporting_facts: Annotated[list[_Fact] | None, table("title")] = None
    context: Annotated[list[_Paragraph] | None, table("title", "sentences")] = None
    context_complete: Any = True


def parse(row: Row, library: Library | None = None) -> Problem | str:
    """The problem of a row, or the reason to exclude it. With a library its documents are the supporting passages."""
    question: _Question = row.read(_Question)
    if not question.answer:
        return NO_GOLD
    if not question.supporting_facts:
        return "have no supporting facts"
    titles = list(dict.fromkeys(fact.title for fact in question.supporting_facts))
    wanted: dict[Hashable, str] = {}
    if library is not None:
        wanted = {title: title for title in titles}
        passages = library.matching(wanted)
        if passages is None:
            return "have supporting titles that are not in the corpus"
        documents, support = passages
    elif not question.context:
        return "have no paragraphs"
    else:
        documents = tuple(
            Document(id=str(place), title=one.title, text=" ".join(one.sentences))
            for place, one in enumerate(question.context)
        )
        support = {document.id: document.title for document in documents if document.title in titles}
        if question.context_complete is False or len(set(support.values())) < len(titles):
            return INCOMPLETE
    about = {"support": support, "wanted": wanted, "num_support": len(titles)}
    return question.problem(documents, len(titles), question.type, **about)
