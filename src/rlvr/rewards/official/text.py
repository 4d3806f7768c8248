"""The text normalization of SQuAD, which MuSiQue and HotpotQA share, and what both compute from it."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Overlap(NamedTuple):
    f1: float
    precision: float
    recall: float


ZERO = Overlap(0.0, 0.0, 0.0)


def normalize_answer(text: str) -> str:
    """`The New-York  Times.` -> `newyork times`.

    Lower case; ASCII punctuation is deleted, not replaced by a space, and curly quotes and dashes stay; then the words
    a, an and the go, and spaces collapse.
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def bag_f1(prediction: Sequence[str], gold: Sequence[str]) -> float:
    """F1 of two bags of normalized words, as SQuAD and MuSiQue have it: if one is empty, 1 if both are, else 0."""
    if not prediction or not gold:
        return float(not prediction and not gold)
    return overlap(prediction, gold).f1


def overlap(prediction: Sequence[str], gold: Sequence[str]) -> Overlap:
    """F1, precision and recall of two bags of words; all 0 if no word is common, so also if both are empty."""
    num_same = sum((Counter(prediction) & Counter(gold)).values())
    return from_counts(num_same, len(prediction), len(gold))


def from_counts(num_same: int, num_predicted: int, num_gold: int) -> Overlap:
    if num_same == 0:
        return ZERO
    precision, recall = num_same / num_predicted, num_same / num_gold
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)
