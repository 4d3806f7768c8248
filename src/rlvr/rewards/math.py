"""Mathematical equivalence by math-verify, which can hang: see `math_worker.py`."""

from rlvr.registry import register
from rlvr.rewards.base import AnswerPart, Grade
from rlvr.rewards.parts import PartMetric, PartRunner
from rlvr.settings import setting
from rlvr.types import Attempt

MAX_ANSWER_CHARS = 1_000


@register("reward", "math")
class MathEqual(AnswerPart):
    """1 for an equivalent expression, by math-verify, in a killable process.

    Equal are `\\frac{1}{2}`, `0.5` and `1/2`; `2\\sqrt{2}` and `\\sqrt{8}`; floats to 6 decimals; `x=5` and `5`;
    `12\\%` and both `0.12` and `12` (math-verify's choice). Words of three letters and more are compared as words:
    `yes` is not the product of y, e and s. An answer that math-verify reads only in part is invalid: `x=6=5`, `6=5`, `7
    \\approx 8`, `3\\text{ thousand}`. An answer above 1,000 characters is invalid; a longer or unparsable gold is an
    error.
    """

    lenient: bool = setting(
        False,
        "read answers as math-verify does: in a sentence, in part, the last of several (a model can exploit that)",
    )

    in_process = False
    preload = ("rlvr.rewards.math_worker",)

    @property
    def reads_metadata(self) -> bool:
        return False

    def grade(self, attempt: Attempt) -> Grade:
        from rlvr.rewards.math_worker import compare

        answer, example = attempt.answer, attempt.example
        if answer is None or len(answer) > MAX_ANSWER_CHARS:
            return Grade(value=self.invalid_value, status="invalid")
        found = (
            "no gold"
            if len(example.answer) > MAX_ANSWER_CHARS
            else compare(example.answer, answer, lenient=self.lenient)
        )
        if found == "no gold":
            message = f"the gold answer {example.answer!r:.80} of example {example.id!r} is no expression"
            return Grade.failed(message, bad_data=True)
        if found == "no answer":
            return Grade(value=self.invalid_value, status="invalid")
        return Grade(value=1.0 if found == "equal" else self.wrong_value)


@register("metric", "math")
class MathMetric(PartMetric):
    """Right if the expression is equivalent to the gold, by math-verify. Votes: the expression as written."""

    runner = PartRunner("math", MathEqual())
