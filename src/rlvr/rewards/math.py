"""Mathematical equivalence by math-verify, in the processes of a `VerifierPool` (what runs there: `math_worker.py`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlvr.rewards.base import Grade
from rlvr.rewards.extract import AnswerFormat, answer_of
from rlvr.rewards.pool import VerifierPool
from rlvr.types import Attempt

MAX_ANSWER_CHARS = 1_000
MAX_TEXT_CHARS = 50_000
_WORKER = "rlvr.rewards.math_worker"
_COMPARE = f"{_WORKER}:compare"


@dataclass(frozen=True, kw_only=True)
class MathPart:
    """1 for an expression equivalent to the gold, else `wrong_value`; `invalid_value` where none can be read.

    The answer stands where `format` says; gold and answer are then parsed as they stand, by the same function. With
    `format=None` math-verify looks for the answer itself: boxes first, the last expression otherwise.

    Equal are `\\frac{1}{2}`, `0.5` and `1/2`; `2\\sqrt{2}` and `\\sqrt{8}`; floats to 6 decimals; `x=5` and `5`;
    `12\\%` both to `0.12` and to `12` (math-verify's choice). Words of three letters and more are compared as words:
    `yes` is not the product of y, e and s. An answer that says more than math-verify reads is invalid: `x=6=5`, `6=5`,
    `7 \\approx 8`, `3\\text{ thousand}`. An answer above 1,000 characters is invalid. A gold that cannot be parsed,
    or is longer, is an error.
    """

    pool: VerifierPool
    format: AnswerFormat | None
    wrong_value: float = 0.0
    invalid_value: float = 0.0

    def __post_init__(self) -> None:
        self.pool.preload(_WORKER)

    async def grade(self, attempt: Attempt) -> Grade:
        """The finding; `error` if the comparison hangs, fails, or has no gold to compare with."""
        answer = answer_of(attempt, self.format)
        if answer is None or len(answer) > (MAX_TEXT_CHARS if self.format is None else MAX_ANSWER_CHARS):
            return Grade(value=self.invalid_value, status="invalid")
        gold = attempt.example.answer
        if len(gold) > MAX_ANSWER_CHARS:
            return _no_gold(attempt)
        result = await self.pool.call(_COMPARE, gold, answer, self.format is None)
        if result.status != "ok":
            return Grade(value=math.nan, status="error", message=result.message)
        if result.value == "no gold":
            return _no_gold(attempt)
        if result.value == "no answer":
            return Grade(value=self.invalid_value, status="invalid")
        return Grade(value=1.0 if result.value == "equal" else self.wrong_value)


def _no_gold(attempt: Attempt) -> Grade:
    example = attempt.example
    message = f"the gold answer {example.answer!r:.80} of example {example.id!r} is no expression"
    return Grade(value=math.nan, status="error", message=message, bad_data=True)
