"""Rewards of multi-hop QA: the answer, the documents found, the documents cited.

    supporting documents 3 and 12; found 3, 5, 7; cited 3, 12, 99 (which does not exist)

    found    precision 1/3   recall 1/2   F1 2/5
    cited    precision 2/3   recall 1     F1 4/5

Every retrieved document counts against precision, and so does every cited id, existing or not: finding or citing
everything gives full recall but not full F1.

Where the data decompose the question (MuSiQue), `hop_answers` looks for the answers of its hops:

    hops      Who directed Alien? Ridley Scott        Where was #1 born? South Shields
    queries   "director of Alien", "Ridley Scott birthplace"; reasoning "Alien is by Ridley Scott"; answer "Rome"
    found     1/2: the first answer was written, in few words, and the paragraph with it was read
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from rlvr.data.multihop_sets import Hop
from rlvr.registry import register
from rlvr.rewards.base import INVALID, Grade, Part, Verifier
from rlvr.rewards.completion import FinalAnswer, completion_of
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.official import hotpotqa, musique
from rlvr.rewards.official.text import normalize_answer
from rlvr.rewards.text import golds_of
from rlvr.rewards.trace import MAX_CITES, Trace
from rlvr.run_view import RunView, TaskView
from rlvr.settings import setting
from rlvr.types import Attempt, Score

Rules = Literal["musique", "hotpotqa"]
HopWeight = Literal["none", "capped", "linear"]
ShareName = Literal["recall", "precision", "f1"]

_COUNTS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_PLACES = ("1st", "2nd", "3rd", "4th", "5th", "6th", "7th", "8th", "9th", "10th")
_WORDS = {word: str(number) for number, word in enumerate(_COUNTS)} | dict(zip(_ORDINALS, _PLACES, strict=True))
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b", re.IGNORECASE)
HOP_WORDS = 32
"""Words per hop of queries and reasoning in which its answers are looked for."""
_TAG = re.compile(r"</?\w+>")
_CITE = re.compile(r"<cite>([^<]*)</cite>")


class Shares(NamedTuple):
    recall: float
    precision: float
    f1: float


class AnswerScores(NamedTuple):
    em: float
    f1: float


@dataclass(kw_only=True)
class QaState:
    """State of an episode: `support` maps each supporting document's id to the fact it supports (one document per fact
    is enough; `num_support` facts in all), `retrieved` has the ids shown to the model, in order.

    `decomposition` are its hops, if known.
    `rules` names the official scorer of the answer; `scope` (what is searched) is part of the diagnostics' names.
    """

    support: dict[str, str]
    num_support: int
    hops: int
    rules: Rules
    scope: Literal["paragraphs", "corpus"]
    decomposition: Sequence[Hop] = ()
    retrieved: dict[str, None] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)

    @property
    def distractors(self) -> Sequence[str]:
        """The titles of known documents that support nothing."""
        return ()

    def title(self, name: str) -> str:
        """The title of the document with this id; empty if there is none."""
        return ""

    def shares(self, ids: Iterable[str]) -> Shares:
        different = dict.fromkeys(ids)
        hits = [self.support[name] for name in different if name in self.support]
        if not hits:
            return Shares(0.0, 0.0, 0.0)
        recall, precision = len(set(hits)) / self.num_support, len(hits) / len(different)
        return Shares(recall, precision, 2 * precision * recall / (precision + recall))

    @property
    def progress(self) -> float:
        return self.shares(self.retrieved).recall


def official_scores(rules: Rules, answer: str, golds: Sequence[str]) -> AnswerScores:
    """The official scorer's exact match and F1, each the best over the golds. HotpotQA's rules also apply to 2Wiki."""
    if rules == "musique":
        return AnswerScores(**musique.answer_scores(answer, golds))
    each = [hotpotqa.answer_scores(answer, gold) for gold in golds]
    return AnswerScores(max(scores["em"] for scores in each), max(scores["f1"] for scores in each))


def answer_scores(rules: Rules, answer: str, golds: Sequence[str], *, number_words: bool) -> AnswerScores:
    """`official_scores`, but an answer that normalizes to nothing scores 0.

    With `number_words` also the official score after `with_digits` of answer and golds.
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


def final_answer(attempt: Attempt) -> FinalAnswer | None:
    """The episode's final answer: the call of `complete` or, if the prompt asks for it, an answer in the last turn.

    In text, `<cite>3, 12</cite>` cites documents.
    """
    form: AnswerFormat = attempt.format
    if form.answer_in == "complete":
        return completion_of(attempt)
    answer = attempt.answer
    if answer is None:
        return None
    text = form.form_of(attempt)
    cites = _CITE.findall(text)
    cited = tuple(dict.fromkeys(name for cite in cites for part in cite.split(",") if (name := part.strip())))
    right = (form.is_exact(_CITE.sub("", text)), bool(answer), len(cites) == 1)
    return FinalAnswer(reasoning="", answer=answer, cited=cited, form=sum(right) / len(right))


def hop_answers(attempt: Attempt, state: QaState) -> float | None:
    """The share of the hops whose answer was found, times a precision; None without a decomposition.

    - The last hop: the final answer is an official exact match.
    - Others: the document of the hop was shown, and the normalized answer stands, in whole words, in the queries or
      the reasoning (the last turn, for an answer in text). Of these, in order, only the first `HOP_WORDS` words per hop
      count: copying what was read does not fit.
    - Precision: hops found / (hops found + distractors named), so that a list of all titles is worth little. A
      distractor is named if its title stands there, unless the question or answer of a hop has it too.
    """
    hops, final = state.decomposition, final_answer(attempt)
    if not hops:
        return None
    text = _written(attempt, final, HOP_WORDS * len(hops))
    shown = {state.support[name] for name in state.retrieved if name in state.support}
    num_named = sum(hop.fact in shown and _stands_in(hop.answer, text) for hop in hops[:-1])
    if final is not None:
        num_named += answer_scores(state.rules, final.answer, golds_of(attempt.example), number_words=False).em == 1.0
    if not num_named:
        return 0.0
    about = [_spaced(text) for hop in hops for text in (hop.question, hop.answer)]
    supporting = {normalize_answer(state.title(name)) for name in state.support}
    others = {normalize_answer(title) for title in state.distractors} - supporting
    named = sum(_stands_in(title, text) and not any(_stands_in(title, one) for one in about) for title in others)
    return num_named / len(hops) * num_named / (num_named + named)


def _written(attempt: Attempt, final: FinalAnswer | None, num_words: int) -> str:
    """The first normalized words of queries, then of the reasoning, between spaces."""
    queries = [str(call.arguments.get("query", "")) for call in attempt.calls if call.problem is None]
    reasoning = attempt.text if final is None or attempt.format.answer_in != "complete" else final.reasoning
    return f" {' '.join(normalize_answer(_TAG.sub(' ', ' '.join((*queries, reasoning)))).split()[:num_words])} "


def _spaced(text: str) -> str:
    return f" {normalize_answer(text)} "


def _stands_in(phrase: str, spaced: str) -> bool:
    """Whether a text that is not blank stands in a normalized one, in whole words."""
    words = _spaced(phrase)
    return words.strip() != "" and words in spaced


def hop_factor(hops: int, weight: HopWeight) -> float:
    return {"none": 1.0, "capped": min(hops / 2, 1.0), "linear": hops / 2}[weight]


def _state(attempt: Attempt) -> QaState:
    if not isinstance(attempt.state, QaState):
        raise TypeError(f"example {attempt.example.id!r} was scored without the state of its episode")
    return attempt.state


class _DocumentPart(Part):
    in_process = True
    scores, instead = "tasks with documents (musique, hotpotqa, wiki2)", "text"

    def suits(self, task: TaskView) -> bool:
        return task.has_documents

    @property
    def hop_rule(self) -> HopWeight:
        return "none"

    def remarks(self, run: RunView) -> Iterator[str]:
        if self.weight and self.hop_rule != "none" and run.algorithm.divides_by_std:
            yield (
                "all episodes of a question share its factor for hops, which "
                "algorithm.std_normalization divides out again; algorithm=dr_grpo keeps it"
            )


@register("reward", "answer")
class MultiHopAnswer(_DocumentPart):
    """Exact match or F1 of the final answer by the data set's rules; an empty answer scores 0."""

    metric: Literal["em", "f1"] = setting("em", "em: exact match; f1: word F1; the best over the golds")
    hop_weight: HopWeight = setting(
        "none",
        "factor: none: 1; capped: min(hops / 2, 1); linear: hops / 2. Dividing advantages by the group's "
        "standard deviation cancels it",
    )
    number_words: bool = setting(True, "true: two and 2, second and 2nd are equal, in answer and golds alike")

    @property
    def hop_rule(self) -> HopWeight:
        return self.hop_weight

    def grade(self, attempt: Attempt) -> Grade:
        state, final = _state(attempt), final_answer(attempt)
        if final is None:
            return INVALID
        scores = answer_scores(state.rules, final.answer, golds_of(attempt.example), number_words=self.number_words)
        return Grade(value=getattr(scores, self.metric) * hop_factor(state.hops, self.hop_weight))


@register("reward", "retrieval")
class Retrieval(_DocumentPart):
    """Recall, precision or F1 of the supporting documents among the retrieved ones; 0 for none."""

    grades = "documents"
    metric: ShareName = setting(
        "f1",
        "recall: share of the supporting documents that was found; precision: share of found documents that supports; "
        "f1: their harmonic mean",
    )

    def grade(self, attempt: Attempt) -> Grade:
        state = _state(attempt)
        return Grade(value=getattr(state.shares(state.retrieved), self.metric))


@register("reward", "citation")
class Citation(_DocumentPart):
    """Recall, precision or F1 of the cited documents; without an answer invalid, 0."""

    grades = "documents"
    metric: ShareName = setting("f1", "as for retrieval, of the cited documents")

    def grade(self, attempt: Attempt) -> Grade:
        final = final_answer(attempt)
        if final is None:
            return INVALID
        return Grade(value=getattr(_state(attempt).shares(final.cited), self.metric))


@register("reward", "completion")
class CompletionForm(_DocumentPart):
    """Share of reasoning, final_answer and cited_doc_ids that `complete` has with the right type.

    For an answer in text: only blocks that the prompt asks for, an answer, and one `<cite>` block.
    """

    grades = "form"

    def grade(self, attempt: Attempt) -> Grade:
        final = final_answer(attempt)
        return INVALID if final is None else Grade(value=final.form)


@register("reward", "hop_answers")
class HopAnswers(_DocumentPart):
    """Share of the hops whose gold answer the episode found (MuSiQue's question_decomposition).

    The last hop's is the final answer; others must stand in the queries or the reasoning, within their first 32 words
    per hop, and their paragraph must have been read. Naming titles that support nothing lowers it.
    """

    grades = "documents"
    scores = "musique, whose questions are decomposed"

    def suits(self, task: TaskView) -> bool:
        return task.has_decompositions

    def grade(self, attempt: Attempt) -> Grade:
        value = hop_answers(attempt, _state(attempt))
        if value is None:
            return Grade.failed("the example has no question_decomposition, which MuSiQue has", bad_data=True)
        return Grade(value=value)


@register("reward", "hops")
class Hops(_DocumentPart):
    """The question's number of hops: a measure of the data, to use with weight 0."""

    grades = "documents"

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=float(_state(attempt).hops))


@register("reward", "combined")
class Combined(_DocumentPart):
    """The original formulas of the projects this task comes from.

    spec    (EM w + F1 w) / 2 + recall / 2                           with w = min(hops / 2, 1); range 0 to 1.5
    later   (hops / 2) (0.9 EM + F1 + recall + 0.4 precision + 0.6 citation recall + 0.1 form) / 4
                                                                     range 0 to 2 with 4 hops; form also grows with hops

    Both use the better recall of found and cited documents, so that finding and citing everything costs nothing
    (`later`: except precision); w is 1 for 2, 3 and 4 hops alike. Dividing advantages by the group's standard deviation
    cancels factors common to a question's episodes. Without an answer it is invalid, but still pays for found
    documents.
    """

    grades = "documents"
    formula: Literal["spec", "later"] = setting(
        "later",
        "spec: (EM + F1) min(hops / 2, 1) / 2 + recall / 2; later: (hops / 2) (0.9 EM + F1 + recall + 0.4 precision + "
        "0.6 citation recall + 0.1 format) / 4",
    )
    number_words: bool = setting(True, "true: two and 2, second and 2nd are equal, in answer and golds alike")

    @property
    def hop_rule(self) -> HopWeight:
        return "linear" if self.formula == "later" else "none"

    def grade(self, attempt: Attempt) -> Grade:
        state, final = _state(attempt), final_answer(attempt)
        shares = state.shares(state.retrieved)
        em, f1, cited, form = 0.0, 0.0, 0.0, 0.0
        if final is not None:
            golds = golds_of(attempt.example)
            em, f1 = answer_scores(state.rules, final.answer, golds, number_words=self.number_words)
            cited, form = state.shares(final.cited).recall, final.form
        if self.formula == "spec":
            weight = hop_factor(state.hops, "capped")
            value = (em * weight + f1 * weight) / 2 + 0.5 * shares.recall
        else:
            parts = 0.9 * em + 1.0 * f1 + 1.0 * shares.recall + 0.4 * shares.precision + 0.6 * cited + 0.1 * form
            value = hop_factor(state.hops, "linear") * parts / 4.0
        return Grade(value=value, status="invalid" if final is None else "scored")


class MultiHopVerifier:
    """A reward with additional diagnostics that its settings cannot change.

    `hops`, official `answer_em` and `answer_f1`, `citation_recall`, `citation_precision`, `citation_f1`, and the same
    three for retrieval: `paragraphs_...` within a question's own paragraphs, `corpus_...` in a corpus; `hop_answers` of
    questions with a decomposition.
    """

    def __init__(self, verifier: Verifier, form: AnswerFormat) -> None:
        self.name = verifier.name
        self._verifier, self._format = verifier, form

    async def verify(self, attempt: Attempt) -> Score:
        state, final = _state(attempt), final_answer(replace(attempt, format=self._format))
        cited = () if final is None else final.cited
        score = await self._verifier.verify(replace(attempt, retrieved=tuple(state.retrieved), cited=cited))
        em, f1, trace = 0.0, 0.0, ()
        if final is not None:
            em, f1 = official_scores(state.rules, final.answer, golds_of(attempt.example))
            named = [(name, state.title(name), name in state.support) for name in cited[:MAX_CITES]]
            trace = state.trace.ending(named, final.answer, em == 1.0)
        facts = {"hops": float(state.hops), "answer_em": em, "answer_f1": f1}
        for name, ids in (("citation", cited), (state.scope, state.retrieved)):
            facts |= {f"{name}_{metric}": share for metric, share in state.shares(ids)._asdict().items()}
        share = hop_answers(replace(attempt, format=self._format), state)
        facts |= {} if share is None else {"hop_answers": share}
        return replace(score, diagnostics={**score.diagnostics, **facts}, trace=trace)


def potential(coef: float) -> Callable[[object], float]:
    """Potential of an episode: `coef` times the share of supporting documents found so far."""

    def of(state: object) -> float:
        return coef * state.progress if isinstance(state, QaState) else math.nan

    return of
