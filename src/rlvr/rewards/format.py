"""Parts that pay for the form of a completion, whatever its answer."""

from __future__ import annotations

from rlvr.registry import register
from rlvr.rewards.base import Grade, Part
from rlvr.settings import NonNegativeFloat, setting
from rlvr.types import Attempt, StopReason


@register("reward", "format_exact")
class FormatExact(Part):
    """1 if the completion is one reasoning block, one solution block and nothing else; 0 also where it was cut off."""

    in_process = True
    needs_markers = True

    def grade(self, attempt: Attempt) -> Grade:
        ended = attempt.stop_reason is StopReason.STOP
        return Grade(value=float(ended and attempt.format.is_exact(attempt.text)))


@register("reward", "format_approximate")
class FormatApproximate(Part):
    """A quarter for each of the four markers that occurs exactly once, after those before it.

    Range [-penalty, 1]; `</s><s></r><r>` earns the first marker only.
    """

    in_process = True
    needs_markers = True

    penalty: NonNegativeFloat = setting(1.0, "a quarter of it is subtracted for each marker that does not")

    def grade(self, attempt: Attempt) -> Grade:
        text, num_paid, end = attempt.text, 0, -1
        for marker in attempt.format.required_markers().in_order:
            start = text.find(marker)
            if start > end and start == text.rfind(marker):
                num_paid, end = num_paid + 1, start
        return Grade(value=(num_paid - self.penalty * (4 - num_paid)) / 4)
