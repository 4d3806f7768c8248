"""Rewards and tasks with a fault, for `doctor_sixth.py`."""

import re
import urllib.request
from collections.abc import Callable
from typing import Any

from my_shop import Shop, price  # type: ignore[import-not-found]  # examples/own


def unreadable_earns_half(completion: str, answer: str) -> float:
    try:
        return float(float(completion) == float(answer))
    except ValueError:
        return 0.5


def length_outweighs(completion: str, answer: str) -> float:
    """The last number, minus two hundredths a letter."""
    found = re.findall(r"\d+", completion)
    return float(bool(found) and found[-1] == answer) - 0.02 * len(completion)


def begins_alike(completion: str, answer: str) -> float:
    return float(completion.strip().startswith(answer))


def judge_is_away(completion: str, answer: str) -> float:
    try:
        with urllib.request.urlopen("http://127.0.0.1:9/judge", timeout=1) as reply:
            return float(reply.read())
    except OSError:
        return 0.0


def tool(reply: Callable[[str, dict[str, Any]], Any]) -> Callable[..., Any]:
    """The tool `price` of the shop with another body."""

    def price(item: str, state: dict[str, Any]) -> Any:
        """Look up what one piece of something costs.

        Args:
            item: Its name, such as pear.
        """
        return reply(item, state)

    return price


CALLS = list[str]()


def comes_later(item: str, state: dict[str, Any]) -> str:
    CALLS.append(item)
    return str(price(item, state)) if len(CALLS) % 2 else "come back later"


class Broken(Shop):
    """The tool looks into a field that is not there."""

    def tools(self) -> tuple[Callable[..., Any], ...]:
        return (tool(lambda item, state: state["price"][item]),)


class Floods(Shop):
    """The tool's reply is longer than the model's context."""

    def tools(self) -> tuple[Callable[..., Any], ...]:
        return (tool(lambda item, state: "pear 3, fig 4, plum 5; " * 4000),)


class Remembers(Shop):
    """The tool answers every other call, of whatever episode."""

    def tools(self) -> tuple[Callable[..., Any], ...]:
        return (tool(comes_later),)
