"""The metrics of data tasks: is the answer right? Apart from every reward.

They read answers where the rewards read them, with the same number reader, and know none of a reward's weights, credits
or tolerances: no reward setting can move them. A gold that cannot be read ends the evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlvr.errors import UserError
from rlvr.rewards.extract import AnswerFormat, answer_of
from rlvr.rewards.finqa import missing_metadata, program_result
from rlvr.rewards.numbers import Answer, same_answer
from rlvr.rewards.numeric import gold_answer, prediction_of, same_in_finqa, unreadable_gold
from rlvr.rewards.official.finqa import is_correct_result
from rlvr.rewards.text import golds_of, is_match, normalize
from rlvr.types import Attempt, Verdict

NO_ANSWER = Verdict(answer=None, correct=False)


@dataclass(frozen=True, kw_only=True)
class NumericJudge:
    """Right if the number equals the gold exactly (`18.0`, `$18`, `18 eggs`), or yes and no agree. Votes: `18`."""

    format: AnswerFormat

    async def judge(self, attempt: Attempt) -> Verdict:
        """UserError if the gold is neither a number nor yes or no."""
        gold = _gold(attempt)
        prediction = prediction_of(attempt, self.format)
        if prediction is None:
            return NO_ANSWER
        return Verdict(answer=str(prediction), correct=same_answer(prediction, gold))


@dataclass(frozen=True, kw_only=True)
class FinqaJudge:
    """Right if the number is `exe_ans`, or it rounded to the 3 or more digits that the answer shows; or yes/no agree.

    0.34719, 34.7% and 34.72% are right for 0.34719; 35% and 34.8% are not. The official scorer (`rlvr score`) wants all
    5 decimals.
    """

    format: AnswerFormat

    async def judge(self, attempt: Attempt) -> Verdict:
        """UserError if the gold is neither a number nor yes or no."""
        gold = _gold(attempt)
        prediction = prediction_of(attempt, self.format)
        if prediction is None:
            return NO_ANSWER
        return Verdict(answer=str(prediction), correct=same_in_finqa(prediction, gold))


@dataclass(frozen=True, kw_only=True)
class FinqaProgramJudge:
    """Official execution accuracy of a program. Votes are cast for results: `0.01639`."""

    format: AnswerFormat

    async def judge(self, attempt: Attempt) -> Verdict:
        """UserError if the example has no table or exe_ans."""
        example = attempt.example
        missing = missing_metadata(example)
        if missing is not None:
            raise UserError(f"{missing}: programs cannot be judged, mend the data or ask for numbers.")
        program = answer_of(attempt, self.format)
        result = None if program is None else program_result(program, example)
        if result is None:
            return NO_ANSWER
        return Verdict(answer=str(result), correct=is_correct_result(False, result, example.metadata["exe_ans"]))


@dataclass(frozen=True, kw_only=True)
class TextJudge:
    """Exact match of the normalized text with the answer or one of metadata `aliases`. Votes: the normalized text."""

    format: AnswerFormat

    async def judge(self, attempt: Attempt) -> Verdict:
        """The verdict; a missing answer is never right."""
        text = answer_of(attempt, self.format)
        if text is None:
            return NO_ANSWER
        return Verdict(answer=normalize(text), correct=is_match(text, golds_of(attempt.example)))


@dataclass(frozen=True, kw_only=True)
class ExactJudge:
    """Right if the answer is the gold, character for character, but for whitespace at both ends."""

    format: AnswerFormat

    async def judge(self, attempt: Attempt) -> Verdict:
        """The verdict; a missing answer is never right."""
        text = answer_of(attempt, self.format)
        return NO_ANSWER if text is None else Verdict(answer=text, correct=text == attempt.example.answer.strip())


def _gold(attempt: Attempt) -> Answer:
    gold = gold_answer(attempt.example.answer)
    if gold is None:
        raise UserError(f"{unreadable_gold(attempt.example)}: mend the data or choose another metric.")
    return gold
