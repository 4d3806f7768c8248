"""LaTeX of answers as text: wrappers, lists and units, before a parser sees it."""

import itertools
import re
import unicodedata

from rlvr.rewards.numbers import MARKS, as_written, ungrouped
from rlvr.rewards.units import are_units, is_measure

_UNICODE = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2013\ufe63\uff0d", "-"),
        **{"×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∞": r"\infty "},
        **{"∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "π": r"\pi ", "°": r"^\circ ", "≡": r"\equiv "},
    }
)
_RAISED = re.compile(r"[\u2070-\u207f\xb2\xb3\xb9]+")
_VULGAR = re.compile(r"[\xbc-\xbe\u2150-\u215e]")
_ROOT = re.compile(r"\u221a\s*(?:(\d+(?:\.\d+)?|[A-Za-z])|\(([^()]*)\))")
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z({\[])")  # data that were escaped twice
_COLOR = re.compile(r"\\(?:textcolor|color|colorbox)\s*\{[\w!.,]*\}\s*(?:\{([^{}]*)\})?")
_REPEATED = re.compile(r"(~|\\[,;:! ]|\\q?quad ?)\1+")  # a look-behind would try each of them
_OPENING = re.compile(r"\$\$?|\\\(|\\\[|\\(?:boxed|fbox)\s*\{")
_AFTER = re.compile(r"\s*(\\?%)|\s+([A-Za-z]{2,}(?: [A-Za-z]+)*)(?<!and)(?<!or)")
_PERCENT_WORD = re.compile(
    r"(?<=[\d$})])\s*(?:\\text\s*\{\s*(?:percent(?:age)?|pct)\s*\}|(?:percent(?:age)?|pct)(?![A-Za-z]))"
)
SPACE = r"(?:\\[,;:! ]|\\quad|\\qquad|~|\s)*"
_JOINED = re.compile(
    rf"{SPACE},?{SPACE}(?:\\text[a-z]*\s*\{{\s*(and|or)\s*\}}|(?<![A-Za-z\\])(and|or)(?![A-Za-z])|\\(lor|vee|land|wedge)"
    rf"(?![A-Za-z])){SPACE}"
)
_BETWEEN = re.compile(rf"{_JOINED.pattern}|{SPACE},?{SPACE}")
_REPEATING = re.compile(
    r"(\d+)?\.(\d*)(?:\\(?:overline|bar|overparen)\s*(?:\{\s*(\d+)\s*\}|(\d))|\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?)"
)
_FONT = re.compile(
    r"\\(?:math(?:rm|bf|it|sf|tt|normal)|text(?:rm|bf|it|sf|normal)?|mbox|operatorname)\s*"
    r"\{\s*([A-Za-z]|[+-]?\d[\d.,]*)\s*\}"
)
_UNIT = re.compile(
    rf"(?<=[\d}})]){SPACE}"
    r"(?:\\(?:text[a-z]*|mathrm|mbox|hbox)\s*\{([^{}]*)\}|(\s*[A-Za-z]{2,}(?: [A-Za-z]+)*)(?=\s*(?:\^|[,;)\]]|$)))"
    r"(?:\s*\^\s*(?:\{[23]\}|[23]))?(?=\s*(?:[,;)\]]|\\\}|$))"
)
_NEAR_UNITS = frozenset(("cm", "mm", "km", "kg", "mg", "ml", "mL", "ft", "lb", "lbs", "oz", "yd", "mph"))
_DEGREE = re.compile(
    r"\s*\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\(?:circ|degree)(?![A-Za-z]))\s*(?:\\text\s*)?(?:\{?[CF]\}?)?"
)
_RADIANS = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\(?:circ|degree)(?![A-Za-z]))")
_ANGLED = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)")
_FACTOR = re.compile(r"(?<![\w^_.])(\d+(?:\.\d+)?)\s*\(")  # 2(3) is no mixed number
_ARITHMETIC = re.compile(r"\\(?:[dt]?frac|sqrt|cdot|times|div|left|right)(?![A-Za-z])")
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


def body_of(text: str) -> str:
    """The text within `$`, `\\(`, `\\[`, `\\boxed` and marks, without a final point; several of them as a list.

    `$x$.` and `**x**` -> `x`; `\\boxed{1} and \\boxed{2}` -> `1 \\text{ and } 2`; `$28$ percent` -> `28\\%`;
    `$5$ eggs` -> `5\\text{ eggs}`.
    """
    text = text if text.isascii() else _as_latex(text)
    body = _REPEATED.sub(r"\1", " ".join(text.split()))
    body = body if "\\begin" in body else _DOUBLED.sub(r"\\", body)
    body = _PERCENT_WORD.sub(r"\\%", _COLOR.sub(r"\1", body) if "color" in body else body)
    while True:
        body = body.removesuffix("\\.") if body.endswith("\\.") else body[:-1] if body.endswith((".", ";")) else body
        if body.startswith("$") and "$" not in body[1:]:
            body = body[1:]
        inner = _unwrapped(body.strip()) or _unmarked(body.strip())
        if inner is None:
            return body.strip().removeprefix("=").strip()
        body = inner


def _as_latex(text: str) -> str:
    """Characters of mathematics in LaTeX: `x²` -> `x^{2}`, `½` -> `\\frac{1}{2}`, `√2` -> `\\sqrt{2}`, wide digits."""

    def plain(match: re.Match[str]) -> str:
        return unicodedata.normalize("NFKC", match[0])

    text = _RAISED.sub(lambda match: f"^{{{plain(match)}}}", as_written(text))
    text = _VULGAR.sub(lambda match: "\\frac{{{}}}{{{}}}".format(*plain(match).split("\u2044")), text)
    return _ROOT.sub(lambda match: f"\\sqrt{{{match[1] or match[2]}}}", text).translate(_UNICODE)


def _unmarked(body: str) -> str | None:
    for start, end in MARKS:
        inner = body.removeprefix(start).removesuffix(end)
        if (
            len(body) - len(inner) == len(start) + len(end)
            and inner.strip()
            and start not in inner
            and end not in inner
        ):
            return inner.strip()
    return None


def _unwrapped(body: str) -> str | None:
    """What stands in the wrappers that the whole body consists of; None if it has none."""
    plain, rest = "", body
    while rest:
        opened = _OPENING.match(rest)
        end = opened and _closing(rest, opened)
        if not opened or not end:
            return None
        plain, rest = f"{plain}{rest[opened.end() : end[0]].strip()}", rest[end[1] :]
        after = _AFTER.fullmatch(rest)
        if after:  # a unit or a percent sign
            return f"{plain}\\%" if after[1] else f"{plain}\\text{{ {after[2]} }}"
        between = _BETWEEN.match(rest)
        if rest and not (between and between[0]) and not rest.startswith("\\boxed"):
            return None
        if rest and between:
            word = next(filter(None, between.groups()), "")
            is_or = word in ("or", "lor", "vee")
            plain += r" \text{ or } " if is_or else r" \text{ and } " if word else ", "
            rest = rest[between.end() :]
            if not rest:
                return None
    return plain if body else None


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


def is_balanced(body: str) -> bool:
    plain = re.sub(r"\\.", "", body)
    depths = [0, *itertools.accumulate((character == "{") - (character == "}") for character in plain)]
    return min(depths) == depths[-1] == 0


def split_by_words(body: str) -> tuple[list[str], list[str]]:
    """Parts between `and`, `or` at the top level of braces and brackets, and what joins them, as ` \\text{ or } `."""
    parts, joins, start = list[str](), list[str](), 0
    for joint in _JOINED.finditer(body):
        before = re.sub(r"\\[{}]", "", body[: joint.start()])
        if before.count("{") == before.count("}"):
            parts.append(body[start : joint.start()])
            word = next(filter(None, joint.groups()))
            joins.append(r" \text{ or } " if word in ("or", "lor", "vee") else r" \text{ and } ")
            start = joint.end()
    parts.append(body[start:])
    return (parts, joins) if all(part.strip(" ,") for part in parts) else ([body], [])


def rewritten(latex: str, known: frozenset[str]) -> str:
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


def _repeating(match: re.Match[str]) -> str:
    """`0.1\\overline{6}` as `\\frac{15}{90}`."""
    whole, fixed, bar, one, first, middle, last = match.groups()
    period = bar or one or first + (middle or "") + (last or "")
    if first and not last and middle:
        return match[0]
    before = int((whole or "0") + fixed)
    top = int((whole or "0") + fixed + period) - before
    return rf"\frac{{{top}}}{{{10 ** len(fixed) * (10 ** len(period) - 1)}}}"


def claims_twice(latex: str) -> bool:
    """True for two claims, `x=6=5`, or one that is no answer: `6=5`."""
    for equation in re.split("[,;]", re.sub(r"_\{[^{}]*\}", "", latex)):
        left, *rights = re.split(r"(?<![<>!])=", equation)
        if len(rights) > 1 or (rights and left.strip() and not re.search("[A-Za-z]", _ARITHMETIC.sub("", left))):
            return True
    return False
