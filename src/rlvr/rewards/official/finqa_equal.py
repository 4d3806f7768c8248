"""Program accuracy of FinQA: are two programs the same formula?

Every argument text of the gold, and every whole table step, becomes a symbol; the prediction may use no others. The
last steps of both, written out, must be equal after `sympy.simplify`. The official script hands sympy a text; here the
expression is built from symbols, so no text of a model is evaluated, and sympy is asked only where it can matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlvr.rewards.official.finqa_steps import ARITHMETIC, is_well_formed, parts, steps
from rlvr.rewards.official.formulas import Formulas

Step = tuple[str, str, str, str]
"""Its whole text, its operation, both arguments."""


class ProgramError(ValueError):
    """The gold program is not a program of FinQA's language."""


def same_program(gold: Sequence[str], prediction: Sequence[str]) -> bool:
    """True if both token lists are the same formula by the official rule; False for any prediction that is malformed.

    Raises:
        ProgramError: the gold cannot be read.
    """
    formulas, symbols = Formulas(), {}
    try:
        gold_steps = _gold_steps(gold, symbols)
        wanted = _formula(gold_steps, symbols, formulas)
    except (LookupError, ValueError) as error:
        raise ProgramError(f"the gold program {' '.join(gold)!r:.200} cannot be read") from error
    try:
        predicted_steps = _predicted_steps(prediction, symbols)
        if predicted_steps is None:
            return False
        return formulas.are_equal(wanted, _formula(predicted_steps, symbols, formulas))
    except (LookupError, ValueError):
        return False


def _gold_steps(gold: Sequence[str], symbols: dict[str, int]) -> list[Step]:
    """The steps; everything they name becomes a symbol, numbered in `symbols`."""
    found = []
    for step in steps(gold[:-1]):
        operation, first, second = parts(step)
        if step.count("(") > 1:
            raise ValueError(f"two operations in the step {step}")
        for name in _names(step, operation, first, second):
            symbols.setdefault(name, len(symbols))
        found.append((step, operation, first, second))
    return found


def _predicted_steps(prediction: Sequence[str], symbols: Mapping[str, int]) -> list[Step] | None:
    """The steps; None if they break the structure, name what the gold does not, or refer forward. Unused ones count."""
    body = prediction[:-1]
    if not is_well_formed(body):
        return None
    found = []
    for index, step in enumerate(steps(body)):
        operation, first, second = parts(step)
        if step.count("(") > 1 or any(name not in symbols for name in _names(step, operation, first, second)):
            return None
        if "table" not in operation and any(int(a.strip("#")) >= index for a in (first, second) if "#" in a):
            return None
        found.append((step, operation, first, second))
    return found


def _names(step: str, operation: str, first: str, second: str) -> list[str]:
    """What a step names: its arguments, or itself if it is a table step.

    Its text begins with `|` unless it is the first step, so a table step that moved to or from the first place is
    another symbol; so is a table step that is repeated. The official script works that way.
    """
    return [step] if "table" in operation else [name for name in (first, second) if "#" not in name]


def _formula(program: Sequence[Step], symbols: Mapping[str, int], formulas: Formulas) -> int:
    """The last step written out.

    Raises:
        LookupError, ValueError: no steps, a reference to nothing or forward, an operation that does not exist or cannot
            stand where it stands.
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
