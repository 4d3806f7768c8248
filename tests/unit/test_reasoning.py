"""Where reasoning begins and ends, in the marks of each model family."""

import pytest

from rlvr.reasoning import ATEM, GEMMA, HARMONY, THINK, Marks, split


@pytest.mark.parametrize("marks", [THINK, HARMONY, GEMMA, ATEM])
def test_every_block_of_reasoning_is_found(marks: Marks) -> None:
    one, two = (f"{marks.open}{word}{marks.close}" for word in ("first", "second"))
    assert split(f"{one}said{two}more", marks) == ("first\nsecond", "saidmore")
    assert split(f"{one}{two}", marks) == ("first\nsecond", "")
    assert split("said", marks) == (None, "said")


@pytest.mark.parametrize("marks", [HARMONY, GEMMA, ATEM])
def test_a_mark_that_also_ends_other_parts_ends_no_reasoning_without_a_beginning(marks: Marks) -> None:
    assert split(f"said{marks.close}more", THINK) == (None, f"said{marks.close}more")
    thoughts, said = split(f"said{marks.close}more", marks)
    assert thoughts is None
    assert said in ("saidmore", f"said{marks.close}more")


def test_a_mark_that_ends_reasoning_alone_ends_what_the_prompt_began() -> None:
    assert split("thought</think>said", THINK) == ("thought", "said")
    assert split("thought", THINK, opened=True) == ("thought", "")
