"""The metric by itself: what counts as an answer, and when it is right."""

import pytest

from rlvr.tasks.rpn_metric import grade
from rlvr.types import GradedAnswer

NONE = GradedAnswer(answer=None, correct=False)
PROMPT = "<boe> 3 4 + ="


@pytest.mark.parametrize(
    ("prompt", "completion", "expected", "answer"),
    [
        (PROMPT, "7 <eoe>", "7", "7"),  # direct: the `=` is the prompt's last word
        (PROMPT, "3 4 + = 7 <eoe>", "7", "7"),  # worked
        ("<boe> 4 0 1 + + =", "4 1 + = 5 <eoe>", "5", "5"),
        ("<boe> 4 0 1 + + =", "9 9 + = 5 <eoe>", "5", "5"),  # the steps are not graded
        (PROMPT, "6 <eoe>", "7", "6"),
        (PROMPT, "7 = 6 <eoe>", "7", "6"),  # the last one counts
        (PROMPT, "6 = 7 <eoe>", "7", "7"),
        (PROMPT, "  7\n<eoe>", "7", "7"),
        (PROMPT, "7<eoe>", "7", "7"),
        (PROMPT, "007 <eoe>", "7", "7"),
        (PROMPT, "-0 <eoe>", "0", "0"),
        (PROMPT, "999999999999999999 <eoe>", "7", "999999999999999999"),
    ],
)
def test_pitfall_38_the_answer_is_the_integer_after_the_last_equals(
    prompt: str, completion: str, expected: str, answer: str
) -> None:
    assert grade(prompt, completion, expected) == GradedAnswer(answer=answer, correct=answer == expected)


@pytest.mark.parametrize("completion", ["7", "3 4 + = 7", "7 eoe", "7 <eoe", ""])
def test_pitfall_38_a_completion_that_never_ended_has_no_answer(completion: str) -> None:
    assert grade(PROMPT, completion, "7") == NONE


@pytest.mark.parametrize(
    ("prompt", "completion"),
    [
        (PROMPT, "7 7 <eoe>"),
        (PROMPT, "3 4 + 7 <eoe>"),
        (PROMPT, "3 4 + = 1 7 <eoe>"),
        (PROMPT, "== 7 <eoe>"),
        (PROMPT, "3 4 +=7 <eoe>"),
        ("<boe> 3 4 +", "7 <eoe>"),  # neither prompt nor completion says `=`
        ("<boe> 3 4 +", "= <eoe>"),
        ("", "7 <eoe>"),
    ],
)
def test_pitfall_38_a_number_that_does_not_follow_an_equals_is_no_answer(prompt: str, completion: str) -> None:
    assert grade(prompt, completion, "7") == NONE


@pytest.mark.parametrize(
    ("said", "expected", "correct"),
    [("-7", "-7", True), ("-7", "7", False), ("7", "-7", False), ("17", "7", False), ("70", "7", False)],
)
def test_pitfall_28_the_sign_and_every_digit_count(said: str, expected: str, correct: bool) -> None:
    assert grade("<boe> 3 4 - =", f"{said} <eoe>", expected) == GradedAnswer(answer=said, correct=correct)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [("6 <eoe> 7 <eoe>", "6"), ("7 <eoe> = 6 <eoe>", "7"), ("7 <eoe> junk", "7"), ("<eoe> 7 <eoe>", None)],
)
def test_pitfall_28_nothing_after_the_first_end_is_read(completion: str, answer: str | None) -> None:
    assert grade(PROMPT, completion, "7") == GradedAnswer(answer=answer, correct=answer == "7")


@pytest.mark.parametrize(
    "garbage",
    ["", "=", "= =", "+", "7.0", "+7", "--7", "- 7", "7e0", "seven", "7=", "\u0667", "\uff17", "1_0", "1" * 19, "[7]"],
)
def test_pitfall_28_only_plain_integers_are_answers(garbage: str) -> None:
    assert grade(PROMPT, f"{garbage} <eoe>", "7") == NONE
