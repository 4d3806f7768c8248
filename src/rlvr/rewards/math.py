"""Mathematical equivalence by math-verify, which can hang: see `math_worker.py`."""

import re

from rlvr.registry import register
from rlvr.rewards.base import AnswerPart, Grade
from rlvr.rewards.parts import PartMetric, PartRunner
from rlvr.settings import setting
from rlvr.types import Attempt

MAX_ANSWER_CHARS = 1_000
_SIMPLE = re.compile(
    r"-?(?:[1-9][0-9]{0,30}|0)(?:\.[0-9]{1,30})?|[A-Z]|\\[dt]?frac\{[1-9][0-9]{0,9}\}\{[1-9][0-9]{0,9}\}"
)
"""Golds that need not be read to know that they can be: numbers, letters of options, fractions."""


@register("reward", "math")
class MathEqual(AnswerPart):
    """1 for an equivalent expression, by math-verify, in a killable process.

    Gold and answer are read by one strict reader (`rlvr.rewards.math_reader`), as a whole: each number, letter, word
    and command must be in what was read. What is not is invalid, as an answer (`x=6=5`, `5 \\ldots`, `3\\text{
    thousand}`), and no gold, as a gold: an error. An answer that is the gold letter by letter is right.

    Equal are `\\frac{1}{2}`, `0.5` and `1/2`; `2\\sqrt{2}` and `\\sqrt{8}`; `x=5` and `5`; `12.5\\%` and both `0.125`
    and `12.5`; `0.\\overline{3}` and `1/3`, but not `0.333333`: numbers are compared to 15 digits. Words of three
    letters and more are compared as words: `yes` is not the product of y, e and s. Answers above 1,000 characters are
    invalid, longer golds an error.
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

    def surely_reads(self, gold: str) -> bool:
        return _SIMPLE.fullmatch(gold) is not None

    def reads_gold(self, gold: str) -> bool:
        from rlvr.rewards.math_worker import is_readable

        return len(gold) <= MAX_ANSWER_CHARS and is_readable(gold, lenient=self.lenient)

    def grade(self, attempt: Attempt) -> Grade:
        from rlvr.rewards.math_worker import compare

        answer, example = attempt.answer, attempt.example
        if answer is None or len(answer) > MAX_ANSWER_CHARS:
            return Grade(value=self.invalid_value, status="invalid")
        verdict = (
            "no gold"
            if len(example.answer) > MAX_ANSWER_CHARS
            else compare(example.answer, answer, prompt=attempt.prompt, lenient=self.lenient)
        )
        if verdict == "no gold":
            message = f"the gold answer {example.answer!r:.80} of example {example.id!r} is no expression"
            return Grade.failed(message, bad_data=True)
        if verdict == "no answer":
            return Grade(value=self.invalid_value, status="invalid")
        return Grade(value=1.0 if verdict == "equal" else self.wrong_value)


@register("metric", "math")
class MathMetric(PartMetric):
    """Right if the expression is equivalent to the gold, by math-verify. Votes: the expression as written."""

    runner = PartRunner("math", MathEqual())
