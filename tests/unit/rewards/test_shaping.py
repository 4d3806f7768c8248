import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.registry import find, names
from rlvr.rewards.shaping import LengthPenalty, RepetitionPenalty
from tests.unit.rewards.attempts import attempt, grade, wrong_settings


@pytest.mark.parametrize(
    ("num_tokens", "value"), [(0, 0.0), (100, 0.0), (101, -0.01), (150, -0.5), (200, -1.0), (5000, -1.0)]
)
def test_length_costs_nothing_then_linearly_more_then_one(num_tokens: int, value: float) -> None:
    found = grade(LengthPenalty(free_tokens=100, max_tokens=200), attempt("a", num_tokens=num_tokens))
    assert found.value == pytest.approx(value)
    assert found.status == "scored"
    assert math.copysign(1, found.value) == (1 if value == 0 else -1)  # 0.0, not -0.0


@pytest.mark.parametrize(("free_tokens", "max_tokens"), [(10, 10), (11, 10)])
def test_a_length_range_without_room_is_refused(free_tokens: int, max_tokens: int) -> None:
    found = wrong_settings(LengthPenalty, {"free_tokens": free_tokens, "max_tokens": max_tokens})
    assert found == [("max_tokens", f"is not above free_tokens={free_tokens}; raise it")]


@pytest.mark.parametrize(
    ("text", "size", "value"),
    [
        ("a b a b a", 2, -0.5),
        ("a b c d", 2, 0.0),
        ("a a a a", 1, -0.75),
        ("a a a a", 4, 0.0),
        ("a a a a", 5, 0.0),
        ("", 1, 0.0),
        ("ab a b", 1, 0.0),  # words, not letters
    ],
)
def test_repetition_is_the_share_of_ngrams_seen_before(text: str, size: int, value: float) -> None:
    assert grade(RepetitionPenalty(ngram_size=size), attempt(text)).value == value


def test_a_size_of_nothing_is_refused() -> None:
    assert [key for key, _ in wrong_settings(RepetitionPenalty, {"ngram_size": 0})] == ["ngram_size"]
    assert [key for key, _ in wrong_settings(LengthPenalty, {"free_tokens": -1, "max_tokens": 10})] == ["free_tokens"]


def test_both_are_penalties_and_other_parts_are_none() -> None:
    assert {name for name in names("reward") if find("reward", name).is_penalty} == {"length", "repetition"}


@settings(deadline=None)
@given(st.text(alphabet="ab \n", max_size=40), st.integers(1, 5))
def test_repetition_stays_in_its_range(text: str, size: int) -> None:
    assert -1.0 < grade(RepetitionPenalty(ngram_size=size), attempt(text)).value <= 0.0
