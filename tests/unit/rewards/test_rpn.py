from dataclasses import replace

import pytest

from rlvr.rewards.expressions import Arithmetic
from rlvr.rewards.parts import PartsVerifier
from rlvr.rewards.rpn import RpnBoxed, RpnCorrect, RpnVerifier
from rlvr.types import Attempt, Example, Message, Score
from tests.unit.rewards import attempts
from tests.unit.rewards.attempts import finished

MOD_13 = Arithmetic(operators=("+", "-", "*"), smallest=0, largest=12, modulus=13)
PROMPT = "<boe> 4 0 1 + + ="


def made(completion: str, answer: str = "5", prompt: str = PROMPT, state: object = MOD_13) -> Attempt:
    example = Example(id="e", messages=(Message(role="user", content=prompt),), answer=answer)
    text = completion.removesuffix(" <eoe>")
    return replace(attempts.attempt(text), example=example, completion=completion, state=state)


def scored(attempt: Attempt, boxed: float = 0.0, correct: float = 1.0) -> Score:
    parts = PartsVerifier({"boxed": RpnBoxed(weight=boxed), "correct": RpnCorrect(weight=correct)})
    return finished(RpnVerifier(parts).verify(attempt))


def found(completion: str, prompt: str = PROMPT, **weights: float) -> tuple[float, str, float, float]:
    score = scored(made(completion, prompt=prompt), **weights)
    return score.value, score.status, score.parts["boxed"], score.parts["correct"]


@pytest.mark.parametrize(
    ("completion", "correct"),
    [
        *((f"{said} <eoe>", 1.0) for said in ("4 1 + = 5", "5", "9 9 9 = 5", "= 5")),
        *((f"{said} <eoe>", 0.0) for said in ("4 1 + = 6", "6", "= 0", "0", "4 1 + = 0")),
    ],
)
def test_the_gold_between_equals_and_the_end_is_correct(completion: str, correct: float) -> None:
    assert found(completion) == (correct, "scored", 1.0, correct)


@pytest.mark.parametrize(
    "completion",
    [
        *("", "5", "4 1 + = 5"),  # no end: cut off
        *("<eoe>", "5 = <eoe>", "5 5 <eoe>", "5 + <eoe>", "4 1 + <eoe>", "= = <eoe>", "<boe> <eoe>", "5 <pad> <eoe>"),
        *("05 <eoe>", "+5 <eoe>", "5.0 <eoe>", "13 <eoe>", "-8 <eoe>", "٥ <eoe>", "=5 <eoe>", "five <eoe>"),
        "18 <eoe>",  # 5 modulo 13, but no word
        *("5<eoe>", "5 <EOE>"),
    ],
)
def test_a_completion_without_a_boxed_operand_is_invalid(completion: str) -> None:
    for boxed in (0.0, 0.3, 1.0):
        assert found(completion, boxed=boxed, correct=1.0 - boxed) == (0.0, "invalid", 0.0, 0.0)


@pytest.mark.parametrize(
    ("completion", "prompt"),
    [
        *(("= 0 <eoe>", PROMPT), ("5 6 <eoe>", PROMPT)),  # any boxed number, the exploit of the boxed reward
        *(("6 <eoe> = 5 <eoe>", PROMPT), ("<eoe> = 5 <eoe>", PROMPT)),  # two ends: the first decides
        ("6 <eoe> 5", PROMPT),  # the answer after the end
        ("= 0 = 1 = 2 = 3 = 4 = 5 = 6 <eoe>", PROMPT),  # every number once
        *(("<eoe>", "<boe> 5 0 + ="), ("<eoe>", "<boe> 0 5 + =")),  # the gold is a word of the prompt
        *(("", "<boe> 5 0 + = 5 <eoe>"), ("6 <eoe>", "<boe> 5 0 + = 5 <eoe> =")),  # an end in the prompt
    ],
)
def test_pitfall_28_exploits_score_nothing(completion: str, prompt: str) -> None:
    value, _, _, correct = found(completion, prompt)
    assert (value, correct) == (0.0, 0.0)


def test_pitfall_28_signs_count() -> None:
    integers = Arithmetic(operators=("-",), smallest=-9, largest=9, modulus=None)
    for word, value in (("-2", 1.0), ("2", 0.0)):
        assert scored(made(f"{word} <eoe>", "-2", "<boe> 3 5 - =", integers)).value == value
        assert scored(made(f"{word} <eoe>", "2", "<boe> 5 3 - =", integers)).value == 1.0 - value


def test_pitfall_03_words_after_the_first_end_are_not_scored() -> None:
    assert found("5 <eoe> = 6 <eoe>") == (1.0, "scored", 1.0, 1.0)
    assert found("5 <eoe> 6 7 <pad>") == (1.0, "scored", 1.0, 1.0)


@pytest.mark.parametrize(
    ("completion", "value", "status"),
    [
        *(("x = ba <eoe>", 1.0, "scored"), ("ba <eoe>", 1.0, "scored"), ("ab <eoe>", 0.3, "scored")),
        *(("b a <eoe>", 0.0, "invalid"), ("= <eoe>", 0.0, "invalid"), ("ba", 0.0, "invalid")),
    ],
)
def test_pitfall_28_without_arithmetic_one_word_is_an_operand(completion: str, value: float, status: str) -> None:
    parts = PartsVerifier({"boxed": RpnBoxed(weight=0.3), "correct": RpnCorrect(weight=0.7)})
    score = finished(parts.verify(made(completion, "ba", "reverse ab =", state=None)))
    assert (score.value, score.status) == (value, status)
