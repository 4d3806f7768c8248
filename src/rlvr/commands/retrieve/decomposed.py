"""What decomposing a question would gain in retrieval, at best: gold sub-questions and bridges as queries.

    question          Where was the director of Alien born?
    sub-questions     "Alien director"   "Where was Ridley Scott born?"        the second with its bridge, Ridley Scott

The documents of several queries are taken in turns: the first of each, the second of each, ... Recall is the share
of the supporting paragraphs among the first 2, 5 and 10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from rlvr.data.multihop_sets import Hop, Library
from rlvr.data.problems import Problem
from rlvr.data.rows import DataError, read_file
from rlvr.evaluation.intervals import Interval, paired_bootstrap
from rlvr.retrieval.base import Document
from rlvr.retrieval.retriever import Retriever
from rlvr.tasks.loading import parse_rows
from rlvr.tasks.musique import parse

CUTS = (2, 5, 10)
WHOLE = "the whole question"

Queries = Callable[["Asked"], Sequence[str]]
Best = Callable[[str], str]
"""A query -> the title of the best document; empty if none is found."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question, another one for controls, and the search of this question."""

    question: str
    hops: Sequence[Hop]
    other: Sequence[Hop]
    best: Best


@dataclass(frozen=True, kw_only=True)
class Line:
    """Recall of one kind of queries; `gain` is that of recall@5 over the whole question, `by_hops` recall@5."""

    scope: str
    queries: str
    recall: tuple[float, ...]  # at CUTS
    gain: Interval | None
    by_hops: Mapping[int, float]

    def as_json(self) -> dict[str, Any]:
        recalls = {f"recall_{cut}": round(value, 4) for cut, value in zip(CUTS, self.recall, strict=True)}
        gain = None if self.gain is None else [round(x, 4) for x in (self.gain.value, self.gain.low, self.gain.high)]
        by_hops = {str(hops): round(value, 4) for hops, value in self.by_hops.items()}
        return {"scope": self.scope, "queries": self.queries, **recalls, "gain_5": gain, "recall_5_by_hops": by_hops}

    def as_row(self) -> str:
        gain = "" if self.gain is None else f"{self.gain.value:+.3f} [{self.gain.low:+.3f}, {self.gain.high:+.3f}]"
        numbers = [f"{value:.3f}" for value in (*self.recall, *self.by_hops.values())]
        return f"| {' | '.join([self.scope, self.queries, *numbers[:3], gain, *numbers[3:]])} |"


def header(lines: Sequence[Line]) -> str:
    """The head of the table that the lines are in."""
    hops = [f"R@5, {hops} hops" for hops in lines[0].by_hops]
    cells = ["searched", "queries", *(f"R@{cut}" for cut in CUTS), "R@5 against the whole question, 95 %", *hops]
    return f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}"


def answers(hops: Sequence[Hop]) -> list[str]:
    return [hop.answer for hop in hops]


def _without_bridges(hops: Sequence[Hop]) -> list[str]:
    return [hop.asked([""] * len(hops)) for hop in hops]


def _by_top_titles(asked: Asked) -> list[str]:
    queries, titles = list[str](), list[str]()
    for hop in asked.hops:
        queries.append(hop.asked(titles))
        titles.append(asked.best(queries[-1]))
    return queries


KINDS: dict[str, Queries] = {
    WHOLE: lambda asked: [asked.question],
    "sub-questions": lambda asked: [hop.asked(answers(asked.hops)) for hop in asked.hops],
    "sub-questions without bridges": lambda asked: _without_bridges(asked.hops),
    "sub-questions, bridge: best title": _by_top_titles,
    "the whole question, and bridges": lambda asked: [asked.question, *answers(asked.hops[:-1])],
    "control: another question's sub-questions": lambda asked: _without_bridges(asked.other),
    "control: the whole question, and another's bridges": lambda asked: [asked.question, *answers(asked.other[:-1])],
}


def read_questions(file: str, library: Library | None) -> tuple[list[Problem], tuple[str, ...]]:
    """The questions of a file with decompositions, and notes. With a library their support is there.

    DataError if fewer than two have one: controls need another question.
    """
    part = parse_rows(read_file(Path(file).expanduser()), lambda row: parse(row, library))
    questions = [problem for problem in part.problems if problem.metadata["decomposition"]]
    notes = part.notes("question")
    if len(questions) < 2:
        said = "; ".join([f"{len(questions)} of {len(part.problems)} questions have a question_decomposition", *notes])
        raise DataError(f"{file}: {said}; --decomposed needs two questions with one, as in MuSiQue's files.")
    return questions, tuple(notes)


def lines(scope: str, retriever: Retriever, questions: Sequence[Problem]) -> list[Line]:
    """A line of each of `KINDS`, the whole question first."""
    recalls = {name: [[0.0] * len(CUTS) for _ in questions] for name in KINDS}
    for place, problem in enumerate(questions):
        search = _search_of(retriever, problem)
        other = questions[(place + len(questions) // 2) % len(questions)]
        asked = Asked(
            question=problem.question,
            hops=problem.metadata["decomposition"],
            other=other.metadata["decomposition"],
            best=lambda query, search=search: next((document.title for document in search(query)), ""),
        )
        for name, queries in KINDS.items():
            found = _in_turns([search(query) for query in queries(asked)])
            recalls[name][place] = [_recall(found[:cut], problem) for cut in CUTS]
    of_hops = [problem.metadata["hops"] for problem in questions]
    return [_line(scope, name, recalls, of_hops) for name in KINDS]


def _line(scope: str, name: str, recalls: Mapping[str, Sequence[Sequence[float]]], of_hops: Sequence[int]) -> Line:
    at_5 = {key: [cuts[CUTS.index(5)] for cuts in values] for key, values in recalls.items()}

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return Line(
        scope=scope,
        queries=name,
        recall=tuple(map(mean, zip(*recalls[name], strict=True))),
        gain=None if name == WHOLE else paired_bootstrap(at_5[WHOLE], at_5[name]),
        by_hops={
            hops: mean([value for value, one in zip(at_5[name], of_hops, strict=True) if one == hops])
            for hops in sorted(set(of_hops))
        },
    )


def _search_of(retriever: Retriever, problem: Problem) -> Callable[[str], list[Document]]:
    """The search of a question, each query once."""
    corpus = retriever.corpus
    documents = problem.metadata["documents"] if corpus is None else corpus.documents

    @cache
    def search(query: str) -> list[Document]:
        return [found.document for found in asyncio.run(retriever.ranked(query, documents, max(CUTS)))]

    return search


def _in_turns(lists: Sequence[Sequence[Document]]) -> list[str]:
    """The ids of the first of each list, then of the second of each, ..., each id once."""
    row = chain.from_iterable(zip_longest(*lists))
    return list(dict.fromkeys(document.id for document in row if document is not None))


def _recall(found: Sequence[str], problem: Problem) -> float:
    support = problem.metadata["support"]
    return len({support[name] for name in found if name in support}) / problem.metadata["num_support"]
