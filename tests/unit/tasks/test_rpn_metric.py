"""What counts as an answer of RPN, and when it is right."""

import pytest

from rlvr.tasks.rpn_metric import grade
from rlvr.types import GradedAnswer

PROMPT = "<boe> 3 4 + ="


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("7 <eoe>", "7"),  # direct: the `=` is the prompt's last word
        ("3 4 + = 7 <eoe>", "7"),  # worked
        ("9 9 + = 7 <eoe>", "7"),  # the steps are not graded
        ("6 <eoe>", "6"),
        ("17 <eoe>", "17"),
        ("70 <eoe>", "70"),
        ("-7 <eoe>", "-7"),
        ("7 = 6 <eoe>", "6"),  # the last one counts
        ("6 = 7 <eoe>", "7"),
        ("  7\n<eoe>", "7"),
        ("7<eoe>", "7"),
        ("007 <eoe>", "7"),
        ("-0 <eoe>", "0"),
        ("999999999999999999 <eoe>", "999999999999999999"),
    ],
)
def test_pitfall_38_the_answer_follows_the_last_equals(completion: str, answer: str) -> None:
    for gold in ("7", "-7"):
        assert grade(PROMPT, completion, gold) == GradedAnswer(answer=answer, correct=answer == gold)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [("6 <eoe> 7 <eoe>", "6"), ("7 <eoe> = 6 <eoe>", "7"), ("7 <eoe> junk", "7"), ("<eoe> 7 <eoe>", None)],
)
def test_pitfall_28_text_after_the_first_end_is_ignored(completion: str, answer: str | None) -> None:
    assert grade(PROMPT, completion, "7") == GradedAnswer(answer=answer, correct=answer == "7")


NO_INTEGERS = [
    "",
    "=",
    "= =",
    "+",
    "7.0",
    "+7",
    "--7",
    "- 7",
    "7e0",
    "seven",
    "7=",
    "\u0667",
    "\uff17",
    "1_0",
    "1" * 19,
]
NOT_BEHIND_EQUALS = ["7 7", "3 4 + 7", "3 4 + = 1 7", "== 7", "3 4 +=7", "[7]"]
TOO_LONG = "1" * 19


@pytest.mark.parametrize("completion", ["7", "3 4 + = 7", "7 eoe", "7 <eoe", ""])
def test_pitfall_38_a_completion_without_end_has_no_answer(completion: str) -> None:
    assert grade(PROMPT, completion, "7") == GradedAnswer(answer=None, correct=False)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        *((PROMPT, said) for said in [*NO_INTEGERS, *NOT_BEHIND_EQUALS, TOO_LONG]),
        ("<boe> 3 4 +", "7"),  # no `=` in the prompt or in the completion
        ("<boe> 3 4 +", "="),
        ("", "7"),
    ],
)
def test_pitfall_28_only_plain_integers_are_answers(prompt: str, said: str) -> None:
    assert grade(prompt, f"{said} <eoe>", "7") == GradedAnswer(answer=None, correct=False)
