"""Parts that compare numbers (or yes and no), parsed by `rlvr.rewards.numbers` for gold and prediction.

An unreadable prediction is `invalid`. An unreadable gold is an error in the data: `error`, which names the example; it
never equals anything.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Self

from pydantic import model_validator

from rlvr.errors import UserError
from rlvr.registry import register
from rlvr.rewards.base import AnswerPart, Grade, Part
from rlvr.rewards.metrics import NO_ANSWER, Metric
from rlvr.rewards.numbers import Answer, Number, YesNo, close, parse_answer, parse_gold, readings, same_answer
from rlvr.rewards.units import words_of
from rlvr.run_view import TaskView
from rlvr.settings import NonNegativeFloat, Share, setting, wrong
from rlvr.types import Attempt, Example, GradedAnswer

FINQA_PLACES = 5  # decimals of FinQA's golds
FINQA_DIGITS = 3  # minimum digits of an answer to match a gold with more
RIGHT = Grade(value=1.0)


def prediction_of(attempt: Attempt) -> Answer | None:
    """The number or yes/no of the answer, with units in the words of the prompt or of the gold."""
    text = attempt.answer
    if text is None:
        return None
    found = parse_answer(text)
    if found is not None or text[-1:].isdigit() or text.isalpha():
        return found
    return parse_answer(text, words_of(attempt.prompt, attempt.example.answer))


def unreadable_gold(example: Example) -> str:
    return f"the gold answer {example.answer!r:.80} of example {example.id!r} is neither a number nor yes or no"


@lru_cache(maxsize=1024)
def gold_answer(text: str) -> Answer | None:
    """`parse_gold` with a cache: a group of completions has one gold."""
    return parse_gold(text)


def same_in_finqa(prediction: Answer, gold: Answer) -> bool:
    """The lenient FinQA match: the gold at the prediction's precision; yes equals yes only.

    Golds have up to 5 decimals, and people write 34.7% or 34.72% for 0.34719: right are the gold itself, and the gold
    rounded to the prediction's digits if these are 3 or more (35% is not). `12%` is 0.12 or 12; `12.0 million` also the
    12.0 of a table in millions.
    """
    if isinstance(prediction, YesNo) or isinstance(gold, YesNo):
        return prediction == gold
    return prediction.value == gold.value or any(
        _shows(said, value, prediction) for said, value in readings(prediction, gold, stated_scale=True)
    )


def _shows(answer: Fraction, gold: Fraction, prediction: Number) -> bool:
    """Whether `said`, a reading of the prediction, is `gold` to 5 decimals or rounded to the prediction's digits."""
    if abs(float(answer) - float(gold)) > 1e-4 + 0.01 * abs(
        float(answer)
    ):  # clearly different; exact arithmetic is slow
        return False
    difference = abs(answer - gold)
    if difference <= Fraction(1, 10**FINQA_PLACES) and round(answer, FINQA_PLACES) == round(gold, FINQA_PLACES):
        return True
    if prediction.decimals is None:
        return False
    last_digit = Fraction(10) ** -prediction.decimals  # value of the last digit as written
    written = abs(prediction.value / prediction.unit)
    shown = written >= 10 ** (FINQA_DIGITS - 1) * last_digit
    return shown and 2 * difference * written <= last_digit * abs(answer)


class _Compared(AnswerPart):
    def grade(self, attempt: Attempt) -> Grade:
        gold = gold_answer(attempt.example.answer)
        if gold is None:
            return Grade.failed(unreadable_gold(attempt.example))
        prediction = prediction_of(attempt)
        if prediction is None:
            return Grade(value=self.invalid_value, status="invalid")
        if self.is_same(prediction, gold):
            return RIGHT
        if isinstance(prediction, Number) and isinstance(gold, Number):
            return Grade(value=self.credit(prediction, gold))
        return Grade(value=self.wrong_value)

    def is_same(self, prediction: Answer, gold: Answer) -> bool:
        return same_answer(prediction, gold)

    def credit(self, prediction: Number, gold: Number) -> float:
        return self.wrong_value


@register("reward", "numeric")
class Numeric(_Compared):
    """1 for an equal number (or the same yes/no).

    Shaping, off by default: a wrong number within 10 % of the gold gets `close_credit`, within 20 % `near_credit`.
    """

    close_credit: Share = setting(0.0, "shaping: value of a wrong number within 10 % of the right one")
    near_credit: Share = setting(0.0, "shaping: value of a wrong number within 20 %")

    @model_validator(mode="after")
    def _check_credits(self) -> Self:
        if self.near_credit > self.close_credit:
            raise wrong("near_credit", "is more than close_credit, so a worse answer would earn more; lower it")
        return self

    def credit(self, prediction: Number, gold: Number) -> float:
        for value, share in ((self.close_credit, Fraction(1, 10)), (self.near_credit, Fraction(1, 5))):
            if value and close(prediction, gold, share):
                return value
        return self.wrong_value


@register("reward", "number_check")
class NumberCheck(Part):
    """1 if the first number at the answer's place is right, and the answer has no other content; never invalid.

    `18 eggs` is 18, as for `Numeric`. An answer with a second number, or with words that are no unit, is no number for
    either: paying for the `18` of `18 or 19` would contradict `Numeric`.
    """

    in_process = True
    needs_markers = True

    def grade(self, attempt: Attempt) -> Grade:
        gold = gold_answer(attempt.example.answer)
        if gold is None:
            return Grade.failed(unreadable_gold(attempt.example))
        prediction = prediction_of(attempt)
        return Grade(value=float(isinstance(prediction, Number) and same_answer(prediction, gold)))


@register("reward", "finqa_numeric")
class FinqaNumeric(_Compared):
    """1 for an equal number or the same yes/no, partial credit within a relative tolerance; 12% and 0.12 are equal.

    Equal as in `same_in_finqa` (34.7% for 0.34719). The gold, `example.answer`, is FinQA's `exe_ans`.
    """

    scores, instead = "tasks whose answers are numbers (task.answer=number)", "finqa_program"

    relative_tolerance: NonNegativeFloat = setting(
        0.01,
        "largest |prediction - gold| / |gold| of an approximate answer",
        only_if="approximate_credit > 0",
    )
    approximate_credit: Share = setting(0.33, "value within the tolerance", only_if="relative_tolerance > 0")

    def is_same(self, prediction: Answer, gold: Answer) -> bool:
        return same_in_finqa(prediction, gold)

    def credit(self, prediction: Number, gold: Number) -> float:
        tolerance = Fraction(repr(self.relative_tolerance))  # 0.3 in YAML means 3/10
        near = close(prediction, gold, tolerance, stated_scale=True)
        return self.approximate_credit if near else self.wrong_value

    def suits(self, task: TaskView) -> bool:
        return task.answer_kind != "program"


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
