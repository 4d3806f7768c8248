"""Where reasoning begins and ends, in the marks of each model family."""

import pytest

from rlvr.reasoning import ATEM, GEMMA, HARMONY, THINK, Marks, split


@pytest.mark.parametrize("marks", [THINK, HARMONY, GEMMA, ATEM])
def test_every_block_of_reasoning_is_found(marks: Marks) -> None:
    one, two = (f"{marks.open}{word}{marks.close}" for word in ("first", "second"))
    assert split(f"{one}said{two}more", marks) == ("first\nsecond", "saidmore")
    assert split(f"{one}{two}", marks) == ("first\nsecond", "")
    assert split("said", marks) == (None, "said")
