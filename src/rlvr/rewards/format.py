"""Parts that pay for the form of a completion, whatever its answer."""

from __future__ import annotations

from dataclasses import dataclass

from rlvr.rewards.base import Grade
from rlvr.rewards.extract import AnswerFormat
from rlvr.types import Attempt, StopReason


@dataclass(frozen=True, kw_only=True)
class ExactFormatPart:
    """1 if the whole text is a reasoning block and a solution block, neither blank, and nothing else but whitespace; 0.

    For answers that are not in a solution block: 1 if the answer stands where it should. A completion that was cut off
    earns nothing: who never stops has not kept the format.
    """

    format: AnswerFormat
    immediate = True

    async def grade(self, attempt: Attempt) -> Grade:
        """1.0 or 0.0."""
        ended = attempt.stop_reason is StopReason.STOP
        return Grade(value=float(ended and self.format.is_exact(attempt.text)))


@dataclass(frozen=True, kw_only=True)
class ApproximateFormatPart:
    """Of each of the four markers: +1/4 if it occurs exactly once, and after the paid ones before it; else -penalty/4.

    Range [-penalty, 1]; `</s><s></r><r>` earns the first marker only.
    ConfigError if the format has no markers.
    """

    format: AnswerFormat
    penalty: float = 0.0
    immediate = True

    def __post_init__(self) -> None:
        self.format.required_markers()

    async def grade(self, attempt: Attempt) -> Grade:
        """A value in [-penalty, 1]."""
        text, num_paid, end = attempt.text, 0, -1
        for marker in self.format.required_markers().in_order:
            start = text.find(marker)
            if start > end and start == text.rfind(marker):
                num_paid, end = num_paid + 1, start
        return Grade(value=(num_paid - self.penalty * (4 - num_paid)) / 4)
