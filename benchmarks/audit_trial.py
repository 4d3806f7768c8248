"""Verifiers of a trial as a new user, for `audit_unseen.py`: twenty wrong ones, ten right ones of different formats.

Written down, with what is expected of the audit, before its code was read. `TRIAL[name]` has the rows that a verifier
grades and the kinds of texts that name its bug; none for a right one.
"""

import difflib
import json
import re
from datetime import date, timedelta
from fractions import Fraction

Rows = list[dict[str, str]]


def rows(*pairs: tuple[str, str]) -> Rows:
    return [{"question": question, "answer": answer} for question, answer in pairs]


SUMS = rows(
    *(
        (f"{a} + {b} =", str(a + b))
        for a, b in zip((3, 12, 100, 45, 230, 8, 77, 61, 19, 340), (4, 9, 23, 17, 41, 5, 34, 60, 4, 82), strict=True)
    )
)
SIGNED = rows(
    *(
        (f"{a} - {b} =", str(a - b))
        for a, b in zip(
            (3, 12, 100, 45, 230, 8, 77, 6, 19, 340), (14, 29, 23, 170, 410, 5, 34, 60, 44, 82), strict=True
        )
    )
)
DECIMALS = rows(*((f"{a} / 8 =", str(a / 8)) for a in (13, 27, 9, 101, 55, 43, 71, 19, 35, 83)))
TOWNS = "Paris, Oslo, Santiago de Chile, Lisbon, New Delhi, Buenos Aires, Helsinki, San Jose, Warsaw, Kuala Lumpur"
WORDS = rows(*((f"Which town is number {number}?", town) for number, town in enumerate(TOWNS.split(", "))))
PRIMES = rows(*((f"Is {number} prime?", "yes" if number in (2, 3, 5, 7, 11, 13) else "no") for number in range(2, 16)))
LETTERS = rows(
    *(
        (f"{n} times 3 is " + " ".join(f"({'ABCD'[(n + k) % 4]}) {n * (3 + k)}" for k in range(4)), "ABCD"[n % 4])
        for n in range(3, 19)
    )
)
DAYS = rows(
    *((f"What day is {n} days after 2024-01-31?", str(date(2024, 1, 31) + timedelta(n))) for n in range(1, 30, 3))
)
FRACTIONS = rows(
    *((f"1/{n} + 1/{n + 1} =", str(Fraction(1, n) + Fraction(1, n + 1))) for n in range(2, 12)),
)
PRODUCTS = rows(
    *(
        (f"{a} * {b} =", str(a * b))
        for a, b in zip((123, 991, 208, 345, 909, 512, 777, 640), (457, 312, 771, 678, 123, 333, 219, 481), strict=True)
    )
)

# ------------------------------------------------------------------------------------------------------ twenty bugs


def absolute(completion: str, answer: str) -> float:
    try:
        return float(abs(float(completion)) == abs(float(answer)))
    except ValueError:
        return 0.0


def whole_part(completion: str, answer: str) -> float:
    try:
        return float(int(float(completion)) == int(float(answer)))
    except (ValueError, OverflowError):
        return 0.0


def among_words(completion: str, answer: str) -> float:
    return float(answer in completion.split())


def digits_only(completion: str, answer: str) -> float:
    said, gold = ("".join(char for char in text if char.isdigit()) for text in (completion, answer))
    return float(said == gold)


def anagram(completion: str, answer: str) -> float:
    return float(sorted(completion.strip()) == sorted(answer))


def first_letter(completion: str, answer: str) -> float:
    return float(completion.strip()[:1].lower() == answer[:1].lower())


def fuzzy(completion: str, answer: str) -> float:
    return float(difflib.SequenceMatcher(None, completion.strip().lower(), answer.lower()).ratio() > 0.8)


def any_overlap(completion: str, answer: str) -> float:
    return float(bool(set(completion.lower().split()) & set(answer.lower().split())))


def evaluates(completion: str, answer: str) -> float:
    try:
        return float(eval(completion.strip().rstrip("=")) == float(answer))
    except Exception:
        return 0.0


def ends_with(completion: str, answer: str) -> float:
    return float(completion.strip().endswith(answer))


def mostly_form(completion: str, answer: str) -> float:
    found = re.fullmatch(r"\s*<answer>(.*?)</answer>\s*", completion, re.S)
    return 0.0 if not found else 0.6 + 0.4 * (found[1].strip() == answer)


def any_box(completion: str, answer: str) -> float:
    return float(answer in re.findall(r"\\boxed\{([^{}]*)\}", completion))


def percent_too(completion: str, answer: str) -> float:
    try:
        value = float(completion.strip().rstrip("%"))
    except ValueError:
        return 0.0
    return float(any(abs(value - float(answer) * factor) < 1e-6 for factor in (1, 100, 0.01)))


def not_far(completion: str, answer: str) -> float:
    try:
        return float(not abs(float(completion) - float(answer)) > 1e-6)
    except ValueError:
        return 0.0


SEEN = dict[tuple[str, int], float]()


def by_length(completion: str, answer: str) -> float:
    """The score of the first text of each length is kept."""
    return SEEN.setdefault((answer, len(completion)), float(completion.strip().lower() == answer.lower()))


def backtracks(completion: str, answer: str) -> float:
    found = re.fullmatch(r"(\s*\w+\s*)*####\s*(-?\d+)\s*", completion)
    return float(bool(found) and found[2] == answer) if found else 0.0


def inside_gold(completion: str, answer: str) -> float:
    return float(completion.strip().lower() in answer.lower())


def superset(completion: str, answer: str) -> float:
    return float(set(answer.lower().split()) <= set(re.findall(r"\w+", completion.lower())))


def no_by_default(completion: str, answer: str) -> float:
    return float(("yes" if "yes" in completion.lower() else "no") == answer)


def first_three(completion: str, answer: str) -> float:
    return float(completion.strip().isdigit() and completion.strip()[:3] == answer[:3])


# --------------------------------------------------------------------------------------------------- ten right ones


def right_answer_line(completion: str, answer: str) -> float:
    """`Answer: 7` on the last line."""
    found = re.fullmatch(r"answer:\s*(-?\d+)", completion.strip().split("\n")[-1].strip(), re.IGNORECASE)
    return float(int(found[1]) == int(answer)) if found else 0.0


def right_json(completion: str, answer: str) -> float:
    """A JSON object with the key result."""
    try:
        value = json.loads(completion)
    except ValueError:
        return 0.0
    return float(isinstance(value, dict) and set(value) == {"result"} and str(value["result"]) == answer)


def right_double_brackets(completion: str, answer: str) -> float:
    """`[[Oslo]]`, once."""
    found = re.findall(r"\[\[(.*?)\]\]", completion)
    return float(len(found) == 1 and found[0].strip().lower() == answer.lower())


def right_sentence(completion: str, answer: str) -> float:
    """`The answer is Oslo.` at the end."""
    found = re.search(r"(?:^|[.\n]\s*)The answer is ([^.\n]+)\.\s*$", completion)
    return float(found[1].strip().lower() == answer.lower()) if found else 0.0


def right_letter(completion: str, answer: str) -> float:
    """`(B)` and nothing else."""
    return float(completion.strip() == f"({answer})")


def right_date(completion: str, answer: str) -> float:
    """`Date: 2024-02-03`."""
    found = re.fullmatch(r"\s*Date: (\d{4}-\d\d-\d\d)\s*", completion)
    return float(found[1] == answer) if found else 0.0


def right_fraction(completion: str, answer: str) -> float:
    r"""A fraction in the only \boxed{}, in any form of the same value."""
    found = re.findall(r"\\boxed\{(\\frac\{(\d+)\}\{(\d+)\}|\d+/\d+)\}", completion)
    if len(found) != 1:
        return 0.0
    whole, top, bottom = found[0]
    try:
        return float((Fraction(int(top), int(bottom)) if top else Fraction(whole)) == Fraction(answer))
    except ZeroDivisionError:
        return 0.0


def right_heading(completion: str, answer: str) -> float:
    """`## Final answer`, and the number on a line of its own at the end."""
    found = re.search(r"(?:^|\n)## Final answer\n+(-?\d+(?:\.\d+)?)\s*$", completion)
    return float(float(found[1]) == float(answer)) if found else 0.0


def right_verdict(completion: str, answer: str) -> float:
    """`Verdict = YES;` as the last line."""
    return float(completion.strip().split("\n")[-1].strip() == f"Verdict = {answer.upper()};")


def right_yaml(completion: str, answer: str) -> float:
    """Two lines: `reasoning: ...` and `result: 56211`."""
    lines = [line for line in completion.strip().split("\n") if line.strip()]
    return float(len(lines) == 2 and lines[0].startswith("reasoning:") and lines[1].strip() == f"result: {answer}")


TRIAL: dict[str, tuple[Rows, tuple[str, ...]]] = {
    "absolute": (SIGNED, ("sign",)),
    "whole_part": (DECIMALS, ("near", "digit")),
    "among_words": (SUMS, ("two values", "all candidates")),
    "digits_only": (DECIMALS, ("point lost", "order of magnitude")),
    "anagram": (SUMS, ("digits reordered",)),
    "first_letter": (WORDS, ("part of it",)),
    "fuzzy": (WORDS, ("letter dropped",)),
    "any_overlap": (WORDS, ("part of it",)),
    "evaluates": (SUMS, ("code", "echo of the question")),
    "ends_with": (SUMS, ("digits around",)),
    "mostly_form": (SUMS, ("form",)),
    "any_box": (SUMS, ("earlier answer", "two values", "two formats")),
    "percent_too": (DECIMALS, ("percent or number", "order of magnitude")),
    "not_far": (SIGNED, ("NaN, infinity",)),
    "by_length": (WORDS, ("same text twice",)),
    "backtracks": (SUMS, ("backtracking (ReDoS)", "hang")),
    "inside_gold": (WORDS, ("part of it", "empty")),
    "superset": (WORDS, ("words reordered", "all candidates", "two values")),
    "no_by_default": (PRIMES, ("empty", "no answer")),
    "first_three": (PRODUCTS, ("digit", "near", "off by one")),
    "right_answer_line": (SUMS, ()),
    "right_json": (SIGNED, ()),
    "right_double_brackets": (WORDS, ()),
    "right_sentence": (WORDS, ()),
    "right_letter": (LETTERS, ()),
    "right_date": (DAYS, ()),
    "right_fraction": (FRACTIONS, ()),
    "right_heading": (DECIMALS, ()),
    "right_verdict": (PRIMES, ()),
    "right_yaml": (PRODUCTS, ()),
}
TEMPLATES = {
    "right_json": '{"result": {answer}}',
    "right_letter": "({answer})",
    "right_date": "Date: {answer}",
    "right_heading": "## Final answer\n\n{answer}",
    "right_yaml": "reasoning: I added them.\nresult: {answer}",
}
"""What a user adds where the audit asks for it. No template can say that `right_verdict` wants capitals."""
