"""A reward on completions that no author of it thought of."""

from collections.abc import Sequence
from typing import Any

from rlvr.checks.patient import Patient, skip, verdict
from rlvr.checks.rewards import OF_GOLD, played
from rlvr.tracking.checks import Check

ODD = ("", "9" * 3000, "\\boxed{{{", "#### ####", "<answer></answer>\u202e\U0001f600", "1e999 nan -- 1/0")
"""What models write; a reward must read or refuse it."""
SLOW = ("9" * 40 + "!", "9,9" * 20 + "!", "a " * 40 + "!", " " * 9000 + "!")
"""A nested repetition of a regular expression takes exponential time on them."""

ODD_ANSWERS = ("²", "٣", "½", "1/0", "inf", "nan", "-", "1_000", "0x1F", "\\frac{1}{0}", "[]", "None")
"""What may stand where an answer is read: digits and numbers that `int` and `float` refuse, a division by zero."""


def _failures(patient: Patient, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Those of the texts on which the reward fails, and why."""
    example, bad = patient.task.train_example(0), list[dict[str, Any]]()
    for text in filter(patient.reads, texts):
        score = played(patient, example, [text]).score
        if score.status == "error":
            bad.append({"completion": text[:100], "error": score.diagnostics.get("error")})
    return bad


def reward_survives(patient: Patient) -> Check:
    asked = patient.task.train_example(0).messages[-1].content
    texts = [*ODD, *SLOW, asked, *(str(turns[-1])[:-1] for _, turns in patient.task.solutions(2))]
    bad = _failures(patient, texts)
    if bad and all(OF_GOLD in str(one["error"]) for one in bad):
        return skip(f"gold_scores_full says why no completion is read: {bad[0]['error']}")
    return verdict(
        bool(bad),
        f"the reward failed on {len(bad)} of {len(texts)} odd completions: {bad[0]['error'] if bad else ''}",
        f"the reward reads or refuses {len(texts)} odd completions",
        "return None for what cannot be read: such episodes are left out of the group and the loss",
        examples=bad[:3],
    )


def odd_answers_survive(patient: Patient) -> Check:
    """Where an answer is read, there may be what is no number, though it looks like one."""
    texts = [text for answer in ODD_ANSWERS if isinstance(text := patient.task.answered(answer), str)]
    if not any(map(patient.reads, texts)):
        return skip("the task knows no completion with another answer")
    bad = _failures(patient, texts)
    if len(bad) == len(texts):
        return skip(f"it fails on every answer, see reward_survives and gold_scores_full: {bad[0]['error']}")
    return verdict(
        bool(bad),
        f"the reward failed on {len(bad)} of {len(texts)} odd answers: {bad[0]['error'] if bad else ''}",
        f"the reward reads or refuses {len(texts)} odd answers",
        "catch ValueError and ZeroDivisionError, and return None: a failed reward leaves its episode out of the loss",
        examples=bad[:3],
    )
