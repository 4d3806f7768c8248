"""SQuAD's text normalization, used by MuSiQue and HotpotQA, and word-overlap scores."""

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

    Lower-cases; deletes ASCII punctuation without a space (curly quotes and dashes stay); then removes the words a, an
    and the, and collapses spaces.
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def bag_f1(prediction: Sequence[str], gold: Sequence[str]) -> float:
    """F1 of two bags of normalized words, as in SQuAD and MuSiQue: if one is empty, 1 if both are, else 0."""
    return 1.0 if not prediction and not gold else overlap(prediction, gold).f1


def overlap(prediction: Sequence[str], gold: Sequence[str]) -> Overlap:
    """F1, precision and recall of two bags of words; all 0 without a common word, also if both are empty."""
    num_same = sum((Counter(prediction) & Counter(gold)).values())
    return from_counts(num_same, len(prediction), len(gold))


def from_counts(num_same: int, num_predicted: int, num_gold: int) -> Overlap:
    if num_same == 0:
        return ZERO
    precision, recall = num_same / num_predicted, num_same / num_gold
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)
