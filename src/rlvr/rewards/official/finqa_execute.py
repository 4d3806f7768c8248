"""The calculator of FinQA programs: what the official `eval_program` returns, without `eval` and with bounded work.

Numbers are floats, so `exp` overflows at once instead of filling the memory. The one thing that could grow is text:
`greater` gives "yes" or "no", and `add` glues two of them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlvr.rewards.official.finqa_steps import ARITHMETIC, is_well_formed, parts, steps

NOTHING = "n/a"
MAX_TEXT = 1_000  # characters of glued answers; the official script has no limit and none of its rows comes near

Value = float | complex | str


def execute(tokens: Sequence[str], table: Sequence[Sequence[str]]) -> tuple[bool, float | str]:
    """Invalid flag and result of a program; never raises.

    Args:
        tokens: the program; the last token is dropped whatever it is, as in the official script.
        table: rows of cells, the first cell of a row is its name.

    Returns:
        `(False, 0.01639)`, `(False, "yes")`, or `(False, "n/a")` if no step was left; results are rounded to 5 digits.
        With the flag set, the result is what the last good step gave, "n/a" if there was none.
    """
    body = tokens[:-1]
    if not is_well_formed(body):
        return True, NOTHING
    calculator = _Calculator(table=table)
    try:
        invalid = not all(calculator.take(index, step) for index, step in enumerate(steps(body)))
        return invalid, _rounded(calculator.last)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # the official script ends in a bare `except:`; the result then is not rounded
        return True, NOTHING if isinstance(calculator.last, complex) else calculator.last


def number(text: str) -> float | None:
    """`5,829` 5829, `12.5%` 0.125, `const_100` 100, `const_m1` -1; None if it is no number.

    Raises:
        ValueError: text with "const" that holds no number.
    """
    text = text.replace(",", "")
    plain = _float(text)
    if plain is not None:
        return plain
    if "%" in text:
        percent = _float(text.replace("%", ""))
        return None if percent is None else percent / 100.0
    if "const" in text:
        text = text.replace("const_", "")
        return float("-1" if text == "m1" else text)
    return None


def cell(text: str) -> float | None:
    """A table cell: without `$` and what follows `(`, then as `number`: `-181 ( 181 )` is -181."""
    return number(text.replace("$", "").strip().split("(")[0].strip())


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _rounded(value: Value) -> float | str:
    if isinstance(value, str) and value not in ("yes", "no", NOTHING):
        raise TypeError("glued answers are no result")
    return value if isinstance(value, str) else round(value, 5)  # type: ignore[arg-type]  # complex: TypeError


@dataclass(kw_only=True)
class _Calculator:
    table: Sequence[Sequence[str]]
    last: Value = NOTHING
    results: dict[int, Value] = field(default_factory=dict)
    row: list[float] | None = None
    rows: Mapping[str, Sequence[str]] | None = None

    def take(self, index: int, step: str) -> bool:
        """Take one step; False if it is invalid. What it cannot calculate raises."""
        if step.count("(") > 1:
            return False
        operation, first, second = parts(step)
        if operation in ARITHMETIC:
            left = self.operand(first)
            right = None if left is None else self.operand(second)
            if left is None or right is None:
                return False
            value = _apply(operation, left, right)
            self.last = float(value) if isinstance(value, int) else value
        elif "table" in operation:
            if not self.finds_row(first):
                return False
            self.last = self.reduced(operation)
        else:
            return True  # hidden behind a `|`: neither a result nor an error
        self.results[index] = self.last
        return True

    def operand(self, text: str) -> Value | None:
        """A number, or for `#k` the result of step k."""
        return self.results[int(text.replace("#", ""))] if "#" in text else number(text)

    def finds_row(self, name: str) -> bool:
        """Read the numbers of a row. `#k` keeps those of the table step before, if there was one."""
        if self.rows is None:
            self.rows = {row[0]: row[1:] for row in self.table}  # the last of several rows of one name counts
        if "#" in name:
            self.results[int(name.replace("#", ""))]  # must exist, and is not used
            if self.row is None:
                raise LookupError("no table step before")
            return True
        if name not in self.rows:
            return False
        found = []
        for text in self.rows[name]:
            value = cell(text)
            if value is None:
                return False
            found.append(value)
        self.row = found
        return True

    def reduced(self, operation: str) -> Value:
        row = self.row or []
        if operation == "table_max":
            return max(row)
        if operation == "table_min":
            return min(row)
        if operation == "table_sum":
            return sum(row)  # 0, an integer, for a row of nothing: "yes" times it is ""
        if operation == "table_average":
            return sum(row) / len(row)
        return self.last


def _apply(operation: str, left: Value, right: Value) -> Value:
    """Python's own arithmetic, which is the official one: it raises for mixed text and numbers."""
    if operation == "add":
        if isinstance(left, str) and isinstance(right, str) and len(left) + len(right) > MAX_TEXT:
            raise ValueError("too long")
        return left + right  # type: ignore[operator]
    if operation == "subtract":
        return left - right  # type: ignore[operator]
    if operation == "multiply":
        return left * right  # type: ignore[operator]
    if operation == "divide":
        return left / right  # type: ignore[operator]
    if operation == "exp":
        return (float(left) if isinstance(left, int) else left) ** right  # type: ignore[operator]
    return "yes" if left > right else "no"  # type: ignore[operator]
