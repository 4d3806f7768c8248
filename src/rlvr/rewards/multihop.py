"""Rewards of questions over several documents: the answer, what was found, what was cited.

    supporting documents 3 and 12; found 3, 5, 7; cited 3, 12, 99 (which does not exist)

    found    precision 1/3   recall 1/2   F1 2/5
    cited    precision 2/3   recall 1     F1 4/5

Every document that was read counts against precision, and so does every cited id, real or not: finding or citing
everything is full recall and no full F1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from rlvr.rewards.base import Grade, Verifier
from rlvr.rewards.completion import Completion, completion_of
from rlvr.rewards.extract import AnswerFormat, answer_of
from rlvr.rewards.official import hotpotqa, musique
from rlvr.rewards.official.text import normalize_answer
from rlvr.rewards.text import golds_of
from rlvr.rewards.trace import MAX_CITES, Trace
from rlvr.types import Attempt, Example, Score, TraceStep

Rules = Literal["musique", "hotpotqa"]
HopWeight = Literal["none", "capped", "linear"]
Metric = Literal["recall", "precision", "f1"]

_COUNTS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_WORDS = {word: str(number) for number, word in enumerate(_COUNTS)}
_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}
_WORDS |= {word: f"{number}{_SUFFIXES.get(number, 'th')}" for number, word in enumerate(_ORDINALS, start=1)}
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b", re.IGNORECASE)
_CITE = re.compile(r"<cite>([^<]*)</cite>")


class Shares(NamedTuple):
    """Of documents that were found or cited, each in [0, 1]."""

    recall: float
    precision: float
    f1: float


class AnswerScores(NamedTuple):
    """Exact match and F1 of words, each in [0, 1]."""

    em: float
    f1: float


@dataclass(kw_only=True)
class QaState:
    """What an episode keeps: which documents support the answer, and which were found, in the order of finding.

    Args:
        support: document id -> what it supports; of two passages that support the same, one is enough.
        num_support: how many different things have to be supported.
        hops: of the question.
        rules: whose official scorer judges the answer.
        scope: where was searched; part of the names of the diagnostics.
        retrieved: ids of the documents that the model was shown; the values say nothing.
        trace: what was asked for and found, in order.
    """

    support: dict[str, str]
    num_support: int
    hops: int
    rules: Rules
    scope: Literal["paragraphs", "corpus"]
    retrieved: dict[str, None] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)

    def title(self, name: str) -> str:
        """What the document with this id is called; empty if there is none."""
        return ""

    def shares(self, ids: Iterable[str]) -> Shares:
        """How well some documents cover what has to be supported; 0 for none."""
        different = dict.fromkeys(ids)
        hits = [self.support[name] for name in different if name in self.support]
        if not hits:
            return Shares(0.0, 0.0, 0.0)
        recall, precision = len(set(hits)) / self.num_support, len(hits) / len(different)
        return Shares(recall, precision, 2 * precision * recall / (precision + recall))

    @property
    def progress(self) -> float:
        """The share of what has to be supported that was found so far."""
        return self.shares(self.retrieved).recall


# ------------------------------------------------------------------------------------------------------- the answer


def official_scores(rules: Rules, answer: str, golds: Sequence[str]) -> AnswerScores:
    """The official scorer's exact match and F1, each the best over the golds. HotpotQA's rules serve 2Wiki, too."""
    if rules == "musique":
        scores = musique.answer_scores(answer, golds)
        return AnswerScores(scores["em"], scores["f1"])
    each = [hotpotqa.answer_scores(answer, gold) for gold in golds]
    return AnswerScores(max(scores["em"] for scores in each), max(scores["f1"] for scores in each))


def answer_scores(rules: Rules, answer: str, golds: Sequence[str], *, number_words: bool) -> AnswerScores:
    """The same, but an answer of which normalization leaves nothing is worth nothing, whatever it leaves of a gold.

    With `number_words` also as the official scorer would judge after `with_digits` of answer and golds.
    """
    if not normalize_answer(answer):
        return AnswerScores(0.0, 0.0)
    scores = official_scores(rules, answer, golds)
    if not number_words:
        return scores
    other = official_scores(rules, with_digits(answer), [with_digits(gold) for gold in golds])
    return AnswerScores(max(scores.em, other.em), max(scores.f1, other.f1))


def with_digits(text: str) -> str:
    """`Two of the First` -> `2 of the 1st`: zero to ten and first to tenth, whole words only (`30 seconds` stays)."""
    return _NUMBER_WORD.sub(lambda match: _WORDS[match[0].lower()], text)


def said(attempt: Attempt, form: AnswerFormat) -> Completion | None:
    """What the episode ends with: the call of `complete` or, where the prompt asks for it, an answer in the last turn.

    In a text, `<cite>3, 12</cite>` cites.
    """
    if form.answer_in == "complete":
        return completion_of(attempt)
    answer = answer_of(attempt, form)
    if answer is None:
        return None
    cites = _CITE.findall(attempt.text)
    cited = tuple(dict.fromkeys(name for cite in cites for part in cite.split(",") if (name := part.strip())))
    right = (form.is_exact(_CITE.sub("", attempt.text)), bool(answer), len(cites) == 1)
    return Completion(reasoning="", answer=answer, cited=cited, form=sum(right) / len(right))


def hop_factor(hops: int, weight: HopWeight) -> float:
    """none: 1; capped: min(hops / 2, 1), which is 1 for 2, 3 and 4 hops alike; linear: hops / 2."""
    return {"none": 1.0, "capped": min(hops / 2, 1.0), "linear": hops / 2}[weight]


# -------------------------------------------------------------------------------------------------------- the parts


def _state(attempt: Attempt) -> QaState:
    if not isinstance(attempt.state, QaState):
        raise TypeError(f"example {attempt.example.id!r} was scored without the state of its episode")
    return attempt.state


@dataclass(frozen=True, kw_only=True)
class AnswerPart:
    """Exact match or F1 of the final answer, in [0, 1] times the weight of hops; `invalid`, 0, without an answer."""

    format: AnswerFormat
    metric: Literal["em", "f1"] = "em"
    hop_weight: HopWeight = "none"
    number_words: bool = True
    immediate = True

    async def grade(self, attempt: Attempt) -> Grade:
        """The finding on the episode's completion."""
        state, completion = _state(attempt), said(attempt, self.format)
        if completion is None:
            return Grade(value=0.0, status="invalid")
        golds = golds_of(attempt.example)
        scores = answer_scores(state.rules, completion.answer, golds, number_words=self.number_words)
        return Grade(value=getattr(scores, self.metric) * hop_factor(state.hops, self.hop_weight))


@dataclass(frozen=True, kw_only=True)
class RetrievalPart:
    """Recall, precision or F1 of the documents that the model was shown; 0 if there were none."""

    metric: Metric = "f1"
    immediate = True

    async def grade(self, attempt: Attempt) -> Grade:
        """A value in [0, 1], whatever the episode ended with."""
        state = _state(attempt)
        return Grade(value=getattr(state.shares(state.retrieved), self.metric))


@dataclass(frozen=True, kw_only=True)
class CitationPart:
    """Recall, precision or F1 of the cited documents; `invalid`, 0, without an answer that cites."""

    format: AnswerFormat
    metric: Metric = "f1"
    immediate = True

    async def grade(self, attempt: Attempt) -> Grade:
        """A value in [0, 1]."""
        completion = said(attempt, self.format)
        if completion is None:
            return Grade(value=0.0, status="invalid")
        return Grade(value=getattr(_state(attempt).shares(completion.cited), self.metric))


@dataclass(frozen=True, kw_only=True)
class CompletionPart:
    """The share of reasoning, answer and citations that are given as they should be; `invalid`, 0, without an answer.

    Of an answer in a text: only blocks that the prompt asks for, an answer, and one `<cite>` block.
    """

    format: AnswerFormat
    immediate = True

    async def grade(self, attempt: Attempt) -> Grade:
        """0, 1/3, 2/3 or 1."""
        completion = said(attempt, self.format)
        return Grade(value=0.0, status="invalid") if completion is None else Grade(value=completion.form)


@dataclass(frozen=True, kw_only=True)
class HopsPart:
    """The number of hops of the question."""

    immediate = True

    async def grade(self, attempt: Attempt) -> Grade:
        """2.0, 3.0 or 4.0."""
        return Grade(value=float(_state(attempt).hops))


@dataclass(frozen=True, kw_only=True)
class CombinedPart:
    """The formulas of the projects that this task comes from, oddities included.

    spec    (EM w + F1 w) / 2 + recall / 2                           with w = min(hops / 2, 1); range 0 to 1.5
    later   (hops / 2) (0.9 EM + F1 + recall + 0.4 precision + 0.6 citation recall + 0.1 form) / 4
                                                                     range 0 to 2 with 4 hops; form pays with hops, too

    Both take recall for what was found or cited, so that finding and citing everything costs nothing (`later`: but for
    precision); w is 1 for 2, 3 and 4 hops alike. Advantages that are divided by a group's standard deviation cancel
    every factor that a question's episodes share.
    """

    format: AnswerFormat
    formula: Literal["spec", "later"]
    number_words: bool = True
    immediate = True

    async def grade(self, attempt: Attempt) -> Grade:
        """`invalid` without an answer, which leaves what was found."""
        state, completion = _state(attempt), said(attempt, self.format)
        found = state.shares(state.retrieved)
        em, f1, cited, form = 0.0, 0.0, 0.0, 0.0
        if completion is not None:
            golds = golds_of(attempt.example)
            em, f1 = answer_scores(state.rules, completion.answer, golds, number_words=self.number_words)
            cited, form = state.shares(completion.cited).recall, completion.form
        if self.formula == "spec":
            weight = hop_factor(state.hops, "capped")
            value = (em * weight + f1 * weight) / 2 + 0.5 * found.recall
        else:
            parts = 0.9 * em + 1.0 * f1 + 1.0 * found.recall + 0.4 * found.precision + 0.6 * cited + 0.1 * form
            value = hop_factor(state.hops, "linear") * parts / 4.0
        return Grade(value=value, status="invalid" if completion is None else "scored")


# --------------------------------------------------------------------------------------------------------- together


class MultiHopVerifier:
    """A reward with, as diagnostics, what no setting of it can move.

    `hops`, official `answer_em` and `answer_f1`, `citation_recall`, `citation_precision`, `citation_f1`, and the same
    three of what was found: `paragraphs_...` in a question's own paragraphs, `corpus_...` in a corpus.
    """

    def __init__(self, verifier: Verifier, form: AnswerFormat) -> None:
        self.name = verifier.name
        self._verifier, self._format = verifier, form

    async def verify(self, attempt: Attempt) -> Score:
        """The reward's verdict."""
        score = await self._verifier.verify(attempt)
        state, completion = _state(attempt), said(attempt, self._format)
        facts = measure(attempt.example, state, completion)
        trace = () if completion is None else _ending(state, completion, facts["answer_em"] == 1.0)
        return replace(score, diagnostics={**score.diagnostics, **facts}, trace=trace)


def measure(example: Example, state: QaState, completion: Completion | None) -> dict[str, float]:
    """The diagnostics of `MultiHopVerifier`."""
    scores = AnswerScores(0.0, 0.0)
    if completion is not None:
        scores = official_scores(state.rules, completion.answer, golds_of(example))
    cited = state.shares(completion.cited if completion is not None else ())
    found = state.shares(state.retrieved)
    named: dict[str, Shares] = {"citation": cited, state.scope: found}
    return {
        "hops": float(state.hops),
        "answer_em": scores.em,
        "answer_f1": scores.f1,
        **{f"{name}_{metric}": getattr(each, metric) for name, each in named.items() for metric in Shares._fields},
    }


def _ending(state: QaState, completion: Completion, correct: bool) -> tuple[TraceStep, ...]:
    cited = [(name, state.title(name), name in state.support) for name in completion.cited[:MAX_CITES]]
    return state.trace.ending(cited, completion.answer, correct)


def potential(coef: float) -> Callable[[object], float]:
    """How far an episode is: `coef` times the share of the supporting documents found so far."""

    def of(state: object) -> float:
        return coef * state.progress if isinstance(state, QaState) else math.nan

    return of
