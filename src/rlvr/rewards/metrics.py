"""Metrics of data tasks: is the answer right? Independent of the reward.

They extract answers and parse numbers as rewards do, but use no weights, credits or tolerances: no reward setting can
change them. An unreadable gold ends the evaluation.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from rlvr.errors import UserError
from rlvr.registry import register
from rlvr.rewards.finqa import missing_metadata, readable_program
from rlvr.rewards.math import MathEqual
from rlvr.rewards.numbers import Answer, same_answer
from rlvr.rewards.numeric import gold_answer, prediction_of, same_in_finqa, unreadable_gold
from rlvr.rewards.official.finqa import is_correct_result
from rlvr.rewards.parts import PartRunner
from rlvr.rewards.reasoning_gym import ReasoningGym
from rlvr.rewards.text import golds_of, is_match, normalize
from rlvr.settings import Component
from rlvr.types import Attempt, GradedAnswer

NO_ANSWER = GradedAnswer(answer=None, correct=False)


class Metric(Component, ABC):
    """Grades the answers to held-out examples; its fields are its settings.

    `uses_sandbox`: it runs code that can hang in the processes of `attempt.sandbox`.
    """

    group = "metric"
    uses_sandbox: ClassVar[bool] = False

    @abstractmethod
    async def grade(self, attempt: Attempt) -> GradedAnswer:
        """The normalized answer, for majority votes, and whether it is right. A missing answer is wrong.

        UserError if the example is at fault.
        """


@register("metric", "numeric")
class NumericMetric(Metric):
    """Right if the number equals the gold exactly (`18.0`, `$18`, `18 eggs`), or yes/no agree. Votes: `18`."""

    is_same: ClassVar[Callable[[Answer, Answer], bool]] = staticmethod(same_answer)

    async def grade(self, attempt: Attempt) -> GradedAnswer:
        gold = gold_answer(attempt.example.answer)
        if gold is None:
            raise UserError(f"{unreadable_gold(attempt.example)}: correct the data or choose another metric.")
        prediction = prediction_of(attempt)
        if prediction is None:
            return NO_ANSWER
        return GradedAnswer(answer=str(prediction), correct=self.is_same(prediction, gold))


class FinqaMetric(NumericMetric):
    """Right if the number is `exe_ans`, or `exe_ans` rounded to the 3 or more digits of the answer; or yes/no agree.

    0.34719, 34.7% and 34.72% are right for 0.34719; 35% and 34.8% are not. The official scorer (`rlvr score`) requires
    all 5 decimals.
    """

    is_same = staticmethod(same_in_finqa)


class FinqaProgramMetric(Metric):
    """Official execution accuracy of a program. Votes are for results: `0.01639`."""

    async def grade(self, attempt: Attempt) -> GradedAnswer:
        example, program = attempt.example, attempt.answer
        missing = missing_metadata(example)
        if missing is not None:
            raise UserError(f"{missing}: programs cannot be graded; correct the data or ask for numbers.")
        found = None if program is None else readable_program(program, example)
        if found is None:
            return NO_ANSWER
        result = found[1]
        return GradedAnswer(answer=str(result), correct=is_correct_result(False, result, example.metadata["exe_ans"]))


@register("metric", "text")
class TextMetric(Metric):
    """Exact match of the normalized text with the answer or one of metadata `aliases`. Votes: the normalized text."""

    async def grade(self, attempt: Attempt) -> GradedAnswer:
        text = attempt.answer
        if text is None:
            return NO_ANSWER
        return GradedAnswer(answer=normalize(text), correct=is_match(text, golds_of(attempt.example)))


@register("metric", "exact")
class ExactMetric(Metric):
    """Right if the answer equals the gold, except for surrounding whitespace."""

    async def grade(self, attempt: Attempt) -> GradedAnswer:
        text = attempt.answer
        return NO_ANSWER if text is None else GradedAnswer(answer=text, correct=text == attempt.example.answer.strip())


class PartMetric(Metric):
    """Right if a reward part with default settings gives the full value 1.

    If the part fails, the answer is neither right nor wrong, and the grade names the failure.
    """

    uses_sandbox = True
    runner: ClassVar[PartRunner]

    async def grade(self, attempt: Attempt) -> GradedAnswer:
        self.runner.preload(attempt.sandbox)
        grade = await self.runner.grade(attempt)
        if grade.bad_data:
            raise UserError(f"{grade.message}: correct the data or choose another metric.")
        if grade.status == "error":
            return GradedAnswer(answer=None, correct=False, failure=grade.message or "no message")
        answer = attempt.answer
        if answer is None or grade.status == "invalid":
            return NO_ANSWER
        return GradedAnswer(answer=answer, correct=grade.value >= 1.0 - 1e-9)


@register("metric", "math")
class MathMetric(PartMetric):
    """Right if the expression is equivalent to the gold, by math-verify. Votes: the expression as written."""

    runner = PartRunner("math", MathEqual())


class ReasoningGymMetric(PartMetric):
    """Right if reasoning_gym's own verifier gives the full value."""

    runner = PartRunner("reasoning_gym", ReasoningGym())
