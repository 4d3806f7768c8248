"""HotpotQA's official scoring: answer, supporting facts, and joint scores over a file. Also for 2WikiMultiHopQA."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlvr.rewards.official.text import ZERO, Overlap, from_counts, normalize_answer, overlap

CLOSED = ("yes", "no", "noanswer")
NO_ANSWER: Mapping[str, float] = {"em": 0.0, "f1": 0.0, "precision": 0.0, "recall": 0.0}
NO_SUPPORT: Mapping[str, float] = {"sp_em": 0.0, "sp_f1": 0.0, "sp_prec": 0.0, "sp_recall": 0.0}

Fact = tuple[Hashable, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gold:
    id: str
    answer: str
    facts: Sequence[Fact]


def answer_scores(prediction: str, gold: str) -> dict[str, float]:
    """`em`, `f1`, `precision`, `recall`. Unlike in MuSiQue, two empty texts have EM 1 and F1 0.

    `yes`, `no` and `noanswer` only match themselves: "yes it is" has F1 0 for the gold "yes".
    """
    predicted, wanted = normalize_answer(prediction), normalize_answer(gold)
    is_closed = predicted in CLOSED or wanted in CLOSED
    shares: Overlap = ZERO if is_closed and predicted != wanted else overlap(predicted.split(), wanted.split())
    return {"em": float(predicted == wanted), "f1": shares.f1, "precision": shares.precision, "recall": shares.recall}


def support_scores(prediction: Iterable[Fact], gold: Iterable[Fact]) -> dict[str, float]:
    """`sp_em`, `sp_f1`, `sp_prec`, `sp_recall` of two sets of facts. Two empty sets have EM 1 and F1 0."""
    predicted, wanted = set(prediction), set(gold)
    shares = from_counts(len(predicted & wanted), len(predicted), len(wanted))
    return {
        "sp_em": float(predicted == wanted),
        "sp_f1": shares.f1,
        "sp_prec": shares.precision,
        "sp_recall": shares.recall,
    }


def file_scores(
    answers: Mapping[str, str], facts: Mapping[str, Sequence[Fact]], golds: Sequence[Gold]
) -> dict[str, float]:
    """The twelve official means `em f1 prec recall sp_... joint_...`, by question id.

    A missing answer or missing facts count 0; joint precision and recall are products, joint F1 is computed from them.
    `golds` must not be empty.
    """
    rows = [_joint(answers.get(gold.id), facts.get(gold.id), gold) for gold in golds]
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def _joint(answer: str | None, facts: Sequence[Fact] | None, gold: Gold) -> dict[str, float]:
    scores = NO_ANSWER if answer is None else answer_scores(answer, gold.answer)
    support = NO_SUPPORT if facts is None else support_scores(facts, gold.facts)
    precision, recall = scores["precision"] * support["sp_prec"], scores["recall"] * support["sp_recall"]
    return {
        "em": scores["em"],
        "f1": scores["f1"],
        "prec": scores["precision"],
        "recall": scores["recall"],
        **support,
        "joint_em": scores["em"] * support["sp_em"],
        "joint_f1": 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0,
        "joint_prec": precision,
        "joint_recall": recall,
    }
