"""Comparison of `MathEqual` in the worker process; importing it loads math-verify and sympy.

Texts are read by `rlvr.rewards.math_reader`. math-verify compares what was read, and nothing that it says decides
alone: numbers are compared here, also those within sets, tuples, intervals and matrices.

math-verify's own time limits are disabled: they use `signal.alarm`, which only works in a main thread and cannot stop C
code. The sandbox's deadline can.
"""

import itertools
import logging
import re
from functools import lru_cache
from typing import Any, Literal, cast

import sympy
from math_verify import parse, verify
from sympy.core.function import AppliedUndef

from rlvr.rewards.math_reader import Reading, read
from rlvr.rewards.math_text import body_of

Comparison = Literal["equal", "different", "no gold", "no answer"]

_RELATIVE = sympy.Rational(1, 10**15)  # of the difference of two numbers that are equal
_APART = 1e-6  # relative difference of two formulas at a point
_DIGITS, _MAX_DIGITS = 25, 2_000
_HUNDRED = sympy.Integer(100)
_SPACES = re.compile(r"(?<!\w)\s+|\s+(?!\w)")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_MAX_NODES = 100
_AT, _STEP = sympy.Rational(7351, 5000), sympy.Rational(4177, 10000)  # positive, and no special values
_RELATIONS = (sympy.core.relational.Relational, sympy.And)
_OPERATIONS = (sympy.Add, sympy.Mul, sympy.Pow)


@lru_cache(maxsize=4096)
def compare(gold: str, answer: str, *, prompt: str = "", lenient: bool = False) -> Comparison:
    """Whether the answer is the gold: letter by letter, or by what was read of both as a whole.

    With `lenient` also what math-verify finds in either counts: in a sentence, the last of several. Words of the prompt
    and of the gold may be units.
    """
    if is_same_text(gold, answer):
        return "equal"
    has_words = any(mark in text for mark in ("\\text", " ") for text in (gold, answer))
    known = f"{prompt}\n{gold}" if has_words else ""
    strict = _compared(read(gold, known), read(answer, known))
    if not lenient or strict == "equal":
        return strict
    golds, answers = [*_strictly(gold), *_loosely(gold)], _loosely(answer)
    if not golds:
        return "no gold"
    if not answers:
        return "no answer"
    equal = any(_verified(one, other) for one, other in itertools.product(golds, answers))
    return "equal" if equal else "different"


def is_readable(gold: str, *, lenient: bool = False) -> bool:
    """Whether the text is one answer as a whole, so that it can be a gold."""
    return read(gold, gold) is not None or (lenient and bool(_loosely(gold)))


def is_same_text(gold: str, answer: str) -> bool:
    """Whether the texts are equal but for spaces and wrappers, and have a letter or digit."""
    if gold != answer:
        gold, answer = (_SPACES.sub("", " ".join(_TEXT.sub(r" \1 ", body_of(text)).split())) for text in (gold, answer))
    return gold == answer and any(map(str.isalnum, gold))


def _compared(gold: Reading | None, answer: Reading | None) -> Comparison:
    if gold is None:
        return "no gold"
    if answer is None:
        return "no answer"
    if gold.time and answer.time:
        return "equal" if gold.time == answer.time else "different"
    if any(same(one, other) for one, other in _values(gold, answer)):
        return "equal"
    hedges = answer.has_or and not isinstance(gold.value, sympy.Set | sympy.Tuple)
    return "no answer" if hedges else "different"


def _values(gold: Reading, answer: Reading) -> list[tuple[Any, Any]]:
    """The values to compare: a percentage of one or more also without its sign, against one without."""
    pairs = [(_value(gold), _value(answer))]
    if gold.is_percent != answer.is_percent:
        percentage = gold if gold.is_percent else answer
        if not isinstance(percentage.value, sympy.Expr) or not _is_below_one(percentage.value):
            pairs.append((gold.value, answer.value))
    return pairs


def _value(reading: Reading) -> Any:
    return sympy.Mul(reading.value, 1 / _HUNDRED) if reading.is_percent else reading.value


def _is_below_one(value: sympy.Expr) -> bool:
    number = _number(value)
    return number is not None and bool(abs(number) < 1)


def same(gold: Any, answer: Any) -> bool:
    """Whether two things that were read are equal: numbers to 15 digits, everything else if math-verify agrees."""
    if isinstance(gold, str) or isinstance(answer, str):
        return isinstance(gold, str) and isinstance(answer, str) and _same_name(gold, answer)
    if isinstance(gold, sympy.Set) and isinstance(answer, _RELATIONS):
        answer = _points(answer)
    if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr) and gold.is_integer and answer.is_integer:
        return _same_integer(gold, answer)
    numbers = _number(gold), _number(answer)
    if None not in numbers:
        return _same_number(*cast(Any, numbers))
    if (
        _is_no_value(gold, answer)
        or _is_no_value(answer, gold)
        or differ_in_value(gold, answer)
        or not _same_numbers(gold, answer)
    ):
        return False
    return verify([gold], [answer], timeout_seconds=None, raise_on_error=True)


def _is_no_value(equation: Any, other: Any) -> bool:
    """True for `x+y=5` or `2x=5` beside a value: what names no unknown alone does not give its value."""
    if not isinstance(equation, sympy.Eq) or isinstance(other, _RELATIONS):
        return False
    return not all(map(_is_name, _parts(equation.lhs)))


def _parts(left: Any) -> tuple[Any, ...]:
    """The names in `AB`, `a/b` and `(a, b)`."""
    if isinstance(left, sympy.Pow) and left.exp == -1:
        return _parts(left.base)
    if isinstance(left, sympy.Abs) and left.args[0].is_Mul:  # the length |AB|
        return _parts(left.args[0])
    is_many = isinstance(left, sympy.Mul | sympy.Tuple | sympy.Interval | sympy.FiniteSet)
    return tuple(name for part in left.args for name in _parts(part)) if is_many else (left,)


def _is_name(part: Any) -> bool:
    return part.is_Symbol or isinstance(part, AppliedUndef) or part in (sympy.E, sympy.I, sympy.true, sympy.false)


def _same_integer(gold: Any, answer: Any) -> bool:
    """Equal in each digit, where there are not too many."""
    numbers = _number(gold), _number(answer)
    if None in numbers:
        return bool(gold == answer)
    digits = sympy.ceiling(sympy.log(abs(numbers[0]) + 1, 10).evalf(_DIGITS))
    if not _same_number(*numbers) or digits > _MAX_DIGITS:
        return _same_number(*numbers)
    return bool(abs((gold - answer).evalf(int(digits) + _DIGITS, chop=False)) < sympy.Rational(1, 2))


def _points(relation: Any) -> Any:
    """Where an inequality of one unknown holds; the relation itself if that is not known."""
    try:
        return sympy.And(*relation.args).as_set() if isinstance(relation, sympy.And) else relation.as_set()
    except (NotImplementedError, AttributeError, TypeError):
        return relation


def _verified(gold: Any, answer: Any) -> bool:
    """What math-verify says, which rounds to 6 decimals, but for small numbers that differ."""
    one, other = _number(gold), _number(answer)
    is_far = one is not None and other is not None and abs(one - other) > _APART * abs(one)
    has_sign = any(isinstance(value, sympy.Basic) and value.has(sympy.UnevaluatedExpr) for value in (gold, answer))
    return not (is_far and not has_sign) and verify([gold], [answer], timeout_seconds=None, raise_on_error=True)


def _strictly(gold: str) -> list[Any]:
    reading = read(gold)
    if reading is None or isinstance(reading.value, str):
        return []
    percent = sympy.UnevaluatedExpr(1 / _HUNDRED)
    return [sympy.Mul(reading.value, percent, evaluate=False) if reading.is_percent else reading.value]


def _same_name(gold: str, answer: str) -> bool:
    """Equal texts; a residue class without the name of its unknown is the one with it."""
    if " mod " in gold and (gold.startswith(" = ") or answer.startswith(" = ")):
        return gold.partition(" = ")[2] == answer.partition(" = ")[2]
    return gold == answer


def _number(value: Any) -> Any:
    """The value to 25 digits, a fraction exactly; None if it is no number."""
    if not isinstance(value, sympy.Expr) or value.is_Matrix or value.free_symbols:
        return None
    if value.is_Rational:
        return value
    found = value.evalf(_DIGITS)
    parts = found.as_real_imag()
    return found if all(part.is_Float or part.is_Rational for part in parts) else None


def _same_number(gold: Any, answer: Any) -> bool:
    """Equal to 15 digits of the gold; whole numbers exactly, and 0 only equals 0."""
    if gold.is_Integer and answer.is_Integer:
        return bool(gold == answer)
    if _is_zero(gold) or _is_zero(answer):
        return _is_zero(gold) and _is_zero(answer)
    return bool(abs(gold - answer) <= _RELATIVE * abs(gold))


def _is_zero(number: Any) -> bool:
    """Whether a number is 0, or has no digit that could be computed, as sin(pi)."""
    return all(part == 0 or getattr(part, "_prec", _DIGITS) == 1 for part in number.as_real_imag())


def _same_numbers(gold: Any, answer: Any) -> bool:
    """False if a number in one of the two, such as an end of an interval, is none in the other."""
    golds, answers = ([n for n in map(_number, _items(value)) if n is not None] for value in (gold, answer))
    if len(golds) != len(answers):
        return True  # for math-verify to decide
    for number in golds:
        place = next((place for place, other in enumerate(answers) if _same_number(number, other)), None)
        if place is None:
            return False
        del answers[place]
    return True


def _items(value: Any) -> list[Any]:
    """What a set, tuple, interval or matrix consists of, or the number that an unknown is compared with."""
    if isinstance(value, sympy.MatrixBase):
        return value.flat()
    if isinstance(value, sympy.Interval):
        return [value.start, value.end]
    if isinstance(value, sympy.Set | sympy.Tuple | sympy.logic.boolalg.BooleanFunction):
        return [item for part in value.args for item in _items(part)]
    if isinstance(value, sympy.core.relational.Relational):
        sides = (value.lhs, value.rhs)
        return [item for side in sides for item in _items(side)] if any(side.is_Symbol for side in sides) else []
    return [value]


def differ_in_value(gold: object, answer: object) -> bool:
    """True only if two formulas of + - x /, powers and functions differ numerically at a point: math-verify would then
    agree, or round small numbers, after a search for a simplification that takes a hundred times as long.
    """
    if not (isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr)):
        return False
    if gold.is_Symbol or answer.is_Symbol or not (_is_elementary(gold) and _is_elementary(answer)):
        return False
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    point: dict[Any, Any] = {symbol: _AT + _STEP * index for index, symbol in enumerate(symbols)}
    one, other = (value.evalf(15, subs=point) for value in (gold, answer))
    if not (one.is_number and other.is_number and (one - other).is_comparable):
        return False
    return bool(abs(one - other) > _APART * max(abs(one), abs(other)))


def _is_elementary(expression: sympy.Expr) -> bool:
    nodes = list(itertools.islice(sympy.preorder_traversal(expression), _MAX_NODES + 1))
    return len(nodes) <= _MAX_NODES and all(
        node.is_Symbol or (node.is_number and node.is_Atom) or isinstance(node, _OPERATIONS + _FUNCTIONS)
        for node in nodes
    )


_FUNCTIONS = (
    *(sympy.exp, sympy.log, sympy.Abs, sympy.factorial),
    *(sympy.sin, sympy.cos, sympy.tan, sympy.asin, sympy.acos, sympy.atan, sympy.sinh, sympy.cosh, sympy.tanh),
)


def _loosely(text: str) -> list[Any]:
    """What math-verify finds in a text; nothing where it fails, as on some texts that are no expression."""
    try:
        # no fallback: two unparsable texts must not be equal
        parsed = parse(text, fallback_mode="no_fallback", parsing_timeout=cast(int, None), raise_on_error=True)
    except MemoryError:
        raise
    except Exception:
        return []
    # exclude 1/0; a text is what math-verify found and could not read
    return [one for one in parsed if not isinstance(one, str) and not one.has(sympy.zoo, sympy.nan)]


logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are disabled
compare("\\frac{1}{2}", "0.5+0")  # builds the parser's tables before workers are forked
