"""Which metric judges the held-out answers of a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from rlvr.errors import UserError
from rlvr.rewards.base import Part
from rlvr.rewards.extract import AnswerFormat, answer_of
from rlvr.rewards.judging import ExactJudge, NumericJudge, TextJudge
from rlvr.types import Attempt, Verdict

if TYPE_CHECKING:
    from rlvr.rewards.pool import VerifierPool


class Judge(Protocol):
    """A metric."""

    async def judge(self, attempt: Attempt) -> Verdict:
        """What was answered, and whether it is right."""
        ...


@dataclass(frozen=True, kw_only=True)
class PartJudge:
    """Right where a reward part, with settings of its own, finds the full value 1.

    An answer that its verifier fails on, within the deadline and memory of the pool, is neither right nor wrong: the
    verdict names the failure.
    """

    format: AnswerFormat
    part: Part

    async def judge(self, attempt: Attempt) -> Verdict:
        """The verdict; None as the answer where none can be read. UserError if the example is at fault."""
        answer = answer_of(attempt, self.format)
        grade = await self.part.grade(attempt)
        if grade.bad_data:
            raise UserError(f"{grade.message}: mend the data or choose another metric.")
        if grade.status == "error":
            return Verdict(answer=None, correct=False, failure=grade.message or "no message")
        if answer is None or grade.status == "invalid":
            return Verdict(answer=None, correct=False)
        return Verdict(answer=answer, correct=grade.value >= 1.0 - 1e-9)


def make_judge(metric: Literal["numeric", "math", "text", "exact"], form: AnswerFormat, pool: VerifierPool) -> Judge:
    """The judge of `task.metric`."""
    if metric == "math":
        from rlvr.rewards.math import MathPart

        return PartJudge(format=form, part=MathPart(pool=pool, format=form, wrong_value=0.0, invalid_value=0.0))
    return {"numeric": NumericJudge, "text": TextJudge, "exact": ExactJudge}[metric](format=form)
