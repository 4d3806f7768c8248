r"""One strict reader of mathematical answers, for golds and answers alike; importing it loads math-verify and sympy.

A text is read whole or not at all: what math-verify's parser made of it must account for every number, letter, command
and word of the text (`accounts_for`). What the parser cannot know is read here first:

    text                                      reading
    18   1,080   12.5\%   6.6e-34             a number, exactly
    $x$   \boxed{x}   x.   = x                x
    6 and 8   x=1 \text{ or } x=-2            a set; inequalities: their intersection and union
    12:00   06:30 p.m.   18:30                a time
    0.1\overline{6}   0.\dot{3}               a fraction
    1 1/2   4\sqrt(2)   2(3)                  \frac{3}{2}   4\sqrt{2}   2 \cdot (3)
    \mathrm{e}   2 + 3\mathrm{i}              the constants
    x \equiv 5 \pmod{7}                       a residue class
    101_2   FF_{16}                           a numeral with its base
    18\text{ eggs}   3\,\mathrm{cm}^2   \$5   the number: units are not graded
    yes   \text{no solution}                  words
    \angle ABC   \triangle ABC                a name of points, in this order
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig

from rlvr.rewards.math_text import SPACE, body_of, claims_twice, is_balanced, rewritten, split_by_words
from rlvr.rewards.numbers import CURRENCIES, Number, parse_answer, ungrouped
from rlvr.rewards.units import words_of

_ARGUMENTS_ONLY = NormalizationConfig(  # \\frac12 is \\frac{1}{2}; nothing is taken away before the grammar sees it
    basic_latex=False, units=False, malformed_operators=True, nits=False, boxed="none"
)
_WORDS = re.compile(r"[A-Za-z]{3,}(?:[ -][A-Za-z]+)*|[A-Za-z]{2,}(?:[ -][A-Za-z]+)+|[Nn][Oo]")
_NAME = re.compile(r"[A-Z][A-Za-z]?\d+")  # of an option, a point or a quarter: products begin with their number
_PLAIN = re.compile(
    rf"[+-]?(?:\\?\$|[{CURRENCIES}] ?)?[+-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
    rf"(?: ?(?:\\?%|[{CURRENCIES}]|\\\$))?"
)
_SPACED = re.compile(r"[+-]?\d{1,3}(?: \d{3})+(?:\.\d+)?")  # 1 000
_PERCENT_END = re.compile(r"(.*?)\s*\\?%")
_CLOCK = re.compile(
    r"([01]?\d|2[0-4])\s*:\s*([0-5]\d)(?:\s*:\s*([0-5]\d))?\s*(?:\\text\s*\{\s*)?(?:([apAP])\.? ?[mM]\.?)?\s*\}?"
)
_NUMERAL = re.compile(
    r"(?:\\(?:text|mathrm)\s*\{([0-9A-Z]+)\}|\(?([0-9A-Z]+)\)?)\s*_\s*(?:\{\s*(\d+|(?:\\text\s*\{\s*)?[a-z]+\s*\}?)\s*\}|(\d+))"
)
_BASES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_CONGRUENT = re.compile(
    r"(?:(.+?)\\equiv)?(?![^\\]*\\equiv)(.+?)(?:\\pmod|\(?\s*\\?(?:bmod|mod|text\s*\{\s*mod\s*\}|mathrm\s*\{\s*mod\s*\}))\s*"
    r"(?:\{(.+)\}|([^{}]+?))\s*\)?"
)
_INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|lt|gt|ne|leq|geq|neq|leqslant|geqslant)(?![A-Za-z])")
_RELATION = re.compile(rf"=|\\in(?![A-Za-z])|{_INEQUALITY.pattern}")
_LOGIC = re.compile(r"\\(?:land|lor|wedge|vee)(?![A-Za-z])")
_FIGURE = re.compile(r"\\(angle|measuredangle|triangle|square|odot|parallel|perp)\s*\{?\s*([A-Z]{2,}'*)\s*\}?")
_ONE_IN_BRACKETS = re.compile(r"\[[^\[\],;]*\]")  # a list, or an interval without its other end
_VECTORS = re.compile(r"\\(?:vec|mathbf|bm|boldsymbol|overrightarrow|hat)(?![A-Za-z])")
_WORD_BESIDE = re.compile(rf"(?<=[\d}})]){SPACE}\\(?:text[a-z]*|mathrm|mbox)\s*\{{[^{{}}]*[A-Za-z]{{2}}[^{{}}]*\}}")
_BESIDE = re.compile(r"(?<![\d_^.])[\d.]+(?:\\[,;:! ]|\\quad|\\qquad|~|\s)+\d")  # two numbers
_SENTENCE = re.compile(  # no product of letters, no quotient
    r"\d\s*/\s*\d+\s*/\s*\d|(?<![A-Za-z\\{])[A-Z][a-z]{2,}(?![A-Za-z}])|(?<![A-Za-z\\{])[A-Z]\d|"
    r"(?<![A-Za-z\\{])(?!arsinh|arcosh|artanh|arcsinh|arccosh|arctanh|floor|ceil)(?=[A-Z]*[a-z])[A-Za-z]{4,}(?![A-Za-z}])"
    r"|(?<![A-Za-z\\{])[A-Za-z]{2,} [A-Za-z]{2,}"
)
_ZEROS = re.compile(r"(?<![\d.])0\d")  # the 05 of 1,05

_TOKEN = re.compile(
    r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?|"
    r"\\(?:begin|end|operatorname|math[a-z]*)\s*\{[^{}]*\}|\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\.\d+|[^\s]"
)
REPARSED_CHARS = 4_000
"""Of an expression that is parsed again for its tokens; longer ones, of models that repeat themselves, are not read."""
_LAYOUT = frozenset(
    (r"\text", r"\cdot", r"\times", r"\frac", r"\sqrt", r"\,", r"\quad", r"\qquad", r"\\", r"\{", r"\}")
)
"""Commands that say nothing by themselves, or that the grammar cannot lose as they take arguments."""
_GRAMMAR = frozenset("+-*/^=<>()[]{}|,;:&_%!.")
"""Characters that the parser's grammar either uses or refuses."""


@dataclass(frozen=True, slots=True)
class Reading:
    """`Reading(sympy.Rational(25, 2), is_percent=True)` is 12.5%, written in hundredths.

    `value` is a sympy object, or a text for what has no value (a time, a numeral with a base). `time`: the text of what
    may be a time. `has_or`: leaves a choice between several.
    """

    value: Any
    time: str = ""
    is_percent: bool = False
    has_or: bool = False


@lru_cache(maxsize=2048)
def read(text: str, prompt: str = "") -> Reading | None:
    """The one answer that the whole text is; None if there is none, or a part of it cannot be read.

    Words of the prompt may be units: `18\\text{ egg}`.
    """
    body = body_of(text)
    if not body or not is_balanced(body):
        return None
    try:
        return _read_body(body, words_of(prompt) if prompt else frozenset())
    except MemoryError:
        raise
    except Exception:  # of the parser, for what its grammar does not know
        return None


def _read_body(body: str, known: frozenset[str]) -> Reading | None:
    if _ONE_IN_BRACKETS.fullmatch(body) or (_VECTORS.search(body) and "\\times" in body):
        return None  # the parser would forget the brackets, and the order of a product of vectors
    for special in (_plain, _words, _figure, _clock, _numeral, _congruence):
        found = special(body)
        if found is not None:
            return found
    parts, joins = split_by_words(body)
    if len(parts) > 1:
        return _joined(body, parts, joins, known)
    percent = _PERCENT_END.fullmatch(body)
    value = _expression(percent[1] if percent else body, known)
    return None if value is None else Reading(value, is_percent=percent is not None)


def _plain(body: str) -> Reading | None:
    compact = body.replace(" ", "") if _SPACED.fullmatch(body) else ungrouped(body)
    number = parse_answer(compact) if _PLAIN.fullmatch(compact) else None
    if not isinstance(number, Number):
        return None
    is_percent = number.unit != 1
    value = number.value / number.unit if is_percent else number.value
    return Reading(_rational(value), is_percent=is_percent)


def _rational(value: Fraction) -> Any:
    return sympy.Rational(value.numerator, value.denominator)


def _words(body: str) -> Reading | None:
    """Words of three letters and more are no product of letters."""
    if _NAME.fullmatch(body):
        return Reading(body)
    return Reading(sympy.Symbol(body.lower().replace(" ", ""), real=True)) if _WORDS.fullmatch(body) else None


def _figure(body: str) -> Reading | None:
    """Points after the sign of what they are corners of: their order matters, which a product of letters has not."""
    match = _FIGURE.fullmatch(body)
    if match is None:
        return None
    sign, points = match.groups()
    points = min(points, points[::-1]) if "angle" in sign and sign != "triangle" and points.isalpha() else points
    return Reading(f"{sign} {points}")


def _clock(body: str) -> Reading | None:
    """A time. Without a zero, seconds or half of the day it may also be a ratio in its lowest terms: 2:15."""
    match = _CLOCK.fullmatch(body)
    if match is None:
        return None
    hours, minutes, seconds, half = match.groups()
    hour, half = int(hours), (half or "").lower()
    if half and not 1 <= hour <= 12:
        return None
    if not half and (hour > 12 or hour == 0):  # as with a half: 18:00 is 6:00 PM
        hour, half = hour % 12 or 12, "p" if 12 < hour < 24 else "a"
    time = f"{hour}:{minutes}:{seconds or '00'} {half}".strip()
    is_ratio = not (seconds or match[4] or hours.startswith("0")) and math.gcd(int(hours), int(minutes)) == 1
    is_ratio = is_ratio and not minutes.startswith("0")
    return Reading(sympy.Rational(int(hours), int(minutes)) if is_ratio else time, time=time)


def _numeral(body: str) -> Reading | None:
    found = _NUMERAL.fullmatch(body)
    if found is None:
        return None
    digits, said = found[1] or found[2], (found[3] or found[4]).removeprefix("\\text").strip(" {}")
    base = _BASES.index(said) + 2 if said in _BASES else int(said) if said.isdigit() else 0
    is_numeral = digits[0].isdigit() or len(digits) > 1
    if not is_numeral or not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits):
        return None
    return Reading(f"{digits.lstrip('0') or '0'} in base {base}")


def _congruence(body: str) -> Reading | None:
    found = _CONGRUENT.fullmatch(body)
    if found is None:
        return None
    left, residues, modulus = found[1], found[2], _expression(found[3] or found[4], frozenset())
    named = _expression(left, frozenset()) if left else None
    value = _expression(residues, frozenset())
    if modulus is None or value is None or (left and named is None):
        return None
    values = value.args if isinstance(value, sympy.FiniteSet) else (value,)
    classes = sorted({str(sympy.Mod(one, modulus)) for one in values})
    return Reading(f"{'' if named is None else named} = {' '.join(classes)} mod {modulus}")


def _joined(body: str, parts: list[str], joins: list[str], known: frozenset[str]) -> Reading | None:
    """A set of solutions, or of the points where inequalities hold."""
    has_or = any("or" in join for join in joins)
    if _LOGIC.search(body) and not all(map(_RELATION.search, parts)):
        return None  # a formula of logic, no solutions
    if not any(map(_INEQUALITY.search, parts)):
        value = _expression(", ".join(part.strip(" ,") for part in parts), known)
        return None if value is None else Reading(value, has_or=has_or)
    values = [_expression(part, known) for part in parts]
    if None in values or len(set(joins)) > 1:
        return None
    sets = [value if isinstance(value, sympy.Set) else value.as_set() for value in values if value is not None]
    return Reading((sympy.Union if has_or else sympy.Intersection)(*sets), has_or=has_or)


def _expression(latex: str, known: frozenset[str]) -> Any:
    """What math-verify's parser makes of the whole expression; None if it loses a part."""
    latex = rewritten(latex.strip(), known)
    if not latex or "$" in re.sub(r"\\.", "", latex) or "\\boxed" in latex or claims_twice(latex):
        return None
    if any(pattern.search(latex) for pattern in (_WORD_BESIDE, _BESIDE, _ZEROS, _SENTENCE)):
        return None
    value = _parsed(latex)
    if isinstance(value, list) or value.has(sympy.zoo, sympy.nan) or not accounts_for(latex, value):
        return None
    names = {sympy.Symbol("i", real=True): sympy.I} if _has_symbol(value, "i") else {}
    return value.xreplace(
        names | {slope: _slope(slope) for slope in value.atoms(sympy.Derivative) if slope.expr.is_Symbol}
    )


def _slope(derivative: sympy.Derivative) -> sympy.Symbol:
    """`dy/dx` of names is a name: that y depends on x is not said, so sympy would make it 0."""
    return sympy.Symbol(str(derivative), real=True)


def _has_symbol(value: Any, name: str) -> bool:
    return any(symbol.name == name for symbol in value.free_symbols)


@lru_cache(maxsize=4096)
def _parsed(latex: str) -> Any:
    return latex2sympy(latex, is_real=True, convert_degrees=False, normalization_config=_ARGUMENTS_ONLY)


def accounts_for(latex: str, value: Any) -> bool:
    """Whether each number, letter, word and command of the expression stands in what was read.

    What is found in it by name is there, and a letter must be. Another number, as the 4 of `\\frac{4}{6}`, is there if
    another one in its place reads otherwise, a command or sign if the text without it does: `101_2`, `x'`, `5 \\ldots`
    are read in part.
    """
    there, spent = _contents(value), 0
    for token in _TOKEN.finditer(latex):
        text = token[0]
        if text in _LAYOUT or text in _GRAMMAR or text.startswith(("\\begin", "\\end")):
            continue
        name = _name(text)
        if there[name] > 0:
            there[name] -= 1
            continue
        spent += len(latex)
        if spent > REPARSED_CHARS or not _makes_a_difference(latex, token, value, there):
            return False
    return True


def _makes_a_difference(latex: str, token: re.Match[str], value: Any, there: Counter[str]) -> bool:
    text = token[0]
    if text.isascii() and len(text) == 1 and not text.isdigit() and text != "e":  # x' is no x
        return text == "d" and ("integral" in there or "derivative" in there)
    alike = (_reads_alike(latex, token, other, value) for other in _others(text))
    return not (all(alike) if text[-1].isdigit() else any(alike))


def _name(token: str) -> str:
    if token[0].isdigit() or token[0] == ".":
        return str(Fraction(token))
    return token.removeprefix("\\").lower()


def _others(token: str) -> list[str]:
    """Another number; nothing for another token, or a shorter command (`\\lnot` is no `\\ln ot`)."""
    if token[-1].isdigit():
        return [f"{token[:-1]}{(int(token[-1]) + step) % 10}" for step in (1, 2)]
    return ["", *(f"{token[:end]} {token[end:]}" for end in range(3, len(token)) if token[1:].isalpha())]


def _reads_alike(latex: str, token: re.Match[str], other: str, value: Any) -> bool:
    try:
        return _parsed(f"{latex[: token.start()]} {other} {latex[token.end() :]}") == value
    except MemoryError:
        raise
    except Exception:
        return False


def _contents(value: Any) -> Counter[str]:
    """Numbers, letters, and names of functions and constants in an unevaluated expression, with their counts."""
    found = Counter[str]()
    for node in sympy.preorder_traversal(value):
        found.update(_of_node(node))
    return found


def _of_node(node: Any) -> Iterator[str]:
    if isinstance(node, sympy.Integer):
        yield str(abs(int(node)))
    elif isinstance(node, sympy.Rational):
        if node.p != 1:  # not the exponent of a root, which has no digit in the text
            yield from (str(abs(node.p)), str(node.q))
    elif isinstance(node, sympy.Float):
        yield str(Fraction(repr(abs(float(node)))))
    elif isinstance(node, sympy.Symbol):
        yield node.name.lower()
        yield from (node.name.lower() if len(node.name) > 1 else "")
    elif node is sympy.E or isinstance(node, sympy.exp):
        yield from ("e", "exp")
    elif node is sympy.I:
        yield "i"
    elif isinstance(node, sympy.Basic) and not isinstance(node, sympy.Add | sympy.Mul | sympy.Pow):
        name = type(node).__name__
        yield _CLASSES.get(name, name.removeprefix("\\").lower())


_CLASSES = {"Infinity": "infty", "NegativeInfinity": "infty"}
