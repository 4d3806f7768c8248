"""FinQA answers that are programs: `subtract(5829, 5735), divide(#0, 5735)`, run by the official rules.

Rewards and metrics repair punctuation: `subtract(5829,5735)`, one step per line, a period or comma at the end. `rlvr
score` does not.

Execution accuracy ignores the reasoning: `add(94, 0)` is right for a gold of 94, as in the official scorer.
`mode: program` requires the gold's program.
"""

import math
from collections.abc import Sequence
from typing import Literal

from rlvr.errors import UserError
from rlvr.registry import register
from rlvr.rewards.base import AnswerPart, Grade
from rlvr.rewards.metrics import NO_ANSWER, Metric
from rlvr.rewards.official.finqa import ProgramError, execute, is_correct_result, same_program, tokens
from rlvr.run_view import TaskView
from rlvr.settings import setting
from rlvr.types import Attempt, Example, GradedAnswer

NOTHING = "n/a"  # result of a program without steps
FOR_EXECUTION = ("table", "exe_ans")
MAX_PROGRAM_CHARS = 2_000  # the longest gold has 120


def readable_program(program: str, example: Example) -> tuple[str, float | str] | None:
    """The program in an executable spelling (repaired if needed) and its result."""
    if len(program) > MAX_PROGRAM_CHARS:
        return None
    for spelled in dict.fromkeys((program, _repaired(program))):
        result = _result(spelled, example)
        if result is not None:
            return spelled, result
    return None


def _repaired(program: str) -> str:
    """`add(1,2)\\nadd(#0,3).` -> `add(1, 2), add(#0, 3)`"""
    lines = [line.strip().rstrip(".,;").rstrip() for line in program.splitlines()]
    return ", ".join(part.strip() for part in ", ".join(line for line in lines if line).split(","))


def _result(program: str, example: Example) -> float | str | None:
    invalid, result = execute(tokens(program), example.metadata["table"])
    failed = invalid or result == NOTHING or (isinstance(result, float) and not math.isfinite(result))
    return None if failed else result


def missing_metadata(example: Example, needed: Sequence[str] = FOR_EXECUTION) -> str | None:
    missing = [name for name in needed if name not in example.metadata]
    return f"example {example.id!r} has no {' or '.join(missing)} in its metadata" if missing else None


@register("reward", "finqa_program")
class FinqaProgram(AnswerPart):
    """1 for a right program of FinQA's language; a malformed or failing one is invalid.

    The example's metadata has `table`, `exe_ans` and, for mode=program, `program`; otherwise the grade is `error`.
    """

    needs_metadata = True
    scores = "tasks whose answers are programs (task=finqa task.answer=program)"
    instead = "finqa_numeric or numeric"

    mode: Literal["execution", "program"] = setting(
        "execution", "execution: right result; program: equivalent to the gold program"
    )

    def grade(self, attempt: Attempt) -> Grade:
        example, program = attempt.example, attempt.answer
        missing = missing_metadata(example, (*FOR_EXECUTION, "program") if self.mode == "program" else FOR_EXECUTION)
        if missing is not None:
            return Grade.failed(missing)
        found = None if program is None else readable_program(program, example)
        if found is None:
            return Grade(value=self.invalid_value, status="invalid")
        program, result = found
        right = is_correct_result(False, result, example.metadata["exe_ans"])
        if right and self.mode == "program":
            try:
                right = same_program(tokens(example.metadata["program"]), tokens(program))
            except ProgramError as error:
                return Grade.failed(f"the gold program of example {example.id!r} cannot be read: {error}"[:500])
        return Grade(value=1.0 if right else self.wrong_value)

    def suits(self, task: TaskView) -> bool:
        return task.answer_kind == "program"


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
