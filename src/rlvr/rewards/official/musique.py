"""MuSiQue's official scoring: answer, support, and files with the sufficiency of question pairs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlvr.rewards.official.text import bag_f1, from_counts, normalize_answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question of a prediction or gold file, with the indices of supporting paragraphs.

    `answers` is the predicted answer, or the gold answer and its aliases.
    """

    id: str
    answers: Sequence[str]
    support: Sequence[int]
    is_answerable: bool | int


def answer_scores(prediction: str, golds: Sequence[str]) -> dict[str, float]:
    """`em` and `f1`, each independently the best over the golds (the answer and its aliases; at least one)."""
    predicted, wanted = normalize_answer(prediction), [normalize_answer(gold) for gold in golds]
    return {
        "em": float(predicted in wanted),
        "f1": max(bag_f1(predicted.split(), gold.split()) for gold in wanted),
    }


def support_scores(prediction: Iterable[int], gold: Iterable[int]) -> dict[str, float]:
    """`em` and `f1` of two sets of paragraph indices; two empty sets are equal."""
    predicted, wanted = set(prediction), set(gold)
    if not predicted and not wanted:
        return {"em": 1.0, "f1": 1.0}
    return {
        "em": float(predicted == wanted),
        "f1": from_counts(len(predicted & wanted), len(predicted), len(wanted)).f1,
    }


def file_scores(predictions: Sequence[Question], golds: Sequence[Question]) -> dict[str, float]:
    """`answer_f1`, `answer_em`, `support_f1` over the answerable questions, rounded to 3 digits.

    With any unanswerable gold it is the full data set, where each id occurs twice; then also
    `group_answer_sufficiency_f1` and `group_support_sufficiency_f1`.

    Raises:
        ValueError: predictions and golds do not match.
    """
    if [prediction.id for prediction in predictions] != [gold.id for gold in golds]:
        raise ValueError(
            f"{len(predictions)} predictions for {len(golds)} golds: each must have one, and order must agree"
        )
    answerable = [pair for pair in zip(predictions, golds, strict=True) if pair[1].is_answerable]
    answers = [answer_scores(prediction.answers[0], gold.answers) for prediction, gold in answerable]
    supports = [support_scores(prediction.support, gold.support) for prediction, gold in answerable]
    scores = {
        "answer_f1": _mean([score["f1"] for score in answers]),
        "answer_em": _mean([score["em"] for score in answers]),
        "support_f1": _mean([score["f1"] for score in supports]),
    }
    if len(answerable) < len(golds):
        scores |= _twin_scores(predictions, golds)
    return {name: round(value, 3) for name, value in scores.items()}


def _twin_scores(predictions: Sequence[Question], golds: Sequence[Question]) -> dict[str, float]:
    """Mean F1 over questions: that of the answerable twin if both sufficiency predictions are right, else 0."""
    twins: dict[str, list[tuple[Question, Question]]] = {}
    for prediction, gold in zip(predictions, golds, strict=True):
        twins.setdefault(gold.id, []).append((prediction, gold))
    answers, supports = [], []
    for question, pairs in twins.items():
        answerable = [pair for pair in pairs if pair[1].is_answerable]
        if len(pairs) != 2 or not answerable:
            raise ValueError(
                f"question {question} comes {len(pairs)} times, {len(answerable)} of them answerable; where some golds "
                "are unanswerable, each id must come exactly twice"
            )
        right = all(prediction.is_answerable == gold.is_answerable for prediction, gold in pairs)
        prediction, gold = answerable[-1]
        answers.append(right * answer_scores(prediction.answers[0], gold.answers)["f1"])
        supports.append(right * support_scores(prediction.support, gold.support)["f1"])
    return {"group_answer_sufficiency_f1": _mean(answers), "group_support_sufficiency_f1": _mean(supports)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
