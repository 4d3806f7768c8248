from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.errors import UserError
from rlvr.rewards.text import TextMatch, TextMetric
from tests.unit.rewards.attempts import FORMATS, WHOLE, attempt, grade, graded_answer, solved


def value(said: str, gold: str, metric: Any, **metadata: object) -> float:
    found = grade(TextMatch(metric=metric), attempt(solved(said), gold, **metadata))
    assert found.status == "scored"
    return found.value


@pytest.mark.parametrize(
    ("said", "gold", "em", "f1"),
    [
        *(("Green Bay", "green bay", 1.0, 1.0), ("the Green Bay!", "Green Bay", 1.0, 1.0)),
        *(("Green Bay Bill Pullman", "Green Bay", 0.0, 2 / 3), ("Bay Green", "Green Bay", 0.0, 1.0)),
        *(("Green Green", "Green Bay", 0.0, 0.5), ("Milwaukee", "Green Bay", 0.0, 0.0), ("yes", "Yes.", 1.0, 1.0)),
        *(("yes it is", "yes", 0.0, 0.0), ("no", "no answer known", 0.0, 0.0), ("yes", "no", 0.0, 0.0)),
        ("A", "a", 1.0, 1.0),  # multiple choice
        *(("[8.124, 12.852]", "[8.124,12.852]", 1.0, 1.0), ("A, B", "A,B", 1.0, 1.0), ("8,9", "8, 9", 1.0, 1.0)),
        *(("(A; B)", "(A;B)", 1.0, 1.0), ("8.0, 9", "8,9", 1.0, 1.0), ("[100, 200]", "[100,200]", 1.0, 1.0)),
        *(("1080 eggs", "1,080 eggs", 1.0, 1.0), ("B,A", "A,B", 0.0, 1.0), ("AB", "A,B", 0.0, 0.0)),
        *(("89", "8,9", 0.0, 0.0), ("[1,2]", "[-1,2]", 0.0, 0.5), ("[100200]", "[100,200]", 0.0, 0.0)),
        *(
            ("\u201cGreen Bay\u201d", "Green Bay", 1.0, 1.0),
            ("O\u2019Neill", "O'Neill", 1.0, 1.0),
            ("Jose\u0301", "Jos\xe9", 1.0, 1.0),
        ),
        *(("Green\u200b Bay", "Green Bay", 1.0, 1.0), ("Jose", "Jos\xe9", 0.0, 0.0)),
        *(("A", "The", 0.0, 0.0), ("?!", "A", 0.0, 0.0), ("the", "the the", 0.0, 2 / 3)),
    ],
)
def test_exact_match_and_f1_of_words(said: str, gold: str, em: float, f1: float) -> None:
    assert value(said, gold, "em") == em
    assert value(said, gold, "f1") == pytest.approx(f1)


@pytest.mark.parametrize(
    ("said", "gold"),
    [
        *(("1", "-1"), ("35", "3.5"), ("05", "0.5"), ("12", "1-2"), ("12", "1/2"), ("C#", "C"), ("C++", "C")),
        *(("5 miles", ".5 miles"), ("5 miles", "-5 miles"), ("35 miles", "3.5 miles"), ("2010 or 12", "2010 or 1-2")),
        ("18 eggs", "18 dogs"),
    ],
)
def test_pitfall_28_signs_points_and_sharps_count(said: str, gold: str) -> None:
    for one, other in ((said, gold), (gold, said)):
        assert value(one, other, "em") == 0.0
        assert value(one, other, "f1") < 1.0
        assert not graded_answer(TextMetric(), attempt(solved(one), other)).correct


def test_the_best_of_answer_and_aliases_counts() -> None:
    gold = "Major League Soccer"
    assert value("MLS", gold, "em", aliases=["MLS"]) == 1.0
    assert value("MLS soccer", gold, "f1", aliases=["MLS"]) == pytest.approx(2 / 3)
    assert value("NBA", gold, "f1", aliases=[]) == 0.0


@pytest.mark.parametrize("aliases", ["abc", {"a": 1}, [1], 5])
def test_pitfall_28_aliases_must_be_a_list_of_texts(aliases: object) -> None:
    with pytest.raises(UserError, match="give a list of texts in its metadata"):
        value("a", "gold", "em", aliases=aliases)
    with pytest.raises(UserError, match="aliases of example 'e1'"):
        graded_answer(TextMetric(), attempt(solved("a"), "gold", aliases=aliases))


@pytest.mark.parametrize("metric", ["em", "f1"])
@pytest.mark.parametrize("gold", ["", "the", "?!", "yes"])
def test_pitfall_28_an_empty_answer_matches_no_gold(metric: Any, gold: str) -> None:
    for text in ("", solved(""), solved("  "), "<r>a</r>"):
        found = grade(TextMatch(metric=metric), attempt(text, gold))
        assert (found.value, found.status) == (0.0, "invalid")
    for said in ("an", "...", "a an"):
        assert value(said, gold, metric) == 0.0


@settings(deadline=None)
@given(st.text(max_size=20), st.text(max_size=20), st.sampled_from(sorted(FORMATS)), st.sampled_from(["em", "f1"]))
def test_no_text_crashes_and_every_gold_is_right(said: str, gold: str, answer_in: str, metric: Any) -> None:
    found = grade(TextMatch(metric=metric), attempt(said, gold), FORMATS[answer_in])
    assert 0.0 <= found.value <= 1.0
    if gold.strip():
        assert grade(TextMatch(metric=metric), attempt(gold, gold), WHOLE).value == 1.0
