"""HotpotQA, arXiv:1809.09600, and 2WikiMultihopQA, arXiv:2011.01060, which has the same form.

    {"_id": "5adddccd...", "question": "Aside from the Apple Remote, what ...?", "answer": "keyboard function keys",
     "type": "bridge", "supporting_facts": [["Apple Remote", 0], ["Front Row (software)", 1], ...],
     "context": [["Siri Remote", ["The Siri Remote is ...", "..."]], ...], "context_complete": true}

The Hub's copies say `id`, and `{"title": [...], "sentences": [[...], ...]}` or JSON in a text. A document is a context
paragraph, its id the place in the context, from 0; it supports if its title is among the supporting facts. The number
of hops is that of the different supporting titles. In a corpus every passage with a supporting title supports, and one
for each title is enough.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from rlvr.registry import register
from rlvr.retrieval.base import Document
from rlvr.rows import Row
from rlvr.tasks.multihop_sets import Library, cell, gold, records, to_problem
from rlvr.tasks.multihop_settings import EvalSets, MultiHopSettings, TrainSets, sets
from rlvr.tasks.problems import Problem
from rlvr.tasks.splits import NO_GOLD

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


def parse(row: Row, library: Library | None = None) -> Problem | str:
    """The problem of a row, or why it is left out. With a library its documents are the passages that support it."""
    answer = gold(row, "answer")
    if answer is None:
        return NO_GOLD
    if not row.fields.get("supporting_facts"):
        return "have no supporting facts"
    facts = enumerate(records(row, "supporting_facts", ("title",)))
    titles = list(dict.fromkeys(cell(row, f"supporting_facts[{i}].title", title) for i, (title,) in facts))
    wanted: dict[Hashable, str] = {}
    if library is not None:
        wanted = {title: title for title in titles}
        documents, support = library.matching(wanted)
        if library.is_known and len(set(support.values())) < len(titles):
            return "have supporting titles that are not in the corpus"
    elif not row.fields.get("context"):
        return "have no paragraphs"
    else:
        documents = _paragraphs(row)
        support = {document.id: document.title for document in documents if document.title in titles}
        if row.fields.get("context_complete") is False or len(set(support.values())) < len(titles):
            return INCOMPLETE
    kind = row.fields.get("type")
    return to_problem(
        row,
        (answer,),
        documents,
        len(titles),
        None if kind is None else cell(row, "type", kind),
        support=support,
        wanted=wanted,
        num_support=len(titles),
    )


def _paragraphs(row: Row) -> tuple[Document, ...]:
    documents = []
    for place, (title, sentences) in enumerate(records(row, "context", ("title", "sentences"))):
        name = f"context[{place}]"
        if not isinstance(sentences, list):
            raise row.wrong(f"{name}.sentences", sentences, "a list of texts")
        text = " ".join(cell(row, f"{name}.sentences[{i}]", sentence) for i, sentence in enumerate(sentences))
        documents.append(Document(id=str(place), title=cell(row, f"{name}.title", title), text=text))
    return tuple(documents)
