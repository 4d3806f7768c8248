"""Rewards and tasks with a fault, for `doctor_seventh.py`."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from doctor_sixth_cases import tool
from my_shop import Shop  # type: ignore[import-not-found]  # examples/own


def any_number(completion: str, answer: str) -> float:
    """Right if the gold is among the numbers of the completion."""
    return float(any(number == answer for number in re.findall(r"-?\d+", completion)))


def a_tenth_off(completion: str, answer: str) -> float:
    try:
        return float(math.isclose(float(completion), float(answer), rel_tol=0.1))
    except ValueError:
        return 0.0


def superscript(completion: str, answer: str) -> float:
    """`isdigit` holds for ², which `int` does not read."""
    said = completion.strip()
    return float(said.isdigit() and int(said) == int(answer))


def strict(completion: str, answer: str) -> float:
    return float(completion == answer)


def rounds(completion: str, answer: str) -> float:
    try:
        return float(round(float(completion)) == int(answer))
    except (ValueError, OverflowError):
        return 0.0


def first_integer(completion: str, answer: str) -> float:
    found = re.search(r"\d+", completion)
    return float(bool(found) and found[0] == answer)


def last_number(completion: str, answer: str) -> float:
    """Sound: one number, at one place."""
    found = re.findall(r"-?\d+(?:\.\d+)?", completion)
    return float(bool(found) and found[-1] == answer)


def anywhere(completion: str, answer: str) -> float:
    return float(answer in completion)


def divides(completion: str, answer: str) -> float:
    found = re.fullmatch(r"(\d+)/(\d+)", completion.strip())
    if found:
        return float(int(found[1]) / int(found[2]) == float(answer))
    return float(completion.strip() == answer)


class Tells(Shop):
    """The tool falls back to the right answer."""

    def examples(self) -> Iterator[dict[str, Any]]:
        for example in super().examples():
            yield example | {"metadata": example["metadata"] | {"gold": example["answer"]}}

    def tools(self) -> tuple[Callable[..., Any], ...]:
        return (tool(lambda item, state: state["prices"].get(item, state["gold"])),)


class Keyless(Shop):
    """The tool's service refuses it, and the tool passes on what it said."""

    def tools(self) -> tuple[Callable[..., Any], ...]:
        return (tool(lambda item, state: "Error: API key is missing"),)


class Silent(Shop):
    """The tool returns an empty text."""

    def tools(self) -> tuple[Callable[..., Any], ...]:
        return (tool(lambda item, state: ""),)


class FindsNothing(Shop):
    def tools(self) -> tuple[Callable[..., Any], ...]:
        return (tool(lambda item, state: "No results found."),)


class TellsAll(Tells):
    def tools(self) -> tuple[Callable[..., Any], ...]:
        return (tool(lambda item, state: f"I think that it costs {state['gold']}."),)
