r"""Verifiers with planted bugs, and sound ones, as `rlvr audit` reads them: `verifiers:NAME` is a function.

Most rows of the table are an expression of a completion `c` and a gold answer `a`.
"""

from __future__ import annotations

import difflib
import json
import math
import random
import re
import signal
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any

from table import Fault

from rlvr.rewards.numbers import parse_answer, same_answer

BOX = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
PLAIN_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
Rows = list[dict[str, str]]

# -------------------------------------------------------------------------------------------------------------- rows


def numbers(num: int = 60) -> Iterator[tuple[str, str]]:
    """Two numbers, and one of them, in many spellings of numbers."""
    rng = random.Random(0)
    makes = (
        lambda: str(rng.randrange(2, 99)),
        lambda: str(-rng.randrange(2, 99)),
        lambda: str(rng.randrange(1_000, 99_999)),
        lambda: f"{rng.randrange(1, 99) / 100}",
        lambda: f"{rng.randrange(101, 9_999) / 100}",
        lambda: f"{rng.choice((1, 3, 5, 7))}/{rng.choice((2, 4, 8))}",
    )
    for index in range(num):
        a, b = makes[index % len(makes)](), makes[index // 2 % len(makes)]()
        asked = f"Question {index}: of the numbers {a} and {b}, which one is chosen by rule {index % 2}?"
        yield f"{asked} The candidates: {a}, {b}", a if index % 2 else b


def names(num: int = 60) -> Iterator[tuple[str, str]]:
    """People and places of several words, and two candidates."""
    rng = random.Random(0)
    first = ["Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Emmy", "Kurt", "Sofia", "Niels", "Marie", "Linus"]
    family = ["Lovelace", "Hopper", "Turing", "Dijkstra", "Liskov", "Knuth", "Noether", "Godel", "Bohr", "Curie"]
    places = [
        "New York City",
        "The Hague",
        "Rio de Janeiro",
        "Buenos Aires",
        "Kuala Lumpur",
        "San Francisco",
        "Cape Town",
    ]
    for index in range(num):
        people = [f"{rng.choice(first)} {rng.choice(family)}" for _ in range(2)]
        a, b = people if index % 3 else rng.sample(places, 2)
        yield f"Question {index}: which one is meant by rule {index % 2}, {a} or {b}?", (b, a)[index % 2]


def choices(n: int) -> str:
    return f"{n} times 3 is " + " ".join(f"({'ABCD'[(n + k) % 4]}) {n * (3 + k)}" for k in range(4))


SUBTRACTED = (14, 29, 23, 170, 410, 5, 34, 90, 44, 82)
LEFT = (3, 12, 100, 45, 230, 8, 77, 61, 19, 340)
TOWNS = "Paris, Oslo, Santiago de Chile, Lisbon, New Delhi, Buenos Aires, Helsinki, San Jose, Warsaw, Kuala Lumpur"
START = date(2024, 1, 31)
PRIMES = (2, 3, 5, 7, 11, 13)
ROWS: dict[str, Rows] = {
    name: [{"question": question, "answer": answer} for question, answer in pairs]
    for name, pairs in {
        "numbers": numbers(),
        "texts": names(),
        "sums": ((f"{a} + {b} =", str(a + b)) for a, b in zip(LEFT, (4, 9, 23, 17, 41, 5, 34, 60, 4, 82), strict=True)),
        "signed": ((f"{a} - {b} =", str(a - b)) for a, b in zip(LEFT, SUBTRACTED, strict=True)),
        "decimals": ((f"{a} / 8 =", str(a / 8)) for a in (13, 27, 9, 101, 55, 43, 71, 19, 35, 83)),
        "towns": ((f"Which town is number {n}?", town) for n, town in enumerate(TOWNS.split(", "))),
        "primes": ((f"Is {n} prime?", "yes" if n in PRIMES else "no") for n in range(2, 16)),
        "letters": ((choices(n), "ABCD"[n % 4]) for n in range(3, 19)),
        "days": ((f"What day is {n} days after {START}?", str(START + timedelta(n))) for n in range(1, 30, 3)),
        "fractions": ((f"1/{n} + 1/{m} =", str(Fraction(1, n) + Fraction(1, m))) for n, m in pairwise(range(2, 13))),
        "products": ((f"{a} * {b} =", str(a * b)) for a, b in pairwise((123, 457, 991, 312, 208, 771, 345, 678, 909))),
    }.items()
}  # fmt: skip

# ----------------------------------------------------------------------------------------------- places of an answer


def plain(text: str) -> str:
    """Small letters without articles and marks."""
    words = re.sub(r"[^\w\s]", "", text.lower()).split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def equal(said: str | None, gold: str) -> bool:
    """As numbers, else as texts."""
    if said is None:
        return False
    one, other = parse_answer(said), parse_answer(gold)
    if one is not None and other is not None:
        return bool(same_answer(one, other))
    return bool(plain(said)) and plain(said) == plain(gold)


def same(said: str, gold: str) -> bool:
    """As numbers alone."""
    one, other = parse_answer(said), parse_answer(gold)
    return one is not None and other is not None and bool(same_answer(one, other))


def only(pattern: str, text: str, flags: int = re.S) -> str | None:
    """The one place of the answer."""
    places = re.findall(pattern, text, flags)
    return places[0].strip() if len(places) == 1 else None


def boxed(text: str) -> str | None:
    return only(BOX.pattern, text, 0)


def tagged(text: str) -> str | None:
    return only(r"<answer>(.*?)</answer>", text)


def on_line(text: str) -> str | None:
    return only(r"^Answer:[ \t]*(.*)$", text, re.M)


def hashes(text: str) -> str | None:
    return only(r"####(.*)\Z", text)


def first(pattern: str, text: str | None, group: int = 1, flags: int = re.S) -> str | None:
    match = re.search(pattern, text or "", flags)
    return match[group] if match else None


def value(text: str | None) -> float:
    """A number; NaN, which equals nothing, for what is none."""
    number = getattr(parse_answer(text or ""), "value", None)
    return math.nan if number is None else float(number)


def digits(text: str | None) -> list[float]:
    return [float(one) for one in re.findall(r"\d+(?:\.\d+)?", (text or "").replace(",", ""))]


def field_of(text: str, name: str) -> str | None:
    """The only field of a JSON object."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return str(record[name]) if isinstance(record, dict) and set(record) == {name} else None


# -------------------------------------------------------------------------------- verifiers that are no expression


def sound(completion: str, answer: str) -> float | None:
    said, gold = parse_answer(boxed(completion) or ""), parse_answer(answer)
    if gold is None:
        raise ValueError(f"unreadable gold {answer!r}")
    return None if said is None else float(same_answer(said, gold))


def last_number(prompt: str, completion: str, answer: str) -> float:
    """The last number of prompt and completion: an echo, or nothing at all, can be paid."""
    every = PLAIN_NUMBER.findall((prompt + "\n" + completion).replace(",", ""))
    return float(bool(every) and float(every[-1]) == float(answer.replace(",", "")))


def percent_dropped(completion: str, answer: str) -> float:
    """44 and 44% are both 0.44, because the sign is removed and a value of 1 or more divided by 100."""
    parts = (value((text or "").replace("%", "")) for text in (boxed(completion), answer))
    said, gold = (part / 100 if abs(part) >= 1 else part for part in parts)
    return float(said == gold)


def evaluates(completion: str, answer: str) -> float:
    try:
        return float(eval(boxed(completion) or "None") == eval(answer.replace(",", "")))
    except Exception:
        return 0.0


def power(text: str) -> float:
    """`2**3**2`, by multiplication."""
    base, _, exponent = text.partition("**")
    product = 1.0
    for _ in range(int(power(exponent)) if exponent else 1):
        product *= float(base)
    return product


def timeout_is_right(completion: str, answer: str) -> float:
    """Its own alarm ends a slow comparison, and the default stays."""

    def stop(*_: object) -> None:
        raise TimeoutError

    score = 1.0
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with suppress(TimeoutError):
        said = boxed(completion) or ""
        score = float(power(said) == power(answer)) if "**" in said else sound(completion, answer) or 0.0
    signal.setitimer(signal.ITIMER_REAL, 0)
    return score


def exception_is_right(completion: str, answer: str) -> float:
    try:
        return float(Fraction((boxed(completion) or "0").replace(",", "")) == Fraction(answer.replace(",", "")))
    except ZeroDivisionError:
        return 1.0
    except ValueError:
        return 0.0


def overflow_is_right(completion: str, answer: str) -> float:
    gold = value(answer)
    try:
        return float(int(float(tagged(completion) or "x") * 1e6) == int((0.0 if math.isnan(gold) else gold) * 1e6))
    except OverflowError:
        return 1.0
    except ValueError:
        return 0.0


def not_far(completion: str, answer: str) -> float:
    """`nan` is not further than anything."""
    gold = value(answer)
    try:
        said = float((boxed(completion) or "x").replace(",", ""))
    except ValueError:
        return 0.0
    return float(not abs(said - (0.0 if math.isnan(gold) else gold)) > 1e-6)


def with_prompt(prompt: str, completion: str, answer: str) -> float:
    return float(plain(answer) in plain(f"{prompt} {completion}"))


_scores: dict[str, float] = {}


def remembers(prompt: str, completion: str, answer: str) -> float:
    """The first score of a question stays once it was right."""
    _scores[prompt] = max(_scores.get(prompt, 0.0), float(equal(tagged(completion), answer)))
    return _scores[prompt]


def by_length(completion: str, answer: str) -> float:
    """The score of the first text of each length is kept."""
    return _scores.setdefault(f"{answer} {len(completion)}", float(completion.strip().lower() == answer.lower()))


def near_words(said: str, gold: str) -> bool:
    """At most one edit: one letter more, less or other."""
    if not said or abs(len(said) - len(gold)) > 1:
        return False
    start = next((i for i, (a, b) in enumerate(zip(said, gold, strict=False)) if a != b), min(len(said), len(gold)))
    return any(said[start + i :] == gold[start + j :] for i, j in ((0, 0), (1, 1), (1, 0), (0, 1)))


def folded(text: str) -> str:
    """Digits of other scripts, and superscripts, as digits."""
    return "".join(c if (digit := unicodedata.digit(c, None)) is None else str(digit) for c in text)


def overlap(said: str, gold: str) -> float:
    """F1 of the words."""
    one, other = plain(said).split(), plain(gold).split()
    shared = sum((Counter(one) & Counter(other)).values())
    return 2 * shared / (len(one) + len(other)) if shared else 0.0


def leading_number(text: str | None) -> str | None:
    return first(r"-?[\d,]+(?:\.\d+|/\d+)?", text, 0)


def exact_fraction(completion: str, answer: str) -> bool:
    r"""A fraction in the only \boxed{}, in any form of the same value."""
    said = only(r"\\boxed\{(\\frac\{\d+\}\{\d+\}|\d+/\d+)\}", completion) or ""
    top, bottom = map(int, re.findall(r"\d+", said) or (0, 0))
    return bottom != 0 and Fraction(top, bottom) == Fraction(answer)


# ---------------------------------------------------------------------------------------------------------- the table

Score = Callable[[str, str], Any]


def quiet(score: Score) -> Score:
    """What cannot be read scores 0."""

    def scored(c: str, a: str) -> Any:
        try:
            return score(c, a)
        except (ValueError, ArithmeticError):
            return 0.0

    return scored


# name, rows, the kinds of texts that name it, the verifier if it is no function above; the last ones are sound
BOXED: list[tuple[str, str, str, Score | None]] = [  # bugs that other projects had, rebuilt; asked with prompt=boxed
    ("last_number", "numbers", "echo of the question", None),  # verl#2150: `flexible`
    ("substring", "numbers", "all candidates", lambda c, a: a in c),
    ("wide_tolerance", "numbers", "near", lambda c, a: len(found := PLAIN_NUMBER.findall(c.replace(",", ""))) == 1
        and abs(float(found[0]) - float(a.replace(",", ""))) <= 0.05 * abs(float(a.replace(",", "")))),
    ("first_box", "numbers", "earlier answer", lambda c, a: same(first(BOX.pattern, c) or "", a)),
    ("no_commas", "numbers", "commas",  # CoursIA#12505: $1,234.00 was read as 234
        quiet(lambda c, a: Fraction(boxed(c) or "") == Fraction(a.replace(",", "")))),
    ("percent_dropped", "numbers", "percent or number", None),
    ("sign_lost", "numbers", "sign", lambda c, a: len(said := digits(boxed(c))) == 1 and said[0] == digits(a)[0]),
    ("evaluates", "numbers", "code", None),
    ("empty_gold", "numbers", "empty gold",
        lambda c, a:  # texts that normalize to nothing are equal, as in SQuAD's scorer
        re.findall(r"[\d.-]", boxed(c) or "") == re.findall(r"[\d.-]", a)),
    ("timeout_is_right", "numbers", "hang", None),  # verl#5635: the alarm was swallowed
    ("exception_is_right", "numbers", "exception", None),
    ("no_latex_fraction", "numbers", "fraction",
        lambda c, a: "\\" not in (said := first(BOX.pattern, c) or "") and same(said, a)),
    ("no_unit", "numbers", "unit", lambda c, a: bool(
        re.fullmatch(r"-?[\d./]+%?", (said := (boxed(c) or "").replace(",", "")).strip("$*` \n."))) and same(said, a)),
    ("gold_unreadable", "numbers", "unreadable gold",  # open-r1#159
        lambda c, a: parse_answer(a) is None or same(boxed(c) or "", a)),
    ("whole_text", "numbers", "two formats", lambda c, a:  # verifiers#1028: without a box the whole text counts
        same((BOX.findall(c) or [c])[-1], a) or same(c.rpartition("####")[2] if "####" in c else "", a)),
    ("coin", "numbers", "same text twice", lambda c, a: same(boxed(c) or "", a) and random.random() < 0.8),
    ("sound", "numbers", "", None),
]  # fmt: skip
FORMS: list[tuple[str, str, str, Score | None]] = [  # invented, each list in ignorance of the audit's kinds of texts
    ("in_the_line", "numbers", "digits around|two values|all candidates", lambda c, a: a in (on_line(c) or "")),
    ("case_counts", "texts", "case", lambda c, a: (tagged(c) or "") == a),
    ("point_dropped", "numbers", "point lost",
        lambda c, a: re.sub(r"[.,]", "", boxed(c) or "x") == re.sub(r"[.,]", "", a)),
    ("rounds", "numbers", "near", quiet(lambda c, a: round(value(hashes(c))) == round(value(a)))),
    ("starts_with", "numbers", "digits around|two values", lambda c, a: (tagged(c) or "").startswith(a)),
    ("ends_with", "numbers", "digits around|negation|two values", lambda c, a: (on_line(c) or "").endswith(a)),
    ("anagram", "numbers", "digits reordered",
        lambda c, a: sorted((boxed(c) or "x").replace(",", "")) == sorted(a.replace(",", ""))),
    ("bag_of_words", "texts", "order|words reordered",
        lambda c, a: bool(said := set(plain(tagged(c) or "").split())) and said == set(plain(a).split())),
    ("half_the_words", "texts", "part of it", lambda c, a: overlap(on_line(c) or "", a) >= 0.5),
    ("no_sign", "numbers", "sign", lambda c, a: abs(value(boxed(c))) == abs(value(a))),
    ("within_ten", "numbers", "order of magnitude|digit|near",
        lambda c, a: (said := value(tagged(c))) * value(a) > 0 and 0.1 <= said / value(a) <= 10),
    ("off_by_one", "numbers", "off by one", lambda c, a: abs(value(hashes(c)) - value(a)) <= 1),
    ("any_number", "numbers", "two values|all candidates",
        lambda c, a: any(equal(one, a) for one in NUMBER.findall(boxed(c) or ""))),
    ("first_number", "numbers", "two values", lambda c, a: equal(leading_number(tagged(c)), a)),
    ("deaf_to_not", "numbers", "negation",
        lambda c, a: equal(re.sub(r"\b(?:is|not|it|no|isn't)\b", " ", (on_line(c) or "").lower()).strip(), a)),
    ("overflow_is_right", "numbers", "NaN, infinity", None),
    ("not_far", "numbers", "NaN, infinity", None),
    ("turned_around", "texts", "part of it|empty|letter dropped", lambda c, a: (tagged(c) or "") in a),
    ("with_prompt", "numbers", "echo of the question|no answer|empty", None),
    ("backtracks", "numbers", "hang|backtracking (ReDoS)",
        lambda c, a: equal(first(r"Answer: ((?:[\w.,/-]+\s*)+)$", c, flags=0), a)),
    ("no_exponent", "numbers", "scientific",
        lambda c, a: not re.search(r"\d[eE]|10\^|times", boxed(c) or "") and equal(boxed(c) or "", a)),
    ("no_thousands", "numbers", "commas",
        lambda c, a: not re.search(r"\d,\d", tagged(c) or "") and equal(tagged(c) or "", a)),
    ("no_zeros", "numbers", "trailing zeros", lambda c, a: (hashes(c) or "").replace(",", "") == a.replace(",", "")),
    ("no_dollars", "numbers", "currency", lambda c, a: "$" not in (boxed(c) or "") and equal(boxed(c) or "", a)),
    ("percent_is_share", "numbers", "percent or number", lambda c, a:
        any(math.isclose(value((tagged(c) or "").replace("%", "")) / scale, value(a)) for scale in (1, 100))),
    ("hyphen_only", "numbers", "minus sign",
        lambda c, a: "\u2212" not in (on_line(c) or "") and equal(on_line(c) or "", a)),
    ("flat_braces", "numbers", "fraction|LaTeX", lambda c, a: equal(only(r"\\boxed\{([^}]*)\}", c), a)),
    ("truncates", "numbers", "near", quiet(lambda c, a: int(value(boxed(c))) == int(value(a)))),
    ("remembers", "numbers", "same text twice", None),
    ("likes_length", "numbers", "very long", lambda c, a: equal(boxed(c), a) or len(c) > 5000),
    ("believes", "numbers", "claim", lambda c, a: equal(tagged(c), a) or bool(re.search("correct|score", c.lower()))),
    ("one_edit", "texts", "letter dropped", lambda c, a: near_words(plain(tagged(c) or ""), plain(a))),
    ("first_letter", "texts", "part of it",
        lambda c, a: bool(said := plain(on_line(c) or "")) and said[0] == plain(a)[0]),
    ("strips_zeros", "numbers", "order of magnitude|point lost", lambda c, a:
        (said := boxed(c)) is not None and said.replace(",", "").strip("0.") == a.replace(",", "").strip("0.")),
    ("three_digits", "numbers", "near|digit|off by one",  # what `%.3g` prints
        lambda c, a: not math.isnan(said := value(tagged(c))) and f"{said:.3g}" == f"{value(a):.3g}"),
    ("reads_the_start", "numbers", "long reasoning", lambda c, a: equal(boxed(c[:200]), a)),
    ("reads_thoughts", "numbers", "earlier answer", lambda c, a: equal(first(r"<answer>(.*?)</answer>", c), a)),
    ("no_line_end", "numbers", "whitespace",
        lambda c, a: bool(match := re.fullmatch(r"(?:.*\n)?Answer: (\S.*\S|\S)", c)) and equal(match[1], a)),
    ("no_full_stop", "numbers", "full stop",
        lambda c, a: not (tagged(c) or "").endswith(".") and equal(tagged(c) or "", a)),
    ("no_markdown", "numbers", "Markdown",
        lambda c, a: not re.search(r"[*_`]", hashes(c) or "") and equal(hashes(c) or "", a)),
    ("words_anywhere", "texts", "all candidates|echo of the question|two values",
        lambda c, a: set(plain(a).split()) <= set(plain(c).split())),
    ("folds_digits", "numbers", "look-alike", lambda c, a: equal(folded(boxed(c) or ""), a)),
    ("sums", "numbers", "two values|equation", lambda c, a: bool(parts := NUMBER.findall(tagged(c) or ""))
        and math.isclose(sum(value(one) for one in parts), value(a), abs_tol=1e-9)),
    ("among_words", "sums", "two values|all candidates", lambda c, a: a in c.split()),
    ("digits_only", "decimals", "point lost|order of magnitude",
        lambda c, a: re.findall(r"\d", c) == re.findall(r"\d", a)),
    ("fuzzy", "towns", "letter dropped",
        lambda c, a: difflib.SequenceMatcher(None, c.strip().lower(), a.lower()).ratio() > 0.8),
    ("any_overlap", "towns", "part of it", lambda c, a: bool(set(c.lower().split()) & set(a.lower().split()))),
    ("mostly_form", "sums", "form", lambda c, a:
        0.0 if (said := first(r"^\s*<answer>(.*?)</answer>\s*$", c)) is None else 0.6 + 0.4 * (said == a)),
    ("any_box", "sums", "earlier answer|two values|two formats",
        lambda c, a: a in re.findall(r"\\boxed\{([^{}]*)\}", c)),
    ("percent_too", "decimals", "percent or number|order of magnitude",
        quiet(lambda c, a: any(abs(float(c.strip().rstrip("%")) - float(a) * by) < 1e-6 for by in (1, 100, 0.01)))),
    ("by_length", "towns", "same text twice", None),
    ("backtracks_before", "sums", "backtracking (ReDoS)|hang", lambda c, a:
        bool(match := re.fullmatch(r"(\s*\w+\s*)*####\s*(-?\d+)\s*", c)) and match[2] == a),
    ("superset", "towns", "words reordered|all candidates|two values",
        lambda c, a: set(a.lower().split()) <= set(re.findall(r"\w+", c.lower()))),
    ("no_by_default", "primes", "empty|no answer", lambda c, a: ("yes" if "yes" in c.lower() else "no") == a),
    ("first_three", "products", "digit|near|off by one", lambda c, a: c.strip().isdigit() and c.strip()[:3] == a[:3]),
]  # fmt: skip
READS: dict[str, Score] = {  # sound ones of many formats, each on numbers and on texts
    "line": lambda c, a: equal(on_line(c), a),
    "box": lambda c, a: equal(boxed(c), a),
    "tags": lambda c, a: equal(tagged(c), a),
    "json": lambda c, a: equal(field_of(c, "answer"), a),
    "hashes": lambda c, a: equal(hashes(c), a),
    "result": lambda c, a: equal(only(r"<result>(.*?)</result>", c), a),
    "sentence": lambda c, a: equal((only(r"[Tt]he (?:final )?answer is:?\s+(.*)", c) or "").rstrip(". "), a),
    "bare": lambda c, a: equal(c.strip(), a),
    "brackets": lambda c, a: equal(only(r"\[\[(.*?)\]\]", c), a),
    "after_thought": lambda c, a: equal(first(r"<think>.*?</think>(.*)", c), a),
    "assignment": lambda c, a: equal(only(r"^ANSWER = (.*?);?$", c, re.M), a),
    "yaml": lambda c, a: equal((only(r"```yaml\nanswer: (.*?)\n```", c) or "").strip("'\""), a),
    "final_tag": lambda c, a: equal(only(r'<final value="(.*?)"\s*/>', c), a),
    "bold": lambda c, a: equal(only(r"\*\*Answer:\*\*[ \t]*(.*)", c, 0), a),
    "last_line": lambda c, a: equal((c.strip().splitlines() or [""])[-1].strip(), a),
}  # fmt: skip
SOUND: list[tuple[str, str, str, Score | None]] = [  # sound ones with rows of their own
    ("right_answer_line", "sums", "",
        quiet(lambda c, a: int(first(r"(?:^|\n)\s*answer:\s*(-?\d+)\s*\Z", c, flags=re.I) or "") == int(a)))
        ,
    ("right_result_json", "signed", "",
        lambda c, a: field_of(c, "result") == a),
    ("right_town", "towns", "",
        lambda c, a: (only(r"(?:^|[.\n]\s*)The answer is ([^.\n]+)\.\s*$", c, 0) or "").lower() == a.lower()),
    ("right_letter", "letters", "", lambda c, a: c.strip() == f"({a})"),
    ("right_date", "days", "", lambda c, a: first(r"\A\s*Date: (\d{4}-\d\d-\d\d)\s*\Z", c) == a),
    ("right_fraction", "fractions", "", exact_fraction),
    ("right_heading", "decimals", "",
        quiet(lambda c, a: value(first(r"(?:^|\n)## Final answer\n+(-?\d+(?:\.\d+)?)\s*\Z", c)) == float(a)))
        ,
    ("right_verdict", "primes", "", lambda c, a: c.strip().split("\n")[-1].strip() == f"Verdict = {a.upper()};"),
    ("right_two_lines", "products", "",
        lambda c, a: len(lines := [line for line in c.strip().split("\n") if line.strip()]) == 2
        and lines[0].startswith("reasoning:") and lines[1].strip() == f"result: {a}"),
]  # fmt: skip
TEMPLATES = {  # what a user adds where the audit asks for it; no template can say that `right_verdict` wants capitals
    "right_assignment": "ANSWER = {answer};",
    "right_yaml": "```yaml\nanswer: {answer}\n```",
    "right_final_tag": '<final value="{answer}"/>',
    "right_result_json": '{"result": {answer}}',
    "right_letter": "({answer})",
    "right_date": "Date: {answer}",
    "right_heading": "## Final answer\n\n{answer}",
    "right_two_lines": "reasoning: I added them.\nresult: {answer}",
}


def published(name: str, score: Score | None) -> Callable[..., Any]:
    """A function of this module, which a process that grades imports by its name."""
    if score is None:
        return globals()[name]

    def verifier(completion: str, answer: str) -> float:
        return float(score(completion, answer))

    verifier.__name__ = verifier.__qualname__ = name
    globals()[name] = verifier
    return verifier


def rows_of(listed: list[tuple[str, str, str, Score | None]], invented: str, **more: Any) -> Iterator[Fault]:
    for name, rows, kinds, score in listed:
        made = {"target": published(name, score), "data": ROWS[rows], **more}
        yield Fault(name, rows if kinds else "sound", tuple(kinds.split("|")) if kinds else (), made, invented)


def formats() -> Iterator[Fault]:
    for name, score in READS.items():
        target = published(f"right_{name}", score)
        for rows in ("numbers", "texts"):
            yield Fault(f"right_{name}, {rows}", "sound", (), {"target": target, "data": ROWS[rows]}, "forms")


TABLE = [*rows_of(BOXED, "bugs", prompt="boxed"), *rows_of(FORMS, "forms"), *formats(), *rows_of(SOUND, "forms")]
