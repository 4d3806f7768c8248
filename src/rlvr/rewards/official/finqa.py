"""FinQA's official scoring: execution accuracy and program accuracy of one predicted program."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.rewards.official.finqa_equal import ProgramError, same_program
from rlvr.rewards.official.finqa_execute import execute
from rlvr.rewards.official.finqa_steps import tokens

__all__ = ["ProgramError", "execute", "is_correct_result", "same_program", "score", "tokens"]


def is_correct_result(invalid: bool, result: float | str, gold: float | str) -> bool:
    """Execution accuracy: valid and equal to the gold `exe_ans`, with no tolerance and no leniency for percent."""
    return not invalid and result == gold


def score(
    prediction: Sequence[str], program: str, exe_ans: float | str, table: Sequence[Sequence[str]]
) -> dict[str, int | bool | float | str]:
    """`invalid_flag`, `exe_result`, `exe_correct` and `program_correct` of a predicted token list.

    Raises:
        ProgramError: the gold program cannot be read.
    """
    invalid, result = execute(prediction, table)
    return {
        "invalid_flag": int(invalid),
        "exe_result": result,
        "exe_correct": is_correct_result(invalid, result, exe_ans),
        "program_correct": same_program(tokens(program), prediction),
    }
