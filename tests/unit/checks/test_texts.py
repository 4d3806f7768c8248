"""What `rlvr doctor` probes with, and how it reads questions and rewards."""

import pytest

from rlvr.checks.data import _place_of_answers
from rlvr.checks.rewards import _apart
from rlvr.checks.texts import PIECES, awkward


def test_awkward_texts_hold_every_piece_and_depend_on_the_seed_alone() -> None:
    texts = awkward(3)
    assert texts == awkward(3) != awkward(4)
    assert all(any(piece in text for text in texts) for piece in PIECES)
    assert all(text == text.strip() for text in texts)


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("What is {a} plus {b}?", False),
        ("{a} {b} +", False),
        ("Of {c} and {a}, take the larger one. It is not {b}.", False),
        ("{c}. What is {a} plus {b}?", True),
        ("What is {a} plus {b}? (solution: {c})", True),
        ("What is {a} plus {b}? The key: {c}; go on.", True),
        ("What is {a} plus {b}? [{c}]", True),
        ("What is {a} plus {b}? Say {c}", True),
    ],
)
def test_a_place_that_tells_every_answer(question: str, told: bool) -> None:
    known = []
    for a in range(2, 40):
        answer = 8 * a if told or a % 2 else a  # not always at one place
        known.append((question.format(a=a, b=7 * a, c=8 * a), str(answer)))
    assert (_place_of_answers(known) is not None) == told


def test_scores_that_depend_on_the_order_are_apart() -> None:
    assert _apart([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    assert _apart([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0])  # one process of two remembers
    assert not _apart([1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    assert not _apart([0.2, 0.9, 0.5], [0.1, 0.7, 0.6])  # rewards that differ by example
