"""Arithmetic in reverse Polish notation on words: `4 0 1 + +` reduces to `4 1 +`, then to `5`.

Shared by the task, which generates expressions and gold answers, and the verifier, which checks written steps.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rlvr.errors import UserError

APPLY: Mapping[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class ExpressionError(UserError, ValueError):
    """An expression is not valid RPN, or leaves the vocabulary; the message says where and why."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """Operands, operators and their rules.

    `Arithmetic(operators=("+", "-"), smallest=0, largest=6, modulus=7)`: operands are the words 0..6, `3 5 +` is 1.
    With `modulus=None` results are plain integers; those outside smallest..largest have no word.
    """

    operators: tuple[str, ...]
    smallest: int
    largest: int
    modulus: int | None

    @cached_property
    def values(self) -> Mapping[str, int]:
        """The integer of each operand word; `05`, `+5` and, modulo 7, `7` are no operands."""
        return {str(value): value for value in range(self.smallest, self.largest + 1)}

    @cached_property
    def functions(self) -> Mapping[str, Callable[[int, int], int]]:
        return {word: APPLY[word] for word in self.operators}

    def combine(self, left: int, right: int, operation: str) -> int:
        """`left right operation`, reduced modulo `modulus` if set."""
        value = self.functions[operation](left, right)
        return value if self.modulus is None else value % self.modulus


def parse(text: str, arithmetic: Arithmetic) -> tuple[str, ...]:
    """The words of a valid expression; ExpressionError with the reason for other text."""
    words = tuple(text.split())
    evaluate(words, arithmetic)
    return words


def evaluate(words: Sequence[str], arithmetic: Arithmetic) -> int:
    """The value of an expression; ExpressionError if it is not valid or an intermediate result has no word.

    >>> evaluate("4 0 1 + +".split(), Arithmetic(operators=("+",), smallest=0, largest=12, modulus=13))
    5
    """
    stack: list[int] = []
    for position, word in enumerate(words, start=1):
        if word in arithmetic.values:
            stack.append(arithmetic.values[word])
            continue
        if word not in arithmetic.functions:
            known = f"{arithmetic.smallest}..{arithmetic.largest} {' '.join(arithmetic.operators)}"
            raise _error(words, f"{word!r} (word {position}) is not in the vocabulary: {known}")
        if len(stack) < 2:
            raise _error(words, f"operator {word!r} (word {position}) has {len(stack)} operands before it, not 2")
        right, left = stack.pop(), stack.pop()
        stack.append(arithmetic.combine(left, right, word))
        if not arithmetic.smallest <= stack[-1] <= arithmetic.largest:
            bounds = f"{arithmetic.smallest}..{arithmetic.largest}"
            raise _error(words, f"{left} {right} {word} is {stack[-1]}, outside {bounds}")
    if len(stack) != 1:
        raise _error(words, f"{len(stack)} values are left over, not 1" if stack else "it has no words")
    return stack[0]


def reduce_once(words: Sequence[str], arithmetic: Arithmetic) -> list[str]:
    """One pass: every `operand operand operator`, left to right, becomes its result; results are not chained.

    Modulo 13, `1 2 + 3 4 + *` becomes `3 7 *`, and `4 0 1 + +` becomes `4 1 +`: the remaining `+` waits for the next
    pass. Words outside such triples are copied, so any text is safe.
    """
    values, functions = arithmetic.values, arithmetic.functions
    reduced: list[str] = []
    position, last = 0, len(words) - 2
    while position < len(words):
        word = words[position]
        if position < last and words[position + 2] in functions and word in values and words[position + 1] in values:
            word = str(arithmetic.combine(values[word], values[words[position + 1]], words[position + 2]))
            position += 2
        reduced.append(word)
        position += 1
    return reduced


def derivation(words: Sequence[str], arithmetic: Arithmetic) -> list[str]:
    """Every line from a valid expression to its value: `4 0 1 + +` gives `["4 0 1 + +", "4 1 +", "5"]`."""
    lines = [" ".join(words)]
    while len(words) > 1:
        words, before = reduce_once(words, arithmetic), words
        if len(words) == len(before):
            raise _error(words, "nothing in it can be reduced")
        lines.append(" ".join(words))
    return lines


def _error(words: Sequence[str], reason: str) -> ExpressionError:
    text = " ".join(words)
    return ExpressionError(f"{text[:200]!r} is not an expression in reverse Polish notation: {reason}.")
