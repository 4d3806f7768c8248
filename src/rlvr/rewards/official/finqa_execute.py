"""FinQA's program language, and a calculator with the same results as the official `eval_program`.

A program is a list of tokens, four per step, with `EOF` at the end:

    subtract(5829, 5735), divide(#0, 5735)
    ["subtract(", "5829", "5735", ")", "divide(", "#0", "5735", ")", "EOF"]

The official script joins the tokens and splits the text at `)`, `(` and `|`, and so do we: arguments may contain these
characters, and then the grade depends on the splits.

Nothing is evaluated as code, and the work is bounded: numbers are floats, so `exp` overflows at once. Only text could
grow: `greater` gives "yes" or "no", and `add` concatenates two of them.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "exp": operator.pow,
    "greater": operator.gt,
}
TABLE: Mapping[str, Callable[[list[float]], float]] = {
    "table_max": max,
    "table_min": min,
    "table_sum": sum,  # integer 0 for an empty row: "yes" times 0 is ""
    "table_average": lambda row: sum(row) / len(row),
}
END = "EOF"
TOKEN = re.compile(r"[^()]*\(|\)|[^()]+")
NOTHING = "n/a"
MAX_TEXT = 1_000  # characters of concatenated answers; the official script has no limit, and no row comes near

Value = float | complex | str


def tokens(program: str) -> list[str]:
    """The tokens of a program's text with `EOF`; split at `", "` and at parentheses, as in the official script."""
    return [*(token for piece in program.split(", ") for token in TOKEN.findall(piece)), END]


def is_well_formed(body: Sequence[str]) -> bool:
    """True if tokens 0, 4, 8... name an operation and tokens 3, 7, 11... are `)`.

    `body` has no `EOF`. An operation's parenthesis is not checked: `add` and `(add((` pass here.
    """
    operations = all(token.strip("(") in (*ARITHMETIC, *TABLE) for token in body[::4])
    return operations and all(token == ")" for token in body[3::4])


def steps(body: Sequence[str]) -> list[str]:
    """The text of each step, `subtract(|5829|5735|`; later ones start with `|`. Text after the last `)` is lost."""
    return [step.strip() for step in "|".join(body).split(")")[:-1]]


def parts(step: str) -> tuple[str, str, str]:
    """Operation and both arguments of a step. IndexError: no `(`, or fewer than two arguments."""
    pieces = step.split("(")
    operation, arguments = pieces[0].strip("|").strip(), pieces[1].strip("|").strip().split("|")
    return operation, arguments[0].strip(), arguments[1].strip()


def execute(tokens: Sequence[str], table: Sequence[Sequence[str]]) -> tuple[bool, float | str]:
    """Invalid flag and result of a program; never raises.

    Args:
        tokens: the program; the last token is always dropped, as in the official script.
        table: rows of cells; the first cell of a row is its name.

    Returns:
        `(False, 0.01639)`, `(False, "yes")`, or `(False, "n/a")` without any step; results are rounded to 5 digits.
        With the flag set, the result is that of the last valid step, "n/a" without one.
    """
    body = tokens[:-1]
    if not is_well_formed(body):
        return True, NOTHING
    calculator = _Calculator(table=table)
    try:
        invalid = not all(calculator.take(index, step) for index, step in enumerate(steps(body)))
        return invalid, _rounded(calculator.last)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # the official script ends in a bare `except:`, where the result is not rounded
        return True, NOTHING if isinstance(calculator.last, complex) else calculator.last


def number(text: str) -> float | None:
    """`5,829` 5829, `12.5%` 0.125, `const_100` 100, `const_m1` -1; None if it is no number.

    ValueError: text with "const" but without a number.
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
    """A table cell without `$` and text after `(`, then as `number`: `-181 ( 181 )` is -181."""
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
        """Execute one step; False if it is invalid. Raises if it cannot be calculated."""
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
            self.last = TABLE[operation](self.row or []) if operation in TABLE else self.last
        else:
            return True  # after a `|`: neither a result nor an error
        self.results[index] = self.last
        return True

    def operand(self, text: str) -> Value | None:
        return self.results[int(text.replace("#", ""))] if "#" in text else number(text)

    def finds_row(self, name: str) -> bool:
        """Read the numbers of a row. `#k` keeps those of the previous table step, if any."""
        if self.rows is None:
            self.rows = {row[0]: row[1:] for row in self.table}  # the last row with a name counts
        if "#" in name:
            self.results[int(name.replace("#", ""))]  # must exist, and is not used
            if self.row is None:
                raise LookupError("no table step before")
            return True
        if name not in self.rows:
            return False
        rows = []
        for text in self.rows[name]:
            value = cell(text)
            if value is None:
                return False
            rows.append(value)
        self.row = rows
        return True


def _apply(operation: str, left: Value, right: Value) -> Value:
    """Python's own arithmetic, like the official script's: raises for mixed text and numbers."""
    if operation == "add" and isinstance(left, str) and isinstance(right, str) and len(left) + len(right) > MAX_TEXT:
        raise ValueError("too long")
    if operation == "exp" and isinstance(left, int):
        left = float(left)
    value = ARITHMETIC[operation](left, right)
    return ("yes" if value else "no") if operation == "greater" else value
