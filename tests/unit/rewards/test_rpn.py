import pytest

from rlvr.rewards.expressions import Arithmetic
from rlvr.rewards.rpn import RpnVerifier, boxed_answer, valid_steps
from tests.unit.tasks.settings import make_reward

MOD_13 = Arithmetic(operators=("+", "-", "*"), smallest=0, largest=12, modulus=13)
PROMPT = "<boe> 4 0 1 + + ="


def verdict(
    completion: str, answer: str = "5", prompt: str = PROMPT, **reward: object
) -> tuple[float, str, float, float]:
    score = RpnVerifier(make_reward(**reward), MOD_13).score(prompt, completion, answer)
    return score.value, score.status, score.parts["boxed"], score.parts["correct"]


@pytest.mark.parametrize("completion", ["4 1 + = 5 <eoe>", "5 <eoe>", "9 9 9 = 5 <eoe>", "= 5 <eoe>"])
def test_the_gold_between_equals_and_the_end_is_correct(completion: str) -> None:
    assert verdict(completion) == (1.0, "scored", 1.0, 1.0)


@pytest.mark.parametrize("completion", ["4 1 + = 6 <eoe>", "6 <eoe>", "= 0 <eoe>", "0 <eoe>", "4 1 + = 0 <eoe>"])
def test_another_operand_is_boxed_only(completion: str) -> None:
    assert verdict(completion) == (0.0, "scored", 1.0, 0.0)


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "5",  # no end: truncated
        "4 1 + = 5",
        "<eoe>",
        "5 = <eoe>",
        "5 5 <eoe>",
        "5 + <eoe>",
        "4 1 + <eoe>",
        "= = <eoe>",
        "<boe> <eoe>",
        "5 <pad> <eoe>",
        "05 <eoe>",
        "+5 <eoe>",
        "5.0 <eoe>",
        "13 <eoe>",
        "18 <eoe>",  # 5 modulo 13, but no word
        "-8 <eoe>",
        "٥ <eoe>",
        "=5 <eoe>",
        "five <eoe>",
        "5<eoe>",
        "5 <EOE>",
    ],
)
def test_a_completion_without_a_boxed_operand_is_invalid(completion: str) -> None:
    assert verdict(completion) == (0.0, "invalid", 0.0, 0.0)
    assert verdict(completion, type="boxed") == (0.0, "invalid", 0.0, 0.0)
    assert verdict(completion, type="combined") == (0.0, "invalid", 0.0, 0.0)


@pytest.mark.parametrize(
    ("completion", "prompt"),
    [
        ("= 0 <eoe>", PROMPT),  # any boxed number, the exploit of the boxed reward
        ("6 <eoe> = 5 <eoe>", PROMPT),  # two ends: the first decides
        ("<eoe> = 5 <eoe>", PROMPT),
        ("6 <eoe> 5", PROMPT),  # the answer after the end
        ("= 0 = 1 = 2 = 3 = 4 = 5 = 6 <eoe>", PROMPT),  # every number once
        ("5 6 <eoe>", PROMPT),
        ("<eoe>", "<boe> 5 0 + ="),  # the gold is a word of the prompt
        ("<eoe>", "<boe> 0 5 + ="),
        ("", "<boe> 5 0 + = 5 <eoe>"),  # an end in the prompt does not count
        ("6 <eoe>", "<boe> 5 0 + = 5 <eoe> ="),
    ],
)
def test_pitfall_28_exploits_score_nothing(completion: str, prompt: str) -> None:
    value, _, _, correct = verdict(completion, prompt=prompt)
    assert (value, correct) == (0.0, 0.0)


def test_pitfall_28_signs_count() -> None:
    verifier = RpnVerifier(make_reward(), Arithmetic(operators=("-",), smallest=-9, largest=9, modulus=None))
    assert [verifier.score("<boe> 3 5 - =", f"{word} <eoe>", "-2").value for word in ("-2", "2")] == [1.0, 0.0]
    assert [verifier.score("<boe> 5 3 - =", f"{word} <eoe>", "2").value for word in ("-2", "2")] == [0.0, 1.0]


def test_pitfall_03_words_after_the_first_end_are_not_scored() -> None:
    assert verdict("5 <eoe> = 6 <eoe>") == (1.0, "scored", 1.0, 1.0)
    assert verdict("5 <eoe> 6 7 <pad>") == (1.0, "scored", 1.0, 1.0)


def test_an_answer_that_is_no_operand_never_matches() -> None:
    assert verdict("x <eoe>", answer="x")[:2] == (0.0, "invalid")
    assert verdict("", answer="")[:2] == (0.0, "invalid")


@pytest.mark.parametrize(
    ("reward", "right", "wrong"),
    [
        ({"type": "boxed"}, 1.0, 1.0),
        ({"type": "correct"}, 1.0, 0.0),
        ({"type": "combined"}, 1.0, 0.3),
        ({"type": "combined", "boxed_weight": 0.2, "correct_weight": 0.8}, 1.0, 0.2),
        ({"type": "combined", "boxed_weight": 0.0, "correct_weight": 2.0}, 2.0, 0.0),
        ({"type": "boxed", "boxed_weight": 5.0}, 1.0, 1.0),
    ],
)
def test_type_and_weights_make_the_value(reward: dict[str, object], right: float, wrong: float) -> None:
    assert verdict("5 <eoe>", **reward) == (right, "scored", 1.0, 1.0)
    assert verdict("6 <eoe>", **reward) == (wrong, "scored", 1.0, 0.0)


@pytest.mark.parametrize(
    ("completion", "share"),
    [
        ("4 1 + = 5 <eoe>", 1.0),
        ("4 1 + = 6 <eoe>", 0.5),  # the last step is wrong
        ("4 2 + = 6 <eoe>", 0.5),  # the first is; the second follows from what was written
        ("4 2 + = 5 <eoe>", 0.0),
        ("5 = 5 <eoe>", 0.0),  # the first line skips a step, the second reduces nothing
        ("4 1 + = 4 1 + = 5 <eoe>", 2 / 3),
        ("4 1 + = 5 <eoe> = 7 <eoe>", 1.0),
        ("4 1 + = <eoe>", 0.5),  # the answer is missing
        ("5 <eoe>", None),  # a direct answer writes no step
        ("6 <eoe>", None),
        ("4 1 + = 5", None),
    ],
)
def test_valid_steps_is_the_share_of_right_reductions(completion: str, share: float | None) -> None:
    assert valid_steps(PROMPT, completion, MOD_13) == share
    score = RpnVerifier(make_reward(), MOD_13).score(PROMPT, completion, "5")
    assert score.diagnostics == ({} if share is None else {"valid_steps": share})


def test_boxed_answer_is_the_word() -> None:
    assert boxed_answer(PROMPT, "4 1 + = 5 <eoe>", MOD_13) == "5"
    assert boxed_answer(PROMPT, "4 1 + 5 <eoe>", MOD_13) is None
    assert boxed_answer("", "<eoe>", MOD_13) is None
    assert boxed_answer("", "5 <eoe>", MOD_13) is None
