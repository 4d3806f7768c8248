"""Functions that tests name as task.source."""

import importlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np


def sums(size: int = 100, start: int = 0) -> Iterator[tuple[str, int]]:
    return ((f"What is {n} plus one?", n + 1) for n in range(start, size))


def in_an_array(size: int = 100, start: int = 0) -> Any:
    """One of NumPy, of dicts."""
    return np.array([{"question": question, "answer": answer} for question, answer in sums(size, start)])


def endless() -> Iterator[dict[str, Any]]:
    for n in itertools.count():
        yield {"question": f"Number {n}?", "answer": str(n), "metadata": {"number": n}}


def worked() -> Iterator[tuple[str, str, str]]:
    return ((f"Twice {n}?", str(2 * n), f"{n} and {n} is {2 * n}") for n in range(50))


def unseeded() -> Iterator[tuple[str, str]]:
    return ((f"{random.random()}?", "1") for _ in range(50))


ONCE = iter([("a?", "1"), ("b?", "2"), ("c?", "3")])


def once() -> Iterator[tuple[str, str]]:
    return ONCE


def nothing() -> list[Any]:
    return []


def no_iterator() -> int:
    return 5


def late_failure() -> Iterator[tuple[str, str]]:
    yield from ((f"{n}?", "1") for n in range(60))
    raise RuntimeError("the \x1b[31mdisk\nis gone")


WORDS = ("<pad>", "<boe>", "<eoe>", "=", "+", *map(str, range(10)))
FIRST_NUMBER = 5


def token_ids() -> Iterator[tuple[list[int], list[int], list[int]]]:
    """`<boe> a b + =`, `c <eoe>`, `a b + = c <eoe> <pad>` as ids of WORDS."""
    for a, b in itertools.product(range(5), range(5)):
        x, y, z = (FIRST_NUMBER + number for number in (a, b, a + b))
        yield [1, x, y, 4, 3], [z, 2], [x, y, 4, 3, z, 2, 0]


def arrays(library: str) -> Iterator[Any]:
    module = importlib.import_module(library)
    make = getattr(module, "tensor", None) or module.array
    return (tuple(make(ids) for ids in row) for row in token_ids())
