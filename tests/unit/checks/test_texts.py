"""What `rlvr doctor` probes with, and how it reads questions and rewards."""

import pytest

from rlvr.checks.data import _place_of_answers
from rlvr.checks.patient import around
from rlvr.checks.rewards import _apart
from rlvr.checks.texts import PIECES, awkward


def test_awkward_texts_hold_every_piece_and_depend_on_the_seed_alone() -> None:
    texts = awkward(3)
    assert texts == awkward(3) != awkward(4)
    assert all(any(piece in text for text in texts) for piece in PIECES)
    assert all(text == text.strip() for text in texts)


@pytest.mark.parametrize(
    ("question", "place"),
    [
        ("What is {a} plus {b}?", None),
        ("{a} {b} +", None),
        ("Of {c} and {a}, take the larger one. It is not {b}.", None),
        ("{c}. What is {a} plus {b}?", "at its beginning"),
        ("What is {a} plus {b}? (solution: {c})", "behind ' (solution: '"),
        ("What is {a} plus {b}? The key: {c}; go on.", "behind 'he key: '"),
        ("What is {a} plus {b}? [{c}]", "behind ' ['"),
        ("What is {a} plus {b}? Say {c}", "behind 'Say '"),
        ("Is it so? What is {a} plus {b}, the sum {c} or {b}?", "behind 'the sum '"),
        ("So: is: this: so: a thing of {a}, not {b}, a thing of {c}", "at its end"),
    ],
)
def test_a_place_that_tells_every_answer(question: str, place: str | None) -> None:
    """In as many letters, up to twelve, as all questions share."""
    known = []
    for a in range(2, 40):
        answer = 8 * a if place or a % 2 else a  # not always at one place
        known.append((question.format(a=a, b=7 * a, c=8 * a), str(answer)))
    assert _place_of_answers(known) == place
    assert _place_of_answers(known[:19]) is None  # too few to tell


def test_scores_that_depend_on_the_order_are_apart() -> None:
    assert _apart([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    assert _apart([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0])  # one process of two remembers
    assert not _apart([1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    assert not _apart([0.2, 0.9, 0.5], [0.1, 0.7, 0.6])  # rewards that differ by example


def test_two_texts_are_shown_where_they_differ_first() -> None:
    same = "abcdefghij" * 6
    assert around(f"{same}X{same}", f"{same}Y{same}") == {
        "appended": f"{same[20:]}X{same[:39]}",
        "rendered": f"{same[20:]}Y{same[:39]}",
    }
    assert around("ab", "abc", "text", "decoded") == {"text": "ab", "decoded": "abc"}
