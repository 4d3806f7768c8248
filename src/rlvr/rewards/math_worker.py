"""Comparison of `MathEqual` in the worker process; importing it loads math-verify and sympy.

math-verify's own time limits are disabled: they use `signal.alarm`, which only works in a main thread and cannot stop C
code. The sandbox's deadline can.
"""

import itertools
import logging
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, cast

import sympy
from math_verify import parse, verify

from rlvr.rewards.units import COUNT_WORDS

Comparison = Literal["equal", "different", "no gold", "no answer"]

_WORDS = re.compile(r"[A-Za-z]{3,}(?:[ -][A-Za-z]+)*|[Nn][Oo]")
_BOX = re.compile(r"\\boxed\s*\{(.*)\}")
_ROUGHLY = re.compile(r"\\(?:approx|sim|simeq|cong|doteq)(?![A-Za-z])|[≈≃≅~]")
_TEXT = re.compile(r"\\(?:text[a-z]*|mathrm|mbox)\s*\{([^{}]*)\}")
_ARITHMETIC = re.compile(r"\\(?:[dt]?frac|sqrt|cdot|times|div|left|right)(?![A-Za-z])")
_PERCENT = re.compile(r"(.*?)\s*\\?%")
_PERCENT_WORD = re.compile(r"(?<=[\d$}])\s*(?:percent(?:age)?|pct)(?![A-Za-z])")
_PERCENT_OUTSIDE = re.compile(r"\$([^$]+)\$\s*\\?%")
_AND = re.compile(r"(?:\s|\\quad)*(?:,|\band\b|\\text\{\s*and\s*\})(?:\s|\\quad)*")
_NUMBER = re.compile(r"[+-]?\d[\d.]*|[+-]?\\[dt]?frac\{\d+\}\{\d+\}")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:(?: |\\,|,?\\! ?)\d{3})+(?:\.\d+)?")  # digits by threes
_GROUP = re.compile(r" |\\,|,?\\! ?")
_ESCAPED = re.compile(r"\\.")
_OPERATIONS = (sympy.Add, sympy.Mul, sympy.Pow)
_MAX_NODES, _MAX_EXPONENT = 60, 20
_AT, _STEP = sympy.Rational(7351, 5000), sympy.Rational(4177, 10000)  # positive, and no special values


@lru_cache(maxsize=4096)
def compare(gold: str, answer: str, *, lenient: bool = False) -> Comparison:
    """Whether the answer is the gold. What is not one expression is no answer, but with `lenient` also what math-verify
    finds in it counts: in a sentence, the last of several. A gold may always be read so: data gains nothing by it.
    """
    strict, loose = _attempted(_parsed_answer, gold), _attempted(_parsed, gold)
    found = _compare(strict or loose, _attempted(_parsed_answer, answer))
    if not lenient or found in ("equal", "no gold"):
        return found
    said = _attempted(_parsed, answer)
    read = {_compare(golds, said) for golds in (strict, loose) if golds}
    return "equal" if "equal" in read else found if "no answer" in read else "different"


def _compare(golds: list[Any], answers: list[Any]) -> Comparison:
    if not golds:
        return "no gold"
    if not answers:
        return "no answer"
    if len(golds) == len(answers) == 1 and differ_in_value(golds[0], answers[0]):
        return "different"
    equal = verify(golds, answers, timeout_seconds=None, raise_on_error=True)
    return "equal" if equal else "different"


def differ_in_value(gold: object, answer: object) -> bool:
    """True only if two formulas of + - x / and powers differ numerically at a point: math-verify would then agree,
    after a search for a simplification that takes a hundred times as long.
    """
    if not (isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr)):
        return False
    if gold.is_Symbol or answer.is_Symbol or not (_is_arithmetic(gold) and _is_arithmetic(answer)):
        return False
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    point: dict[Any, Any] = {symbol: _AT + _STEP * index for index, symbol in enumerate(symbols)}
    difference = (gold - answer).evalf(15, subs=point)
    return bool(difference.is_comparable and abs(difference) > 1e-4 * (1 + abs(gold.evalf(15, subs=point))))


def _is_arithmetic(expression: sympy.Expr) -> bool:
    nodes = list(itertools.islice(sympy.preorder_traversal(expression), _MAX_NODES + 1))
    exponents = [node.exp for node in nodes if isinstance(node, sympy.Pow)]
    return (
        len(nodes) <= _MAX_NODES
        and all(node.is_Symbol or (node.is_number and node.is_Atom) or node.func in _OPERATIONS for node in nodes)
        and all(exponent.is_Rational and abs(exponent) <= _MAX_EXPONENT for exponent in exponents)
    )


def _attempted(read: Callable[[str], list[Any]], text: str) -> list[Any]:
    """The expressions of a text; none where math-verify fails, as on some texts that are no expression."""
    try:
        return read(text)
    except MemoryError:
        raise
    except Exception:
        return []


@lru_cache(maxsize=1024)
def _parsed_answer(answer: str) -> list[Any]:
    """The answer's expression, as a list of at most one; sets and tuples are one expression."""
    latex = as_latex(answer)
    return [] if latex is None else _parsed(latex)


def _parsed(text: str) -> list[Any]:
    # no fallback: two unparsable texts must not be equal
    found = parse(text, fallback_mode="no_fallback", parsing_timeout=cast(int, None), raise_on_error=True)
    # exclude 1/0; a text is what math-verify found and could not read
    return [one for one in found if not isinstance(one, str) and not one.has(sympy.zoo, sympy.nan)]


def as_latex(answer: str) -> str | None:
    """The answer in a form that math-verify recognizes, or None if it is not one expression.

    `1/2` -> `\\boxed{1/2}`, `$x$` -> `\\boxed{x}`, `12\\%` -> `$12$%`, `yes` -> `\\boxed{\\text{yes}}`;
    `\\boxed{1}, \\boxed{2}`, `6 and 8` -> `\\boxed{1, 2}`, `\\boxed{6, 8}`; `1 000` -> `\\boxed{1000}`;
    `5} and \\boxed{7`, `$5$ or $7$`, and answers that math-verify would read only in part -> None: `x=6=5`, `6=5`,
    `7 \\approx 8`, `3\\text{ thousand}`.
    """
    body = _PERCENT_WORD.sub(r"\\%", _listed(" ".join(answer.split())))
    body = _PERCENT_OUTSIDE.sub(r"\1\\%", body)
    while len(body) > 2 and body[0] == body[-1] == "$":
        body = body[1:-1].strip()
    body = body.removeprefix("$").strip()
    box = _BOX.fullmatch(body)
    body = _listed((box[1] if box else body).strip())
    if _GROUPED.fullmatch(body):
        body = _GROUP.sub("", body)
    plain = _ESCAPED.sub("", body)  # without escaped characters
    depths = [0, *itertools.accumulate((character == "{") - (character == "}") for character in plain)]
    is_balanced = min(depths) == depths[-1] == 0
    if not body or "$" in plain or "\\boxed" in body or not is_balanced or _is_read_in_part(body):
        return None
    if _WORDS.fullmatch(body):
        return f"\\boxed{{\\text{{{body}}}}}"
    percent = _PERCENT.fullmatch(body)
    return f"${percent[1]}$%" if percent else f"\\boxed{{{body}}}"


def _listed(body: str) -> str:
    """`\\boxed{1} \\text{ and } \\boxed{2}` and `6 and 8` with commas; other texts as they are."""
    parts = _AND.split(body)
    if len(parts) == 1 or not all(parts):
        return body
    boxes = [_BOX.fullmatch(part) for part in parts]
    if all(box and "\\boxed" not in box[1] for box in boxes):
        return ", ".join(box[1] for box in boxes if box)
    return ", ".join(parts) if "and" in body and all(map(_NUMBER.fullmatch, parts)) else body


def _is_read_in_part(body: str) -> bool:
    """True for a second or a false claim in addition to the one that math-verify reads."""
    if _ROUGHLY.search(body):
        return True
    for equation in body.split(","):
        left, *rights = equation.split("=")
        if len(rights) > 1 or (rights and left.strip() and not re.search("[A-Za-z]", _ARITHMETIC.sub("", left))):
            return True
    return any(not COUNT_WORDS.isdisjoint(text.lower().split()) for text in _TEXT.findall(body))


logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are disabled
compare("\\frac{1}{2}", "0.5")  # builds the parser's tables before workers are forked
