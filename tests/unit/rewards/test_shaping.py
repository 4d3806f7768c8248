import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.errors import ConfigError
from rlvr.rewards.shaping import LengthPart, RepetitionPart
from tests.unit.rewards.attempts import attempt, grade


@pytest.mark.parametrize(
    ("num_tokens", "value"), [(0, 0.0), (100, 0.0), (101, -0.01), (150, -0.5), (200, -1.0), (5000, -1.0)]
)
def test_length_costs_nothing_then_linearly_more_then_one(num_tokens: int, value: float) -> None:
    found = grade(LengthPart(free_tokens=100, max_tokens=200), attempt("a", num_tokens=num_tokens))
    assert found.value == pytest.approx(value)
    assert found.status == "scored"
    assert math.copysign(1, found.value) == (1 if value == 0 else -1)  # 0.0, not -0.0


@pytest.mark.parametrize(("free_tokens", "max_tokens"), [(10, 10), (11, 10), (-1, 10)])
def test_a_length_range_without_room_is_refused(free_tokens: int, max_tokens: int) -> None:
    with pytest.raises(ConfigError, match=f"free_tokens={free_tokens}"):
        LengthPart(free_tokens=free_tokens, max_tokens=max_tokens)


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
    assert grade(RepetitionPart(ngram_size=size), attempt(text)).value == value


def test_ngrams_of_no_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="ngram_size=0"):
        RepetitionPart(ngram_size=0)


@settings(deadline=None)
@given(st.text(alphabet="ab \n", max_size=40), st.integers(1, 5))
def test_repetition_stays_in_its_range(text: str, size: int) -> None:
    assert -1.0 < grade(RepetitionPart(ngram_size=size), attempt(text)).value <= 0.0
