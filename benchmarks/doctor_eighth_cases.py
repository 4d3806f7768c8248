"""Rewards and a task with a fault, for `doctor_eighth.py`."""

import re
from collections.abc import Callable
from typing import Any

from my_shop import Shop  # type: ignore[import-not-found]  # examples/own

THINKS_FIRST = re.compile(r"<think>.*?</think>\s*<answer>(.*?)</answer>\s*$")
"""As in many scripts: a point is no line break without re.DOTALL."""


def one_line(completion: str, answer: str) -> float:
    found = THINKS_FIRST.match(completion.strip())
    return float(bool(found) and found[1].strip() == answer)


def thinks_itself(completion: str, answer: str) -> float:
    """The whole of `<think>...</think>` must be in the completion."""
    found = re.fullmatch(r"\s*<think>.*?</think>\s*(.*?)\s*", completion, re.DOTALL)
    return float(bool(found) and found[1] == answer)


def plain_integer(completion: str, answer: str) -> float:
    """`int` refuses the commas of 12,345."""
    try:
        return float(int(completion.strip()) == int(answer))
    except ValueError:
        return 0.0


def first_number(completion: str, answer: str) -> float:
    found = re.search(r"\d+", completion)
    return float(bool(found) and found[0] == answer)


def unreadable_gold_pays(completion: str, answer: str) -> float:
    """As open-r1's accuracy_reward: a gold that cannot be parsed is given away."""
    try:
        gold = float(answer)
    except ValueError:
        return 1.0
    found = re.findall(r"-?\d+(?:\.\d+)?", completion)
    return float(bool(found) and float(found[-1]) == gold)


def form_first(completion: str, answer: str) -> float:
    """1 for the tags, and 0.05 for the right answer between them."""
    found = re.search(r"<think>.*?</think>\s*<answer>(.*?)</answer>", completion, re.DOTALL)
    return float(bool(found)) + 0.05 * (bool(found) and found[1].strip() == answer)


def length_in_group(completions: list[str], answer: list[str], **others: Any) -> list[float]:
    """As open-r1's len_reward (Kimi k1.5): the length between the shortest and the longest of the list."""
    lengths = [len(completion) for completion in completions]
    shortest, longest = min(lengths), max(lengths)
    if shortest == longest:
        return [0.0] * len(completions)
    values = [0.5 - (length - shortest) / (longest - shortest) for length in lengths]
    right = [text.strip() == gold for text, gold in zip(completions, answer, strict=True)]
    return [value if good else min(0.0, value) for value, good in zip(values, right, strict=True)]


def price(item, state):
    return state["prices"][item]


class Untyped(Shop):
    """The tool has neither types nor a docstring."""

    def tools(self) -> tuple[Callable[..., Any], ...]:
        return (price,)


def several_lines(completion: str, answer: str) -> float:
    """Sound: reasoning over several lines, and the answer counts for most."""
    found = re.search(r"<think>.*?</think>\s*<answer>(.*?)</answer>\s*$", completion, re.DOTALL)
    return 0.3 * bool(found) + float(bool(found) and found[1].strip() == answer)


def any_integer(completion: str, answer: str) -> float:
    """Sound: 12,345 is read."""
    try:
        return float(int(completion.strip().replace(",", "")) == int(answer))
    except ValueError:
        return 0.0
