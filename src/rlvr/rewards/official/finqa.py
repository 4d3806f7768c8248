"""FinQA's official scoring: execution accuracy and program accuracy of one predicted program.

Program accuracy: are two programs the same formula? Every argument text of the gold, and every whole table step,
becomes a symbol; the prediction may use no others. The final formulas of both must be equal after `sympy.simplify`. The
official script passes text to sympy; we build the expression from symbols, so no model text is evaluated, and sympy is
only called if needed.
"""

from collections.abc import Mapping, Sequence

from rlvr.rewards.official import finqa_execute
from rlvr.rewards.official.finqa_execute import ARITHMETIC, execute, is_well_formed, parts, tokens
from rlvr.rewards.official.formulas import Formulas

Step = tuple[str, str, str, str]  # its whole text, its operation, both arguments


class ProgramError(ValueError):
    """The gold program is not a program of FinQA's language."""


def is_correct_result(invalid: bool, result: float | str, gold: float | str) -> bool:
    """Execution accuracy: valid and exactly equal to the gold `exe_ans`, without tolerance, also for percentages."""
    return not invalid and result == gold


def score(
    prediction: Sequence[str], program: str, exe_ans: float | str, table: Sequence[Sequence[str]]
) -> dict[str, int | bool | float | str]:
    """`invalid_flag`, `exe_result`, `exe_correct` and `program_correct` of a predicted token list.

    ProgramError: the gold program is invalid.
    """
    invalid, result = execute(prediction, table)
    return {
        "invalid_flag": int(invalid),
        "exe_result": result,
        "exe_correct": is_correct_result(invalid, result, exe_ans),
        "program_correct": same_program(tokens(program), prediction),
    }


def same_program(gold: Sequence[str], prediction: Sequence[str]) -> bool:
    """Whether both token lists are the same formula by the official rule; False for a malformed prediction.

    ProgramError: the gold is invalid.
    """
    formulas, symbols = Formulas(), {}
    try:
        steps = _steps(gold[:-1])
        for name in (name for step in steps for name in _names(*step)):
            symbols.setdefault(name, len(symbols))
        wanted = _formula(steps, symbols, formulas)
    except (LookupError, ValueError) as error:
        raise ProgramError(f"the gold program {' '.join(gold)!r:.200} cannot be read") from error
    try:
        found = _formula(_predicted_steps(prediction, symbols), symbols, formulas)
        return formulas.are_equal(wanted, found)
    except (LookupError, ValueError):
        return False


def _steps(body: Sequence[str]) -> list[Step]:
    found = [(step, *parts(step)) for step in finqa_execute.steps(body)]
    if any(step.count("(") > 1 for step, *_ in found):
        raise ValueError("two operations in one step")
    return found


def _predicted_steps(prediction: Sequence[str], symbols: Mapping[str, int]) -> list[Step]:
    """The steps; ValueError for a broken structure, a name that the gold lacks, or a forward reference, used or not."""
    steps = _steps(prediction[:-1])
    for index, step in enumerate(steps):
        _, operation, *arguments = step
        forward = "table" not in operation and any(int(a.strip("#")) >= index for a in arguments if "#" in a)
        if forward or any(name not in symbols for name in _names(*step)):
            raise ValueError("no step of this program")
    if not is_well_formed(prediction[:-1]):
        raise ValueError("no program")
    return steps


def _names(step: str, operation: str, first: str, second: str) -> list[str]:
    """The symbols of a step: its arguments, or itself if it is a table step.

    Its text starts with `|` unless it is the first step, so a table step that moves to or from the first place is
    another symbol, and so is a repeated table step, as in the official script.
    """
    return [step] if "table" in operation else [name for name in (first, second) if "#" not in name]


def _formula(program: Sequence[Step], symbols: Mapping[str, int], formulas: Formulas) -> int:
    """The last step, expanded.

    Raises:
        LookupError, ValueError: no steps, an invalid or forward reference, an unknown operation or one at the wrong
            place.
    """
    needed = {len(program) - 1}
    for index in range(len(program) - 1, -1, -1):
        _, operation, first, second = program[index]
        if index in needed and "table" not in operation:
            needed |= {int(name.replace("#", "")) for name in (first, second) if "#" in name}
    built: dict[int, int] = {}

    def operand(name: str) -> int:
        return built[int(name.replace("#", ""))] if "#" in name else formulas.symbol(symbols[name])

    for index in sorted(needed):
        step, operation, first, second = program[index]
        if "table" in operation:
            built[index] = formulas.symbol(symbols[step])
        elif operation in ARITHMETIC:
            built[index] = formulas.combined(operation, operand(first), operand(second))
        else:
            raise ValueError(f"no operation {operation}")
    return built[len(program) - 1]
