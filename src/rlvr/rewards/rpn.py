"""Rewards of the RPN task, on the words of prompt + completion.

Worked example, prompt `<boe> 4 0 1 + + =`, completion `4 1 + = 5 <eoe>`:

    position   0     1 2 3 4 5 6   7 8 9  10 11 12
    word     <boe>   4 0 1 + + =   4 1 +  =  5  <eoe>
    e = 12, word e-2 is `=`, word e-1 is an operand: boxed; the operand is the gold 5: correct

The direct answer `5 <eoe>` is also boxed: there e = 8, and word 6 is the prompt's `=`.
"""

from dataclasses import replace
from itertools import pairwise, repeat

from rlvr.registry import register
from rlvr.rewards.base import INVALID, Grade, Part, Verifier
from rlvr.rewards.expressions import Arithmetic, reduce_once
from rlvr.rewards.extract import END, EQUALS, after_equals
from rlvr.rewards.trace import MAX_STEPS, make_step
from rlvr.run_view import TaskView
from rlvr.types import Attempt, Score

BEGIN = "<boe>"


def _derivation(attempt: Attempt, written: list[str]) -> tuple[list[list[str]], list[bool]] | None:
    """The prompt's expression and the written lines, with a flag for each line: is it one pass of the line before it?

    So one wrong line costs one flag. None for a direct answer, which has no steps.
    """
    if EQUALS not in written:
        return None
    lines: list[list[str]] = [[]]
    for word in [word for word in attempt.prompt.split() if word != BEGIN] + written:
        if word == EQUALS:
            lines.append([])
        else:
            lines[-1].append(word)
    pairs = pairwise(lines)
    return lines, [len(after) < len(before) and reduce_once(before, attempt.state) == after for before, after in pairs]


class _WordsPart(Part):
    in_process = True
    scores, instead = "tasks with the words <eoe> and =", "text, numeric or math"

    def suits(self, task: TaskView) -> bool:
        return task.made_of_words


@register("reward", "rpn_boxed")
class RpnBoxed(_WordsPart):
    """1 if prompt and completion end in `= operand <eoe>`, else invalid, 0; without task=rpn any word is an operand."""

    grades = "form"

    def grade(self, attempt: Attempt) -> Grade:
        return INVALID if _boxed(attempt) is None else Grade(value=1.0)


@register("reward", "rpn_correct")
class RpnCorrect(_WordsPart):
    """1 if the final operand is right, else 0; invalid, 0, without `= operand <eoe>` at the end."""

    def grade(self, attempt: Attempt) -> Grade:
        found = _boxed(attempt)
        return INVALID if found is None else Grade(value=float(found == attempt.example.answer))


def _boxed(attempt: Attempt) -> str | None:
    """The operand between `=` and the completion's first `<eoe>`, or None; without arithmetic any single word.

    An `<eoe>` in the prompt does not count; words after the completion's first one are ignored.
    """
    word, arithmetic = after_equals(attempt.prompt, attempt.completion), attempt.state
    return word if not isinstance(arithmetic, Arithmetic) or word in arithmetic.values else None


class RpnVerifier:
    """A reward of the RPN task that adds the written steps as trace and the share of valid ones as diagnostic.

    `attempt.state` is the task's `Arithmetic`.
    """

    def __init__(self, verifier: Verifier) -> None:
        self.name = verifier.name
        self._verifier = verifier

    async def verify(self, attempt: Attempt) -> Score:
        score = await self._verifier.verify(attempt)
        written, boxed = attempt.completion.split(), _boxed(attempt)
        ended, correct = END in written, boxed == attempt.example.answer
        derivation = _derivation(attempt, written[: written.index(END)] if ended else written)
        diagnostics, trace = dict(score.diagnostics), ()
        if derivation is not None:  # neither the expression nor a cut-off line is graded
            lines, right = derivation
            if ended:
                diagnostics["valid_steps"] = sum(right) / len(right)
            graded = (None, *right) if ended else (None, *right[:-1], None)
            trace = tuple(map(make_step, repeat("step", MAX_STEPS), map(" ".join, lines), graded))
        if boxed is not None:
            trace = (*trace, make_step("answer", boxed, correct))
        return replace(score, diagnostics=diagnostics, trace=trace)
