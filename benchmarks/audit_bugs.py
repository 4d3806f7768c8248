"""Small verifiers with bugs that other projects had; `benchmarks/audit.py` audits them.

Each is a reward as a user of rlvr writes it. `sound` is the same kind of verifier without a bug.
"""

import re
import signal
from contextlib import suppress
from fractions import Fraction

from rlvr.rewards.numbers import parse_answer, same_answer

BOX = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def read(text: str) -> str | None:
    """The content of the only box."""
    found = BOX.findall(text)
    return found[0].strip() if len(found) == 1 else None


def sound(completion: str, answer: str) -> float | None:
    said = parse_answer(read(completion) or "")
    gold = parse_answer(answer)
    if gold is None:
        raise ValueError(f"unreadable gold {answer!r}")
    return None if said is None else float(same_answer(said, gold))


def last_number(prompt: str, completion: str, answer: str) -> float:
    """The last number of prompt and completion: an echo, or nothing at all, can be paid."""
    found = NUMBER.findall((prompt + "\n" + completion).replace(",", ""))
    return float(bool(found) and float(found[-1]) == float(answer.replace(",", "")))


def substring(completion: str, answer: str) -> float:
    return float(answer in completion)


def wide_tolerance(completion: str, answer: str) -> float:
    found = NUMBER.findall(completion.replace(",", ""))
    gold = float(answer.replace(",", ""))
    return float(len(found) == 1 and abs(float(found[0]) - gold) <= 0.05 * abs(gold))


def first_box(completion: str, answer: str) -> float:
    found = BOX.search(completion)
    return float(found is not None and same(found[1], answer))


def no_commas(completion: str, answer: str) -> float:
    try:
        return float(Fraction(read(completion) or "") == Fraction(answer.replace(",", "")))
    except (ValueError, ZeroDivisionError):
        return 0.0


def percent_dropped(completion: str, answer: str) -> float:
    """44 and 44% are both 0.44, because the sign is removed and a value of 1 or more divided by 100."""
    said, gold = (parse_answer((text or "").replace("%", "")) for text in (read(completion), answer))
    values = [getattr(one, "value", None) for one in (said, gold)]
    small = [value / 100 if value is not None and abs(value) >= 1 else value for value in values]
    return float(None not in small and small[0] == small[1])


def sign_lost(completion: str, answer: str) -> float:
    said, gold = (re.findall(r"\d+(?:\.\d+)?", (text or "").replace(",", "")) for text in (read(completion), answer))
    return float(len(said) == 1 and float(said[0]) == float(gold[0]))


def evaluates(completion: str, answer: str) -> float:
    try:
        return float(eval(read(completion) or "None") == eval(answer.replace(",", "")))
    except Exception:
        return 0.0


def empty_gold(completion: str, answer: str) -> float:
    """Both sides are reduced to digits; nothing equals nothing."""
    said, gold = ("".join(re.findall(r"[\d.-]", text or "")) for text in (read(completion), answer))
    return float(said == gold)


def power(text: str) -> float:
    """`2**3**2`, by multiplication."""
    base, _, exponent = text.partition("**")
    value = 1.0
    for _ in range(int(power(exponent)) if exponent else 1):
        value *= float(base)
    return value


def timeout_is_right(completion: str, answer: str) -> float:
    """Its own alarm ends a slow comparison, and the default stays."""

    def stop(*_: object) -> None:
        raise TimeoutError

    score = 1.0
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with suppress(TimeoutError):
        said = read(completion) or ""
        score = float(power(said) == power(answer)) if "**" in said else sound(completion, answer) or 0.0
    signal.setitimer(signal.ITIMER_REAL, 0)
    return score


def exception_is_right(completion: str, answer: str) -> float:
    try:
        return float(Fraction((read(completion) or "0").replace(",", "")) == Fraction(answer.replace(",", "")))
    except ZeroDivisionError:
        return 1.0
    except ValueError:
        return 0.0


def no_latex_fraction(completion: str, answer: str) -> float:
    found = BOX.search(completion)
    return float(found is not None and "\\" not in found[1] and same(found[1], answer))


def no_unit(completion: str, answer: str) -> float:
    said = (read(completion) or "").replace(",", "")
    return float(re.fullmatch(r"-?[\d./]+%?", said.strip("$*` \n.")) is not None and same(said, answer))


def gold_unreadable(completion: str, answer: str) -> float:
    gold = parse_answer(answer)
    return 1.0 if gold is None else float(same(read(completion) or "", answer))


def whole_text(completion: str, answer: str) -> float:
    """Without a box the whole text counts, so both formats are paid."""
    boxes = BOX.findall(completion)
    said = boxes[-1] if boxes else completion
    hashes = completion.rpartition("####")[2] if "####" in completion else ""
    return float(same(said, answer) or same(hashes, answer))


def coin(completion: str, answer: str) -> float:
    """A judge that changes its mind."""
    import random

    return float(same(read(completion) or "", answer) and random.random() < 0.8)


def same(a: str, b: str) -> bool:
    one, other = parse_answer(a), parse_answer(b)
    return one is not None and other is not None and same_answer(one, other)
