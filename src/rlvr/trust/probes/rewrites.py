r"""Answers made from the right one: rewrites that keep it right, and edits that make it wrong.

    gold 1080     rewrites  1,080   1080.0   $1080   1080 dollars   $1080$
                  edits     -1080   1081     10800   1084.32        1080 or 1081

A kind is a function of a `Case` that yields answers; it yields none for golds that it does not apply to. The caller
puts them into the documented format. Rewrites of the group `format` need a lenient verifier: a strict one is no error.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from rlvr.rewards.numbers import Number, parse_answer, same_answer
from rlvr.rewards.text import normalize
from rlvr.types import Example

GoldKind = Literal["number", "text", "expression", "program"]
Group = Literal["rewrite", "format", "edit", "exploit", "gold", "stability", "adversary"]
MOST_DENOMINATOR = 100
THOUGHT = "<think>\nSo.\n</think>\n\n"
LINE = "Let me think about it, step by step.\n"
_DIGIT = re.compile(r"[0-9]")
_OPERANDS = re.compile(r"\b(subtract|divide|greater)\(([^(),]+),([^(),]+)\)")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A solved example: `wrap(gold)` is a right completion in the documented format.

    `golds` are all accepted answers, `others` different answers of other examples. `strict`: answers are words of a
    fixed vocabulary, so every rewrite is one of the format.
    """

    example: Example
    question: str
    golds: tuple[str, ...]
    wrap: Callable[[str], str]
    others: tuple[str, ...]
    kind: GoldKind
    strict: bool
    rng: random.Random

    @property
    def gold(self) -> str:
        return self.golds[0]

    @property
    def number(self) -> Number | None:
        return read_number(self.gold) if self.kind == "number" else None

    def is_right(self, answer: str) -> bool:
        """Whether an answer equals a gold: edits that do are no edits."""
        return any(same(answer, gold) for gold in self.golds)


Make = Callable[[Case], Iterable[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A text to grade: `Probe(kind="unit", group="rewrite", text="#### 18 dollars")`.

    A probe with a `twin` only fails if both texts are paid, one with `where` only if that text is; `gold` replaces the
    example's.
    """

    kind: str
    group: Group
    text: str
    twin: str | None = None
    where: str | None = None
    gold: str | None = None
    answer: str | None = None  # of an edit, without the format

    @property
    def is_right(self) -> bool:
        return self.group in ("rewrite", "format")


def read_number(text: str) -> Number | None:
    found = parse_answer(text)
    return found if isinstance(found, Number) else None


def same(a: str, b: str) -> bool:
    one, other = read_number(a), read_number(b)
    return normalize(a) == normalize(b) or (one is not None and other is not None and same_answer(one, other))


def kind_of(gold: str) -> GoldKind:
    if parse_answer(gold) is not None:
        return "number"
    if re.match(r"[a-z_]+\(.*\)", gold):
        return "program"
    return "expression" if re.search(r"[\\^{}=*]|[0-9a-z] ?[-+/] ?[0-9a-z(]", gold) else "text"


def plain(value: Fraction) -> str:
    return str(Number(value))


def rewrite_probes(case: Case) -> Iterator[Probe]:
    """The gold itself first. The bare gold is a rewrite of the format."""
    yield Probe(kind="gold itself", group="rewrite", text=case.wrap(case.gold))
    tables: tuple[tuple[Group, Mapping[str, Make]], ...] = (("rewrite", REWRITES), ("format", FORMAT_REWRITES))
    for group, kinds in tables:
        for kind, make in kinds.items():
            for text in make(case):
                yield Probe(kind=kind, group="format" if case.strict else group, text=case.wrap(text))
    short, long = (f"{LINE * times}{case.wrap(case.gold)}" for times in (1, 200))
    group = "format" if case.strict else "rewrite"
    yield Probe(kind="long reasoning", group=group, text=long, where=short)  # who reads the answer alone reads neither
    yield Probe(kind="behind reasoning", group="format", text=f"{THOUGHT}{case.wrap(case.gold)}")
    if case.wrap(case.gold) != case.gold:
        yield Probe(kind="answer without the format", group="format", text=case.gold)


def edit_probes(case: Case) -> Iterator[Probe]:
    for kind, make in EDITS.items():
        for text in make(case):
            if not case.is_right(text):
                yield Probe(kind=kind, group="edit", text=case.wrap(text), answer=text)


# ------------------------------------------------------------------------------------------------------------ rewrites


def _commas(case: Case) -> Iterator[str]:
    if re.search(r"[0-9],[0-9]{3}", case.gold):
        yield case.gold.replace(",", "")
    elif case.number is not None and re.fullmatch(r"-?[0-9]{4,}(\.[0-9]+)?", case.gold):
        whole, point, decimals = case.gold.partition(".")
        yield f"{int(whole):,}{point}{decimals}"


def _zeros(case: Case) -> Iterator[str]:
    if case.number is not None and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", case.gold):
        yield from (f"{case.gold}0", f"{case.gold}00") if "." in case.gold else (f"{case.gold}.0", f"{case.gold}.00")


def _percent(case: Case) -> Iterator[str]:
    if case.number is None or "%" in case.gold:
        return
    if 0 < abs(case.number.value) < 1:
        yield f"{plain(100 * case.number.value)}%"
    elif re.search(r"%|percent", case.question[-400:]):
        yield f"{case.gold}%"


def _latex(case: Case) -> Iterator[str]:
    if case.kind in ("number", "expression"):
        yield f"${case.gold}$"
        yield f"\\({case.gold}\\)"
    if "\\frac" in case.gold:
        yield case.gold.replace("\\frac", "\\dfrac")
    if case.number is not None and "," not in case.gold and abs(case.number.value) >= 1000 and "." not in case.gold:
        yield f"{int(case.number.value):,}".replace(",", "{,}")


def _fraction(case: Case) -> Iterator[str]:
    if case.number is None:
        return
    above, below = case.number.value.as_integer_ratio()
    if 1 < below <= MOST_DENOMINATOR:
        yield f"{'-' if above < 0 else ''}\\frac{{{abs(above)}}}{{{below}}}"
        yield plain(case.number.value) if "/" in case.gold else f"{above}/{below}"


def _order(case: Case) -> Iterator[str]:
    first, word, second = case.gold.partition(" and ")
    if word and case.kind == "text":
        yield f"{second} and {first}"


def _of(*kinds: GoldKind) -> Callable[[Callable[[str], Iterable[str]]], Make]:
    """A kind that needs only the gold, for golds of these kinds."""
    return lambda make: lambda case: make(case.gold) if case.kind in kinds else ()


_ANY = _of("number", "text", "expression", "program")
_WORDS, _NUMBERS = _of("text"), _of("number")

REWRITES: Mapping[str, Make] = {
    "whitespace": _ANY(lambda gold: (f"  {gold} ", f"{gold}\n", f"\n{gold}")),
    "full stop": _of("number", "text")(lambda gold: (f"{gold}.",)),
    "Markdown": _of("number", "text")(lambda gold: (f"**{gold}**", f"`{gold}`")),
    "quotes": _WORDS(lambda gold: (f'"{gold}"',)),
    "case": _WORDS(lambda gold: (text for text in (gold.lower(), gold.upper()) if text != gold)),
    "article": _WORDS(lambda gold: () if re.match(r"(?i)(the|an?)\b", gold) else (f"the {gold}",)),
    "commas": _commas,
    "trailing zeros": _zeros,
    "unit": lambda case: (f"{case.gold} dollars", f"{case.gold} units") if is_bare(case) else (),
    "currency": lambda case: (f"${case.gold}", f"\\${case.gold}") if is_bare(case, least=0) else (),
    "percent": _percent,
    "minus sign": _NUMBERS(lambda gold: (f"\u2212{gold[1:]}",) if gold.startswith("-") else ()),
    "LaTeX": _latex,
    "fraction": _fraction,
}
FORMAT_REWRITES: Mapping[str, Make] = {
    "sentence around it": _ANY(lambda gold: (f"The answer is {gold}.",)),
    "equation": _NUMBERS(lambda gold: (f"x = {gold}",)),
    "scientific": lambda case: (f"{float(case.number.value):e}",) if case.number and is_bare(case) else (),
    "box in it": _ANY(lambda gold: (f"\\boxed{{{gold}}}",)),
    "order": _order,
}


def is_bare(case: Case, least: float = float("-inf")) -> bool:
    """Whether the gold is a number without unit."""
    number = case.number
    return number is not None and re.fullmatch(r"-?[0-9.,]+", case.gold) is not None and number.value >= least


# --------------------------------------------------------------------------------------------------------------- edits


def _changed(change: Callable[[Fraction], Iterable[Fraction]]) -> Make:
    return lambda case: [plain(value) for value in change(case.number.value)] if case.number else []


def _digit(case: Case) -> Iterator[str]:
    places = [match.start() for match in _DIGIT.finditer(case.gold)]
    if places:
        place = case.rng.choice(places)
        digit = (int(case.gold[place]) + case.rng.randrange(1, 9)) % 10
        yield f"{case.gold[:place]}{digit}{case.gold[place + 1 :]}"


def _near(case: Case) -> Iterator[str]:
    """0.4 % and 3 % more, with all digits."""
    if case.number is not None and case.number.value:
        yield from (plain(case.number.value * factor) for factor in (Fraction(251, 250), Fraction(103, 100)))


def _contained(case: Case) -> Iterator[str]:
    if is_bare(case) and "." not in case.gold:  # 0.1234 and 0.12341 may be one value, rounded
        digit = case.rng.randrange(1, 9)
        yield f"{case.gold}{digit}"
        yield f"{digit}{case.gold.lstrip('-')}"


def _two_values(case: Case) -> Iterator[str]:
    for other in case.others[:1]:
        yield f"{case.gold} or {other}"
        yield f"{other} or {case.gold}"


def _reordered(case: Case) -> Iterator[str]:
    """1080 as 0801 and 8010: the same digits."""
    digits = _DIGIT.findall(case.gold)
    if case.number is not None and len(set(digits)) > 1:
        for moved in (digits[::-1], digits[2:] + digits[:2]):
            left = iter(moved)
            yield _DIGIT.sub(lambda _, left=left: next(left), case.gold)


def _dropped(case: Case) -> Iterator[str]:
    """A word without its second letter; words of two letters stay."""
    places = [match.start() + 1 for match in re.finditer(r"[A-Za-z]{4,}", case.gold)]
    if case.kind == "text" and places:
        place = case.rng.choice(places)
        yield f"{case.gold[:place]}{case.gold[place + 1 :]}"


def _part(case: Case) -> Iterator[str]:
    words = case.gold.split()
    if case.kind == "text" and len(words) > 1:
        yield from (word for word in (words[0], words[-1]) if len(word) > 3)


def _words_moved(case: Case) -> Iterator[str]:
    """Another order of the words, and one of them twice; `B and A` may be right for `A and B`."""
    words = case.gold.split()
    if case.kind == "text" and len(words) > 1 and not {"and", "or"} & set(words):
        yield " ".join([*words[1:], words[0]])
        yield " ".join([*words, words[-1]])


def _as_percent(value: Fraction) -> tuple[Fraction, ...]:
    return (100 * value,) if 0 < abs(value) < 1 else (value / 100,)


EDITS: Mapping[str, Make] = {
    "other answer": lambda case: case.others,
    "sign": _changed(lambda value: (-value,)),
    "digit": _digit,
    "order of magnitude": _changed(lambda value: (10 * value, value / 10, 1000 * value)),
    "off by one": _changed(lambda value: (value + 1, value - 1)),
    "near": _near,
    "percent or number": _changed(_as_percent),
    "point lost": _NUMBERS(lambda gold: (gold.replace(".", ""),) if "." in gold else ()),
    "digits around": _contained,
    "digits reordered": _reordered,
    "letter dropped": _dropped,
    "part of it": _part,
    "words reordered": _words_moved,
    "two values": _two_values,
    "negation": _of("number", "text")(lambda gold: (f"not {gold}",)),
    "comparison": _NUMBERS(lambda gold: (f"more than {gold}",)),
    "operands swapped": _of("program")(lambda gold: {_OPERANDS.sub(r"\1(\3,\2)", gold)} - {gold}),
}
BY_RULE = ("two values", "negation", "comparison", "letter dropped", "part of it", "words reordered")
"""Kinds that are wrong by some rules only: a user's function is judged by them where the task's metric refuses them."""
