import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rlvr.rewards.base import Grade
from rlvr.rewards.format import FormatApproximate, FormatExact, LengthPenalty, RepetitionPenalty
from rlvr.types import StopReason
from tests.unit.rewards.attempts import attempt, grade


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, 1.0) for text in ("<r>a</r><s>18</s>", "\n<r>a</r>\n<s>banana</s>\n")),
        *((text, 0.0) for text in ("", "18", "<s>18</s>", "<r></r><s>18</s>", "<r>a</r><s></s>")),
        *((text, 0.0) for text in ("Sure! <r>a</r><s>18</s>", "<r>a</r><s>18</s> 18", "<r>a</r> so <s>18</s>")),
        *((text, 0.0) for text in ("<r>a</r><s>17</s><s>18</s>", "<r>a</r><r>b</r><s>18</s>")),
    ],
)
def test_pitfall_28_the_exact_format_is_the_whole_text(text: str, value: float) -> None:
    assert grade(FormatExact(), attempt(text)) == Grade(value=value)
    assert grade(FormatExact(), replace(attempt(text), stop_reason=StopReason.LENGTH)).value == 0.0  # cut off


@pytest.mark.parametrize(
    ("text", "penalty", "value"),
    [
        *(("<r>a</r><s>18</s>", 1.0, 1.0), ("", 1.0, -1.0), ("", 0.0, 0.0), ("", 2.0, -2.0), ("<s>18</s>", 1.0, 0.0)),
        *(("<s>18</s>", 0.0, 0.5), ("<r>a</r><s>18", 1.0, 0.5), ("<r>a</r><s>18</s></s>", 1.0, 0.5)),
        *(("<s><s><s>", 1.0, -1.0), ("<s>18</s><r>a</r>", 0.0, 0.5), ("<r><s></r></s>", 0.0, 0.75)),
    ],
)
def test_pitfall_28_each_marker_that_occurs_once_is_a_quarter(text: str, penalty: float, value: float) -> None:
    assert grade(FormatApproximate(penalty=penalty), attempt(text)) == Grade(value=value)


def test_pitfall_28_markers_in_another_order_earn_less() -> None:
    part = FormatApproximate(penalty=1.0)
    assert grade(part, attempt("</s><s></r><r>")).value == -0.5
    for order in set(itertools.permutations(("<r>", "</r>", "<s>", "</s>"))) - {("<r>", "</r>", "<s>", "</s>")}:
        assert grade(part, attempt(" ".join(order))).value < 1.0


@settings(deadline=None)
@given(st.lists(st.sampled_from(["<r>", "</r>", "<s>", "</s>", "18", " "]), max_size=10).map("".join))
def test_an_exact_format_has_all_markers(text: str) -> None:
    approximate = grade(FormatApproximate(penalty=0.5), attempt(text)).value
    assert -0.5 <= approximate <= 1.0
    assert approximate == 1.0 or grade(FormatExact(), attempt(text)).value == 0.0


@pytest.mark.parametrize(
    ("num_tokens", "value"), [(0, 0.0), (100, 0.0), (101, -0.01), (150, -0.5), (200, -1.0), (5000, -1.0)]
)
def test_length_costs_nothing_then_linearly_more_then_one(num_tokens: int, value: float) -> None:
    found = grade(LengthPenalty(free_tokens=100, max_tokens=200), attempt("a", num_tokens=num_tokens))
    assert found.value == pytest.approx(value)
    assert found.status == "scored"
    assert math.copysign(1, found.value) == (1 if value == 0 else -1)  # 0.0, not -0.0


@pytest.mark.parametrize("free_tokens", [200, 201])
def test_a_length_that_costs_all_lies_above_the_one_that_costs_nothing(free_tokens: int) -> None:
    with pytest.raises(ValidationError, match=f"is not above free_tokens={free_tokens}; raise it"):
        LengthPenalty(free_tokens=free_tokens, max_tokens=200)


@pytest.mark.parametrize(
    ("text", "size", "value"),
    [
        *(("a b a b a", 2, -0.5), ("a b c d", 2, 0.0), ("a a a a", 1, -0.75), ("a a a a", 4, 0.0), ("a a a a", 5, 0.0)),
        *(("", 1, 0.0), ("ab a b", 1, 0.0)),  # words, not letters
    ],
)
def test_repetition_is_the_share_of_ngrams_seen_before(text: str, size: int, value: float) -> None:
    assert grade(RepetitionPenalty(ngram_size=size), attempt(text)).value == value
