"""Shapes of RPN expressions: Catalan(k) for k operators, numbered for uniform sampling.

A shape is a string of `n` (operand) and `o` (operator): `4 0 1 + +` is `nnnoo`. It is valid if every prefix has more
`n` than `o` and the whole has one more.
"""

from functools import lru_cache
from math import comb

OPERAND, OPERATOR = "n", "o"


def count_shapes(num_operators: int) -> int:
    """Catalan(num_operators): 1, 2, 5, 14, 42, ... for 1, 2, 3, 4, 5 operators."""
    return comb(2 * num_operators, num_operators) // (num_operators + 1)


def count_completions(operands: int, height: int) -> int:
    """Number of valid continuations with `operands` more operands and `height` values on the stack, ending with one
    value.

    By the reflection principle: of the C(m, a) orders of a operands and a + h - 1 operators, m = 2a + h - 1, those that
    empty the stack correspond to the C(m, a + h) paths mirrored at their first visit to 0.
    """
    length = 2 * operands + height - 1
    return comb(length, operands) - comb(length, operands + height)


@lru_cache(maxsize=4096)
def unrank_shape(num_operators: int, rank: int) -> str:
    """The shape with number `rank` in alphabetical order, 0 <= rank < count_shapes(num_operators).

    With 2 operators: 0 is `nnnoo` (`a b c + +`), 1 is `nnono` (`a b + c +`).
    """
    if not 0 <= rank < count_shapes(num_operators):
        raise ValueError(f"rank {rank} is not in 0..{count_shapes(num_operators) - 1}")
    shape, operands, height = [OPERAND], num_operators, 1
    while operands or height > 1:
        with_operand = count_completions(operands - 1, height + 1) if operands else 0
        if rank < with_operand:
            shape.append(OPERAND)
            operands, height = operands - 1, height + 1
        else:
            rank -= with_operand
            shape.append(OPERATOR)
            height -= 1
    return "".join(shape)


def chain_shape(num_operators: int) -> str:
    """The left operand is always the running result: `a b + c + d +`."""
    return OPERAND + (OPERAND + OPERATOR) * num_operators
