r"""One strict reader of mathematical answers, for golds and answers alike; importing it loads math-verify and sympy.

A text is read whole or not at all: what math-verify's parser made of it must account for every number, letter, command
and word of the text (`accounts_for`). What the parser cannot know is read here first:

    text                                      reading
    18   1,080   12.5\%   6.6e-34             a number, exactly
    $x$   \boxed{x}   x.   = x                x
    6 and 8   x=1 \text{ or } x=-2            a set; inequalities: their intersection and union
    12:00   06:30 p.m.                        a time
    0.1\overline{6}   0.\dot{3}               a fraction
    1 1/2   4\sqrt(2)   2(3)                  \frac{3}{2}   4\sqrt{2}   2 \cdot (3)
    \mathrm{e}   2 + 3\mathrm{i}              the constants
    x \equiv 5 \pmod{7}                       a residue class
    101_2   FF_{16}                           a numeral with its base
    18\text{ eggs}   3\,\mathrm{cm}^2   \$5   the number: units are not graded
    yes   \text{no solution}                  words
"""

import itertools
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

from rlvr.rewards.numbers import Number, parse_answer, ungrouped
from rlvr.rewards.units import are_units, is_measure, words_of

_ARGUMENTS_ONLY = NormalizationConfig(  # \\frac12 is \\frac{1}{2}; nothing is taken away before the grammar sees it
    basic_latex=False, units=False, malformed_operators=True, nits=False, boxed="none"
)

_UNICODE = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2013\ufe63\uff0d", "-"),
        **{"×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∞": r"\infty "},
        **{"∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "π": r"\pi ", "°": r"^\circ ", "≡": r"\equiv "},
    }
)
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z({\[])")  # data that were escaped twice
_OPENING = re.compile(r"\$\$?|\\\(|\\\[|\\(?:boxed|fbox)\s*\{")
_AFTER = re.compile(r"\s*(\\?%)|\s+([A-Za-z]{2,}(?: [A-Za-z]+)*)(?<!and)(?<!or)")
_WORDS = re.compile(r"[A-Za-z]{3,}(?:[ -][A-Za-z]+)*|[Nn][Oo]")
_PLAIN = re.compile(r"[+-]?(?:\\?\$)?[+-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?: ?\\?%)?")
_SPACED = re.compile(r"[+-]?\d{1,3}(?: \d{3})+(?:\.\d+)?")  # 1 000
_PERCENT_END = re.compile(r"(.*?)\s*\\?%")
_PERCENT_WORD = re.compile(
    r"(?<=[\d$})])\s*(?:\\text\s*\{\s*(?:percent(?:age)?|pct)\s*\}|(?:percent(?:age)?|pct)(?![A-Za-z]))"
)
_CLOCK = re.compile(
    r"([01]?\d|2[0-4])\s*:\s*([0-5]\d)(?:\s*:\s*([0-5]\d))?\s*(?:\\text\s*\{\s*)?(?:([apAP])\.? ?[mM]\.?)?\s*\}?"
)
_NUMERAL = re.compile(
    r"(?:\\(?:text|mathrm)\s*\{([0-9A-Z]+)\}|\(?([0-9A-Z]+)\)?)\s*_\s*(?:\{\s*(\d+|(?:\\text\s*\{\s*)?[a-z]+\s*\}?)\s*\}|(\d+))"
)
_BASES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_CONGRUENT = re.compile(
    r"(?:(.+?)\\equiv)?(?![^\\]*\\equiv)(.+?)(?:\\pmod|\(\s*\\(?:bmod|mod|text\s*\{\s*mod\s*\}|mathrm\s*\{\s*mod\s*\}))\s*"
    r"(?:\{(.+)\}|([^{}]+?))\s*\)?"
)
_SPACE = r"(?:\\[,;:! ]|\\quad|\\qquad|~|\s)*"
_JOINED = re.compile(
    rf"{_SPACE},?{_SPACE}(?:\\text[a-z]*\s*\{{\s*(and|or)\s*\}}|(?<![A-Za-z\\])(and|or)(?![A-Za-z])|\\(lor|vee|land|wedge)"
    rf"(?![A-Za-z])){_SPACE}"
)
_BETWEEN = re.compile(rf"{_JOINED.pattern}|{_SPACE},?{_SPACE}")
_INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|lt|gt|ne|leq|geq|neq|leqslant|geqslant)(?![A-Za-z])")
_REPEATING = re.compile(
    r"(\d+)?\.(\d*)(?:\\(?:overline|bar|overparen)\s*(?:\{\s*(\d+)\s*\}|(\d))|\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?)"
)
_FONT = re.compile(
    r"\\(?:math(?:rm|bf|it|sf|tt|normal)|text(?:rm|bf|it|sf|normal)?|mbox|operatorname)\s*"
    r"\{\s*([A-Za-z]|[+-]?\d[\d.,]*)\s*\}"
)
_UNIT = re.compile(
    rf"(?<=[\d}})]){_SPACE}(?:\\(?:text[a-z]*|mathrm|mbox|hbox)\s*\{{([^{{}}]*)\}}|(\s*[A-Za-z]{{2,}}(?: [A-Za-z]+)*)(?=\s*(?:\^|[,;)\]]|$)))"
    rf"(?:\s*\^\s*(?:\{{[23]\}}|[23]))?(?=\s*(?:[,;)\]]|\\\}}|$))"
)
_NEAR_UNITS = frozenset(("cm", "mm", "km", "kg", "mg", "ml", "mL", "ft", "lb", "lbs", "oz", "yd", "mph"))
_DEGREE = re.compile(
    r"\s*\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\(?:circ|degree)(?![A-Za-z]))\s*(?:\\text\s*)?(?:\{?[CF]\}?)?"
)
_RADIANS = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\(?:circ|degree)(?![A-Za-z]))")
_ANGLED = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)")
_WORD_BESIDE = re.compile(rf"(?<=[\d}})]){_SPACE}\\(?:text[a-z]*|mathrm|mbox)\s*\{{[^{{}}]*[A-Za-z]{{2}}[^{{}}]*\}}")
_BESIDE = re.compile(r"(?<![\d_^.])[\d.]+(?:\\[,;:! ]|\\quad|\\qquad|~|\s)+\d")  # two numbers
_SENTENCE = re.compile(  # no product of letters
    r"(?<![A-Za-z\\{])(?!arsinh|arcosh|artanh|arcsinh|arccosh|arctanh|floor|ceil)(?=[A-Z]*[a-z])[A-Za-z]{4,}(?![A-Za-z}])"
    r"|(?<![A-Za-z\\{])[A-Za-z]{2,} [A-Za-z]{2,}"
)
_ZEROS = re.compile(r"(?<![\d.])0\d")  # the 05 of 1,05
_FACTOR = re.compile(r"(?<![\w^_.])(\d+(?:\.\d+)?)\s*\(")  # 2(3) is no mixed number
_ARITHMETIC = re.compile(r"\\(?:[dt]?frac|sqrt|cdot|times|div|left|right)(?![A-Za-z])")
_COMMAND = re.compile(r"\\[A-Za-z]+")

_TOKEN = re.compile(
    r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?|"
    r"\\(?:begin|end|operatorname|math[a-z]*)\s*\{[^{}]*\}|\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\.\d+|[^\s]"
)
_SIZES = re.compile(
    r"\\(?:left|right|mleft|mright|middle|[bB]igg?[lr]?|displaystyle|textstyle|limits|underline|bm|boldsymbol)(?![A-Za-z])|\\!"
)
_NAMES = {
    re.compile(pattern): name
    for pattern, name in (
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:math(?:rm|it|bf|normal)|text(?:normal|bf|it|rm)|mbox|hbox)(?![A-Za-z])", r"\\text"),
        (r"\\(?:vert|mid)(?![A-Za-z])", "|"),
        (r"(?<!\\)\\[ ;:]|~", " "),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
        (r"\s*\{\s*,\s*\}", ","),
        (r"[\[(]?\s*\\begin\{(?:array|matrix)\}(?:\s*\{[lcr| ]*\})?", r"\\begin{bmatrix}"),
        (r"\\end\{(?:array|matrix)\}\s*[\])]?", r"\\end{bmatrix}"),
        (r"(?<![A-Za-z\\])inf(?:inity)?(?![A-Za-z])", r"\\infty"),
        (r"(?<![A-Za-z\\])(sqrt|pi)(?![A-Za-z])", r"\\\1"),
    )
}
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
    if not body or not _is_balanced(body):
        return None
    try:
        return _read_body(body, words_of(prompt) if prompt else frozenset())
    except MemoryError:
        raise
    except Exception:  # of the parser, for what its grammar does not know
        return None


def body_of(text: str) -> str:
    """The text within `$`, `\\(`, `\\[` and `\\boxed`, without a final point; several of them as a list.

    `$x$.` -> `x`; `\\boxed{1} and \\boxed{2}` -> `1 \\text{ and } 2`; `$28$ percent` -> `28\\%`; `$5$ eggs` ->
    `5\\text{ eggs}`.
    """
    body = " ".join(text.translate(_UNICODE).split())
    body = body if "\\begin" in body else _DOUBLED.sub(r"\\", body)
    body = _PERCENT_WORD.sub(r"\\%", body)
    while True:
        body = body.removesuffix("\\.") if body.endswith("\\.") else body.removesuffix(".")
        if body.startswith("$") and "$" not in body[1:]:
            body = body[1:]
        inner = _unwrapped(body.strip())
        if inner is None:
            return body.strip().removeprefix("=").strip()
        body = inner


def _unwrapped(body: str) -> str | None:
    """What stands in the wrappers that the whole body consists of; None if it has none."""
    found, rest = "", body
    while rest:
        opened = _OPENING.match(rest)
        end = opened and _closing(rest, opened)
        if not opened or not end:
            return None
        found, rest = f"{found}{rest[opened.end() : end[0]].strip()}", rest[end[1] :]
        after = _AFTER.fullmatch(rest)
        if after:  # a unit or a percent sign
            return f"{found}\\%" if after[1] else f"{found}\\text{{ {after[2]} }}"
        between = _BETWEEN.match(rest)
        if rest and not (between and between[0]) and not rest.startswith("\\boxed"):
            return None
        if rest and between:
            word = next(filter(None, between.groups()), "")
            is_or = word in ("or", "lor", "vee")
            found += r" \text{ or } " if is_or else r" \text{ and } " if word else ", "
            rest = rest[between.end() :]
            if not rest:
                return None
    return found if body else None


def _closing(text: str, opened: re.Match[str]) -> tuple[int, int] | None:
    """Where the content of a wrapper and the wrapper itself end; None without an end."""
    mark = opened[0].strip()
    if not mark.endswith("{"):
        mark = {"\\(": "\\)", "\\[": "\\]"}.get(mark, mark)
        end = text.find(mark, opened.end())
        while end > 0 and mark[0] == "$" and text[end - 1] == "\\":
            end = text.find(mark, end + 1)
        return None if end <= opened.end() else (end, end + len(mark))
    depth = 1
    for place in range(opened.end(), len(text)):
        depth += (text[place] == "{") - (text[place] == "}") if text[place - 1] != "\\" else 0
        if depth == 0:
            return place, place + 1
    return None


def _is_balanced(body: str) -> bool:
    plain = re.sub(r"\\.", "", body)
    depths = [0, *itertools.accumulate((character == "{") - (character == "}") for character in plain)]
    return min(depths) == depths[-1] == 0


def _split(body: str) -> tuple[list[str], list[str]]:
    """Parts between `and`, `or` at the top level of braces and brackets, and what joins them, as ` \\text{ or } `."""
    parts, joins, start = list[str](), list[str](), 0
    for found in _JOINED.finditer(body):
        before = re.sub(r"\\[{}]", "", body[: found.start()])
        if before.count("{") == before.count("}"):
            parts.append(body[start : found.start()])
            word = next(filter(None, found.groups()))
            joins.append(r" \text{ or } " if word in ("or", "lor", "vee") else r" \text{ and } ")
            start = found.end()
    parts.append(body[start:])
    return (parts, joins) if all(part.strip(" ,") for part in parts) else ([body], [])


def _read_body(body: str, known: frozenset[str]) -> Reading | None:
    for special in (_plain, _words, _clock, _numeral, _congruence):
        found = special(body)
        if found is not None:
            return found
    parts, joins = _split(body)
    if len(parts) > 1:
        return _joined(parts, joins, known)
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
    return Reading(sympy.Symbol(body.lower().replace(" ", ""), real=True)) if _WORDS.fullmatch(body) else None


def _clock(body: str) -> Reading | None:
    """A time. Without a zero, seconds or half of the day it may also be a ratio: 2:15."""
    found = _CLOCK.fullmatch(body)
    if found is None:
        return None
    hours, minutes, seconds, half = found.groups()
    time = f"{int(hours)}:{minutes}:{seconds or '00'} {(half or '').lower()}".strip()
    is_ratio = not (seconds or half or hours.startswith("0") or minutes.startswith("0"))
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


def _joined(parts: list[str], joins: list[str], known: frozenset[str]) -> Reading | None:
    """A set of solutions, or of the points where inequalities hold."""
    has_or = any("or" in join for join in joins)
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
    latex = _rewritten(latex.strip(), known)
    if not latex or "$" in re.sub(r"\\.", "", latex) or "\\boxed" in latex or _claims_twice(latex):
        return None
    if any(pattern.search(latex) for pattern in (_WORD_BESIDE, _BESIDE, _ZEROS, _SENTENCE)):
        return None
    value = _parsed(latex)
    if isinstance(value, list) or value.has(sympy.zoo, sympy.nan) or not accounts_for(latex, value):
        return None
    return value.xreplace({sympy.Symbol("i", real=True): sympy.I}) if _has_symbol(value, "i") else value


def _has_symbol(value: Any, name: str) -> bool:
    return any(symbol.name == name for symbol in value.free_symbols)


@lru_cache(maxsize=4096)
def _parsed(latex: str) -> Any:
    return latex2sympy(latex, is_real=True, convert_degrees=False, normalization_config=_ARGUMENTS_ONLY)


def _rewritten(latex: str, known: frozenset[str]) -> str:
    """The expression in the words of the parser's grammar, without units."""
    latex = ungrouped(re.sub(r"(?<![A-Za-z])\\?\$(?=\s*[\d.])", "", latex))
    latex = _REPEATING.sub(_repeating, latex)
    latex = _RADIANS.sub(r"\\frac{\1\\pi}{180}", latex) if _ANGLED.search(latex) else _DEGREE.sub("", latex)
    latex = _UNIT.sub(lambda found: "" if _is_unit(found, known) else found[0], latex)
    latex = re.sub(r"(?<![\w}])(\d+)(?:\s|\\ )+(\d+)\s*/\s*(\d+)(?![\d.])", r"\1\\frac{\2}{\3}", latex)
    latex = _FONT.sub(r" \1 ", _SIZES.sub("", latex))
    for pattern, name in _NAMES.items():
        latex = pattern.sub(name, latex)
    latex = re.sub(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", latex)
    return _FACTOR.sub(r"\1 \\cdot (", latex)


def _is_unit(found: re.Match[str], known: frozenset[str]) -> bool:
    if found[1] is not None:
        return are_units(re.sub(r"\\[,;: ]|~", " ", found[1]).replace(".", "").split(), known)
    word, is_apart = found[2].strip(), not found[0][0].isalpha()
    if is_apart and len(word) > 2:
        return are_units(word.split(), known)
    return is_measure(word) and (is_apart or word in _NEAR_UNITS)


def _repeating(found: re.Match[str]) -> str:
    """`0.1\\overline{6}` as `\\frac{15}{90}`."""
    whole, fixed, bar, one, first, middle, last = found.groups()
    period = bar or one or first + (middle or "") + (last or "")
    if first and not last and middle:
        return found[0]
    before = int((whole or "0") + fixed)
    top = int((whole or "0") + fixed + period) - before
    return rf"\frac{{{top}}}{{{10 ** len(fixed) * (10 ** len(period) - 1)}}}"


def _claims_twice(latex: str) -> bool:
    """True for two claims, `x=6=5`, or one that is no answer: `6=5`."""
    for equation in re.split("[,;]", re.sub(r"_\{[^{}]*\}", "", latex)):
        left, *rights = re.split(r"(?<![<>!])=", equation)
        if len(rights) > 1 or (rights and left.strip() and not re.search("[A-Za-z]", _ARITHMETIC.sub("", left))):
            return True
    return False


def accounts_for(latex: str, value: Any) -> bool:
    """Whether each number, letter, word and command of the expression stands in what was read.

    What is found in it by name is there, and a letter must be. Another number, as the 4 of `\\frac{4}{6}`, is there if
    another one in its place reads otherwise, a command or sign if the text without it does: `101_2`, `x'`, `5 \\ldots`
    are read in part.
    """
    there = _contents(value)
    return all(_stands_in(there, latex, token, value) for token in _TOKEN.finditer(latex))


def _stands_in(there: Counter[str], latex: str, token: re.Match[str], value: Any) -> bool:
    text = token[0]
    if text in _LAYOUT or text in _GRAMMAR or text.startswith(("\\begin", "\\end")):
        return True
    name = _name(text)
    if there[name] > 0:
        there[name] -= 1
        return True
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
