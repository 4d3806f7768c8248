"""Functions that tests name as task.source."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

CALLS: list[int] = []


def sums(size: int = 100) -> Iterator[tuple[str, int]]:
    return ((f"What is {n} plus one?", n + 1) for n in range(size))


def endless() -> Iterator[dict[str, Any]]:
    for n in itertools.count():
        CALLS.append(n)
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


def items(kind: str) -> list[Any]:
    """One of the things that are no examples, after a good one."""
    bad: dict[str, Any] = {
        "text": "just text",
        "number": 5,
        "one": ("q",),
        "four": ("q", "a", "d", "m"),
        "field": {"question": "q", "answer": "a", "reward": 1},
        "missing": {"question": "q"},
        "null": ("q", None),
        "blank": (" ", "a"),
        "metadata": {"question": "q", "answer": "a", "metadata": 5},
        "bool": ("q", True),
    }
    return [("good?", "yes"), ("better?", "yes"), bad[kind]]


WORDS = ("<pad>", "<boe>", "<eoe>", "=", "+", *map(str, range(10)))
FIRST_NUMBER = 5


def token_ids() -> Iterator[tuple[list[int], list[int], list[int]]]:
    """`<boe> a b + =`, `c <eoe>`, `a b + = c <eoe> <pad>` as ids of WORDS."""
    for a, b in itertools.product(range(5), range(5)):
        x, y, z = (FIRST_NUMBER + number for number in (a, b, a + b))
        yield [1, x, y, 4, 3], [z, 2], [x, y, 4, 3, z, 2, 0]


def numpy_arrays() -> Iterator[Any]:
    import numpy as np

    return (tuple(np.array(ids, dtype=np.int32) for ids in row) for row in token_ids())


def torch_arrays() -> Iterator[Any]:
    import torch

    return (tuple(torch.tensor(ids) for ids in row) for row in token_ids())


def jax_arrays() -> Iterator[Any]:
    import jax.numpy as jnp

    return (tuple(jnp.array(ids) for ids in row) for row in token_ids())


def arrays(kind: str) -> list[Any]:
    """A good row of arrays and one that cannot be read."""
    import numpy as np

    good = np.array([1, 5, 3])
    bad: dict[str, Any] = {
        "float": np.array([1.0, 2.0]),
        "matrix": np.array([[1, 2]]),
        "unknown": np.array([1, 99]),
        "empty": np.array([], dtype=np.int64),
    }
    return [(good, np.array([6])), (good + 2, np.array([6])), (bad[kind], good)]


def words(kind: str) -> list[Any]:
    """Texts with words inside and outside the vocabulary."""
    rows = [(f"<boe> {n} =", str(n)) for n in range(10)]
    return rows if kind == "good" else [*rows[:3], ("<boe> 3 =", "three")]
