"""Parses numbers and yes/no, for golds and predictions, rewards and metrics alike.

`parse_answer` reads a whole text; unreadable text is None (invalid), never 0:

    text                                     reads as
    18   018   +18   18.   18.0              18
    -3   - 3   −3 (other minus signs)        -3
    (5)   $(5)   ($5)                        -5, as in accounting; a sign together with parentheses is invalid
    1,080   1,080.5                          1080, 1080.5: commas only between groups of three digits
    1.080   .5                               1.08, 0.5: the point is always the decimal point
    3/4                                      3/4, exactly; integers only, no mixed numbers (1 1/2 is invalid)
    1.5e3   1E-5                             1500, 0.00001; exponents up to +-40
    $18   -$18   $-18   € 18   18 EUR        18, -18, -18, 18, 18: `$ € £ ¥ ₹ US$ USD EUR GBP JPY` before, symbols after
    44%   44 percent                         0.44; also equals a plain 44 (see below)
    12.0 million   3 dozen                   12,000,000 and 36
    18 eggs   18 ft^2   18 (km/h)   18 a day   18: up to three unit words
    yes   No.                                yes, no
    \\$18   44\\%   1{,}080   \\frac{3}{4}       LaTeX spellings; also \\text{ eggs}
    **18**   "18"   \\(18\\)   \\boxed{18}      the content; one layer of each
    = 18   x = 18   18,                      18

Invalid: empty text, words, NaN and infinities, more than 200 characters or 40 digits, two numbers (`18 or 19`, `3 4`,
`3-4`), sums and formulas, misplaced commas (`1,08`), and after the number any word that is not known as a unit
(`rlvr.rewards.units`: a measure, a currency, a plural, a word of the question): another number (`18 twenty-five`), a
fraction or multiple (`18 tenths`, `18 lakh`, `18 mil`), a comparison (`18 or more`, `~18`), a negative change (`5%
reduction`), a second thought (`18 is wrong`, `18 refuted`).

Units are not graded, as in GSM8K's official scorer, where `18%` answers 18. A percentage has a second reading, without
the percent sign, against a number with neither percent sign nor scale word: `44%` equals 0.44 and 44, but not `4400%`;
percentages below one have no second reading: `0.12%` is only 0.0012. A scale word counts; only FinQA's match, for
tables in millions, also accepts `12.0 million` for a plain 12. Values are exact fractions: 0.1 + 0.2 is 0.3, and
exponents are bounded.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, Inexact, localcontext
from fractions import Fraction

from rlvr.rewards.units import SCALES, are_units, words_of

MAX_CHARS = 200  # longer texts are invalid
MAX_DIGITS = 40
MAX_EXPONENT = 40

_PLAIN_STARTS = frozenset("0123456789-+")
_ONE, _PERCENT = Fraction(1), Fraction(1, 100)
CURRENCIES = "€£¥₹"
_SYMBOLS = f"${CURRENCIES}"
_CURRENCY = rf"US\$|[{_SYMBOLS}]|USD|EUR|GBP|JPY"
_NUMBER = re.compile(
    rf"([+-])? ?(?:{_CURRENCY})? ?([+-])? ?"
    r"([1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)?(?:\.([0-9]+))?"
    r"(?:[eE]([+-]?[0-9]+)|/([0-9]+))?(.*)"
)
_PARENTHESES = re.compile(rf"({_CURRENCY})? ?\(([^()a-zA-Z+-]*[0-9][^()a-zA-Z+-]*)\)(.*)")
_MINUS_SIGNS = str.maketrans(dict.fromkeys("\u2212\u2013\ufe63\uff0d", "-"))
_INVISIBLE = re.compile("[\xad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_WIDE = re.compile("[\uff01-\uff5e]")
_FRACTION = re.compile(r"\\[dt]?frac ?\{([0-9]+)\} ?\{([0-9]+)\}")
_TEXT = re.compile(r"\\(?:text|mathrm) ?\{([^{}]*)\}")
_UNIT_IN_PARENTHESES = re.compile(r"([^()]*[^() ]) ?\(([A-Za-z./ -]+)\)")
_GROUPED = re.compile(  # digits by threes, with LaTeX's small spaces
    r"(?<![\d.,])\d{1,3}(?:(?:,?\\! ?|\\[,;:> ] ?|\\thinspace ?|~|\{[,~ ]\}|\{\\[,;!] ?\})\d{3})+(?!\d)"
)
_EQUATION = re.compile(r"(?:[A-Za-z] ?)?= ?")
MARKS = (*((mark, mark) for mark in ("**", "__", "*", '"', "'", "`")), ("\u201c", "\u201d"))
"""Of Markdown and quotation, around a whole answer."""
_WRAPPERS = (
    *MARKS,
    ("$$", "$$"),
    ("$", "$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("\\boxed{", "}"),
)


@dataclass(frozen=True, slots=True)
class Number:
    """`Number(Fraction(11, 25), unit=Fraction(1, 100))` is 44%: `value` in ones, `unit` is the scale it was written in.

    `decimals` is the number written (44.0% has 1, 1.5e3 has -2), None for 3/4; not part of comparisons.
    """

    value: Fraction
    unit: Fraction = _ONE
    decimals: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """`1080`, `-0.5`, `1/3`: one spelling per value, for votes."""
        numerator, denominator = self.value.as_integer_ratio()
        with localcontext() as context:
            context.prec = 4 * (MAX_DIGITS + MAX_EXPONENT)  # exact: the longest is 1/2**132 with 132 decimals
            context.traps[Inexact] = True
            with suppress(Inexact):
                return f"{(Decimal(numerator) / denominator).normalize():f}"
        return f"{numerator}/{denominator}"


@dataclass(frozen=True, slots=True)
class YesNo:
    yes: bool

    def __str__(self) -> str:
        return "yes" if self.yes else "no"


Answer = Number | YesNo


def parse_answer(text: str, known: frozenset[str] = frozenset()) -> Answer | None:
    """The value of the whole `text`, by the table above; None if it is invalid. Bounded time.

    `known` are words that may follow the number besides those of `rlvr.rewards.units`: those of the question.
    """
    if len(text) > MAX_CHARS:
        return None
    text = " ".join(text.split())
    if not text.isascii():
        text = text.translate(_MINUS_SIGNS)
    if "\\" in text or "{" in text or "~" in text:
        text = _without_latex(text)
    text = text.removesuffix(".").removesuffix(",")
    if text[:1] not in _PLAIN_STARTS:
        text = _unwrapped(text)
    if text[:1] in ("y", "Y", "n", "N"):
        return {"yes": YesNo(True), "no": YesNo(False)}.get(text.lower())
    if "(" in text:
        return _in_parentheses(text, known)
    return _number(text, known)


def parse_gold(text: str) -> Answer | None:
    """`parse_answer` for data: `18 egg` is 18 also by the word that the gold itself has."""
    return parse_answer(text, words_of(text))


def same_answer(a: Answer, b: Answer) -> bool:
    """Whether values are equal, or a percentage without its sign equals the other, plain number; a number is no
    yes/no."""
    if isinstance(a, Number) and isinstance(b, Number):
        return a.value == b.value or any(x == y for x, y in readings(a, b))
    return a == b


def close(prediction: Number, gold: Number, relative_tolerance: Fraction, *, stated_scale: bool = False) -> bool:
    """|prediction - gold| <= relative_tolerance x |gold| in one reading; only 0 is close to 0."""
    pairs = readings(prediction, gold, stated_scale=stated_scale)
    return any(abs(x - y) <= relative_tolerance * abs(y) for x, y in pairs)


def readings(a: Number, b: Number, *, stated_scale: bool = False) -> Sequence[tuple[Fraction, Fraction]]:
    """Pairs to compare: the values and, if only one number is plain, the numbers as written.

    Not for percentages below one, and for scale words only with `stated_scale`: `12 million` in a table of millions.
    """
    values = (a.value, b.value)
    if (a.unit is _ONE) == (b.unit is _ONE):
        return (values,)
    other, bare = (a.unit, a.value / a.unit) if b.unit is _ONE else (b.unit, b.value / b.unit)
    written = (bare, b.value) if b.unit is _ONE else (a.value, bare)
    may_drop = abs(bare) >= 1 if other is _PERCENT else stated_scale
    return (values, written) if may_drop else (values,)


def as_written(text: str) -> str:
    """Without characters that are not seen (of width 0, of the direction), and with ASCII's for full-width ones."""
    return _WIDE.sub(lambda wide: chr(ord(wide[0]) - 0xFEE0), _INVISIBLE.sub("", text))


def _unwrapped(text: str) -> str:
    """`**18**`, `$18$`, `x = 18`: `18`; removes one layer of each wrapper, outer ones of `_WRAPPERS` first."""
    for start, end in _WRAPPERS:
        if text.startswith(start) and text.endswith(end) and len(text) > len(start) + len(end):
            text = text[len(start) : -len(end)].strip()
    text = text.removesuffix(".")
    equation = _EQUATION.match(text)
    return text[equation.end() :] if equation else text


def ungrouped(latex: str) -> str:
    """`10\\,000` and `10{,}000` without what stands between groups of three digits; other texts as they are."""
    return _GROUPED.sub(lambda found: "".join(filter(str.isdigit, found[0])), latex)


def _without_latex(text: str) -> str:
    text = _FRACTION.sub(r"\1/\2", _TEXT.sub(r" \1", ungrouped(text)))
    text = text.replace("\\ ", " ").replace("\\,", " ").replace("\\$", "$").replace("\\%", "%").replace("{,}", ",")
    return " ".join(text.split())


def _in_parentheses(text: str, known: frozenset[str]) -> Number | None:
    """`(5)`, `$(5)`, `($5)`, `(5)%`, `(5) million`: the negative of the number in parentheses.

    `18 (eggs)` is 18 eggs.
    """
    unit = _UNIT_IN_PARENTHESES.fullmatch(text)
    if unit is not None:
        return _number(f"{unit[1]} {unit[2]}", known)
    match = _PARENTHESES.fullmatch(text)
    if match is None:
        return None
    currency, inside, after = match.groups()
    number = _number(f"{currency or ''}{inside.strip()}{after}", known)
    return number and Number(-number.value, number.unit, number.decimals)


def _number(text: str, known: frozenset[str]) -> Number | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, inner_sign, whole, decimals, exponent, denominator, rest = match.groups()
    if (sign and inner_sign) or not (whole or decimals):
        return None
    value = _value(whole or "", decimals or "", exponent, denominator)
    unit = _unit(rest, known) if rest else _ONE
    if value is None or unit is None:
        return None
    if "-" in (sign, inner_sign):
        value = -value
    places = None if denominator else len(decimals or "") - int(exponent or 0)
    return Number(value if unit is _ONE else value * unit, unit, places)


def _value(whole: str, decimals: str, exponent: str | None, denominator: str | None) -> Fraction | None:
    """The fraction of unsigned digits; None for too many digits, x/0, 1.5/2 and 1,000/2."""
    if len(whole) + len(decimals) > MAX_DIGITS:
        return None
    if denominator:
        if decimals or "," in whole or len(denominator) > MAX_DIGITS or not denominator.strip("0"):
            return None
        return Fraction(int(whole), int(denominator))
    if "," in whole:
        whole = whole.replace(",", "")
    shift = -len(decimals)
    if exponent:
        if len(exponent) > 3 or abs(int(exponent)) > MAX_EXPONENT:
            return None
        shift += int(exponent)
    digits = int(whole + decimals)
    return Fraction(digits * 10**shift) if shift >= 0 else Fraction(digits, 10**-shift)


def _unit(rest: str, known: frozenset[str]) -> Fraction | None:
    """The value of one unit (1/100 for a percent, 1,000,000 for million, else 1); None if `rest` is no unit."""
    rest = rest.strip()
    percent = rest.startswith("%")
    if percent or (rest and rest[0] in _SYMBOLS):
        rest = rest[1:]
    words = rest.replace(".", "").split()
    lowered = [word.lower() for word in words]
    unit = _PERCENT if percent or lowered[:1] == ["percent"] or lowered[:2] == ["per", "cent"] else _ONE
    if not percent and lowered and lowered[0] in SCALES:
        unit, words = Fraction(SCALES[lowered[0]]), words[1:]
    return unit if are_units(words, known) else None
