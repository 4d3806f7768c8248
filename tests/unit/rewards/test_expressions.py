import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.errors import UserError
from rlvr.rewards.expressions import Arithmetic, ExpressionError, derivation, evaluate, parse, reduce_once

MOD_13 = Arithmetic(operators=("+", "-", "*"), smallest=0, largest=12, modulus=13)
PLUS = Arithmetic(operators=("+",), smallest=0, largest=12, modulus=13)
INTEGERS = Arithmetic(operators=("+", "-", "*"), smallest=-20, largest=20, modulus=None)


@pytest.mark.parametrize(
    ("arithmetic", "values"),
    [
        (MOD_13, {"4 0 1 + +": 5, "9 8 +": 4, "3 5 -": 11, "3 4 + 5 *": 9, "3 4 5 + *": 1, "7": 7, "10 2 3 * -": 4}),
        (INTEGERS, {"3 5 -": -2, "3 -4 *": -12, "4 5 * 3 -": 17, "-3 -5 -": 2}),
    ],
)
def test_values(arithmetic: Arithmetic, values: dict[str, int]) -> None:
    assert {text: evaluate(parse(text, arithmetic), arithmetic) for text in values} == values


@given(st.lists(st.sampled_from(["0", "5", "13", "+", "*", "=", "<eoe>", "x"]), max_size=12))
def test_a_pass_is_safe_on_any_text(words: list[str]) -> None:
    reduced = reduce_once(words, MOD_13)
    assert (len(words) - len(reduced)) % 2 == 0
    assert len(reduced) <= len(words)


@pytest.mark.parametrize(
    "lines",
    [
        *(["4 0 1 + +", "4 1 +", "5"], ["1 2 + 3 4 + *", "3 7 *", "8"], ["2 3 -", "12"], ["7"], [""]),
        ["1 2 + 3 +", "3 3 +", "6"],  # a pass does not use its own results
    ],
)
def test_a_derivation_ends_with_the_value(lines: list[str]) -> None:
    assert derivation(lines[0].split(), MOD_13) == lines


def test_a_derivation_that_gets_stuck_is_an_error() -> None:
    for text in ("1 2", "1 +"):
        with pytest.raises(ExpressionError, match="nothing in it can be reduced"):
            derivation(text.split(), MOD_13)


@pytest.mark.parametrize(
    ("text", "arithmetic", "reason"),
    [
        ("3 +", MOD_13, r"operator '\+' \(word 2\) has 1 operands before it, not 2"),
        ("* 3 4", MOD_13, r"operator '\*' \(word 1\) has 0 operands before it"),
        ("3 4 + 5", MOD_13, "2 values are left over, not 1"),
        ("", MOD_13, "it has no words"),
        ("3 four +", MOD_13, r"'four' \(word 2\) is not in the vocabulary: 0\.\.12 \+ - \*"),
        *((f"3 {word} +", MOD_13, rf"'{word}' \(word 2\) is not in the vocabulary") for word in ("13", "-4", "04")),
        *((f"3 4 {word}", MOD_13, rf"'{word}' \(word 3\) is not in the vocabulary") for word in ("=", "/")),
        ("3+4", MOD_13, r"'3\+4' \(word 1\) is not in"),
        ("3 4 *", PLUS, r"'\*' \(word 3\) is not in the vocabulary: .* \+"),
        ("7 8 * 20 -", INTEGERS, r"7 8 \* is 56, outside -20\.\.20"),
    ],
)
def test_an_invalid_expression_has_a_reason(text: str, arithmetic: Arithmetic, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        parse(text, arithmetic)
    assert {UserError, ValueError} <= set(ExpressionError.__mro__)
