"""Tests whether two formulas are equal after `sympy.simplify`, with bounded time.

`simplify` comes last, after cheaper tests:

1. equal trees are equal;
2. two rational functions that differ at a random point of a large prime field are different functions, and
   simplification preserves the function: not equal;
3. formulas too large for sympy to expand in about a second count as not equal (`MAX_TERMS` and `MAX_LEAVES`).
   FinQA's gold programs are far smaller; the official script would work on such a prediction for hours.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlvr.rewards.official.finqa_execute import ARITHMETIC

PRIME = 2**61 - 1
MAX_DEPTH = 199  # the official script fails from 200 on: limit of nested parentheses in Python's parser
MAX_TERMS = 200
MAX_LEAVES = 400
MAX_EXPONENT_LEAVES = 8
SYMBOL = "symbol"


class _Size(NamedTuple):
    """Size of a formula: its leaves, and its terms as one expanded fraction, numerator and denominator."""

    leaves: int = 1
    over: int = 1
    under: int = 1

    @property
    def is_small(self) -> bool:
        return self.leaves <= MAX_LEAVES and max(self.over, self.under) <= MAX_TERMS


@dataclass(kw_only=True)
class Formulas:
    """Formulas as nodes with shared parts. Equal trees have one number; a part has a lower one than the whole."""

    nodes: list[tuple[str, int, int]] = field(default_factory=list)
    numbers: dict[tuple[str, int, int], int] = field(default_factory=dict)
    depths: list[int] = field(default_factory=list)

    def symbol(self, number: int) -> int:
        return self._node((SYMBOL, number, number), 0)

    def combined(self, operation: str, left: int, right: int) -> int:
        """The node `left operation right`.

        ValueError: a part is a comparison, which no operation accepts, or it is nested too deep.
        """
        if "greater" in (self.nodes[left][0], self.nodes[right][0]):
            raise ValueError("yes or no is no number")
        depth = 1 + max(self.depths[left], self.depths[right])
        if depth > MAX_DEPTH:
            raise ValueError("nested too deep")
        return self._node((operation, left, right), depth)

    def _node(self, node: tuple[str, int, int], depth: int) -> int:
        if node not in self.numbers:
            self.numbers[node] = len(self.nodes)
            self.nodes.append(node)
            self.depths.append(depth)
        return self.numbers[node]

    def are_equal(self, first: int, second: int) -> bool:
        if first == second:
            return True
        if "greater" in (self.nodes[first][0], self.nodes[second][0]) and not self._may_be_one_comparison(
            first, second
        ):
            return False
        rng = random.Random(0)
        values = self._folded(lambda: rng.randrange(PRIME), _value)
        if values[first] is not None and values[second] is not None and values[first] != values[second]:
            return False
        sizes = self._folded(_Size, _size)
        return sizes[first].is_small and sizes[second].is_small and self._simplify_alike(first, second)

    def _may_be_one_comparison(self, one: int, other: int) -> bool:
        """False for a comparison and a number, and for two different comparisons of symbols; `a > a` is just false."""
        if self.nodes[one][0] != self.nodes[other][0]:
            return False
        sides = [side for number in (one, other) for side in self.nodes[number][1:]]
        return any(self.nodes[side][0] != SYMBOL for side in sides) or (sides[0] == sides[1] and sides[2] == sides[3])

    def _folded(self, leaf: Callable[[], Any], combine: Callable[[str, Any, Any], Any]) -> list[Any]:
        found: list[Any] = []
        for operation, left, right in self.nodes:
            found.append(leaf() if operation == SYMBOL else combine(operation, found[left], found[right]))
        return found

    def _simplify_alike(self, first: int, second: int) -> bool:
        from sympy import Symbol, simplify

        def expression(number: int) -> Any:
            """As Python reads the official text: operators on symbols `a0`, `a1`, ..."""
            if number not in built:
                operation, left, right = self.nodes[number]
                is_symbol = operation == SYMBOL
                built[number] = (
                    Symbol(f"a{left}") if is_symbol else ARITHMETIC[operation](expression(left), expression(right))
                )
            return built[number]

        built: dict[int, Any] = {}
        try:
            return bool(simplify(expression(first)) == simplify(expression(second)))
        except Exception:  # sympy; the official script treats any error as "not equal"
            return False


def _value(operation: str, left: int | None, right: int | None) -> int | None:
    """Its value modulo PRIME from the values of its parts; None if undefined there or not a rational function."""
    if left is None or right is None or operation in ("exp", "greater"):
        return None
    if operation == "divide":
        return left * pow(right, -1, PRIME) % PRIME if right else None
    return ARITHMETIC[operation](left, right) % PRIME


def _size(operation: str, left: _Size, right: _Size) -> _Size:
    """Bounds for `left operation right`; once too large, the exact size no longer matters."""
    leaves, over, under = left.leaves + right.leaves, left.over * right.over, left.under * right.under
    if not (left.is_small and right.is_small):
        return _Size(MAX_LEAVES + 1)
    if operation == "divide":
        over, under = left.over * right.under, left.under * right.over
    elif operation in ("add", "subtract", "greater"):
        over = left.over * right.under + right.over * left.under
    elif operation == "exp":
        # An exponent such as a/a + a/a equals 2: at most half of its leaves can make ones.
        # Each power costs as much as twice the terms.
        times = max(1, right.leaves // 2)
        if right.leaves > MAX_EXPONENT_LEAVES:
            return _Size(MAX_LEAVES + 1)
        over, under = 2 * left.over**times, left.under**times
    return _Size(leaves, over, under)
