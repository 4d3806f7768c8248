"""Functions of two numbers, described in words: problems in MBPP's form that a model made from scratch can learn.

f(a, b): a times b, then minus 7      ->      def f(a, b):
                                                  return (a * b) - 7
"""

from collections.abc import Iterator
from itertools import product

from rlvr.data.rows import Row

MADE = "made"
"""`task.path` of these rows."""
WORDS = {"plus": "+", "minus": "-", "times": "*"}
ARGUMENTS = ((3, 5), (7, 2), (0, 4), (-2, 9), (11, -3))
PROGRAM = "def f(a, b):\n    return ({} {} {}) {} {}"


def made_rows() -> Iterator[Row]:
    """All 324 of them, each with five tests."""
    pairs = (("a", "b"), ("b", "a"))
    for (first, second), inner, outer, number in product(pairs, WORDS, WORDS, range(1, 19)):
        program = PROGRAM.format(first, WORDS[inner], second, WORDS[outer], number)
        name = f"{first} {inner} {second}, then {outer} {number}"
        yield Row(
            f"made, {name}",
            {
                "prompt": [{"role": "user", "content": f"f(a, b): {name}"}],
                "test_list": [
                    f"assert f({a}, {b}) == {_value(inner, outer, number, *_ordered(first, a, b))}"
                    for a, b in ARGUMENTS
                ],
                "code": program,
            },
            name=name.replace(", then", "").replace(" ", "_"),
        )


def _ordered(first: str, a: int, b: int) -> tuple[int, int]:
    return (a, b) if first == "a" else (b, a)


def _value(inner: str, outer: str, number: int, left: int, right: int) -> int:
    return _applied(outer, _applied(inner, left, right), number)


def _applied(word: str, left: int, right: int) -> int:
    return {"plus": left + right, "minus": left - right, "times": left * right}[word]
