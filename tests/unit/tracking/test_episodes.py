"""An episode as lines: brackets follow the loss mask, and hostile text is escaped."""

import dataclasses
from typing import Any

import pytest

from rlvr.records.rollouts import CallRecord, EpisodeRecord, TextTurn
from rlvr.tracking.episodes import MASKED, TRAINED, call_text, episode_lines, indented, turn_lines
from rlvr.types import GradedAnswer
from tests.unit.records.made import episode_record, words
from tests.unit.records.made import row_record as row
from tests.unit.records.made import turn_record as turn


def record(**changes: Any) -> EpisodeRecord:
    """Two turns that share a row: w1 w2 [sampled w3 w4] w5 [sampled w6 w4]."""
    call = CallRecord(name="search", arguments={"query": "Oslo", "top_n": 2}, problem=None)
    two_turns = {
        "example_id": "e1",
        "answer": "Norway",
        "reward": 0.6,
        "reward_parts": {"answer": 1.0, "citation": 0.5},
        "diagnostics": {"turns": 2.0, "tool_errors": 0.0, "answer_em": 0.0},
        "advantage": 0.5,
        "turns": [turn([1, 2], [3, 4], calls=(call,)), turn([1, 2, 3, 4, 5], [6, 4])],
        "rows": [row([1, 2, 3, 4, 5, 6, 4], [0, 0, 1, 1, 0, 1, 1])],
    }
    return episode_record(**two_turns | changes)


RIGHT = GradedAnswer(answer="norway", correct=True)
WRONG = GradedAnswer(answer="5", correct=False)
NONE = GradedAnswer(answer=None, correct=False)
WEIGHTS = {"answer": 0.5, "citation": 0.2}


def lines(made: EpisodeRecord, grade: GradedAnswer = RIGHT) -> list[str]:
    found = episode_lines(made, grade, WEIGHTS, words)
    return ["".join(text for text, _ in line).rstrip() for line in found]


def test_an_episode_from_its_prompt_to_its_training() -> None:
    assert lines(record()) == [
        "prompt    [w1 w2]",
        "turn 1    w3 w4",
        '          calls search(query="Oslo", top_n=2)',
        "reply     [w5]",
        "turn 2    w6 w4",
        "          ended by itself after 2 tokens",
        "answer    answer norway: right",
        "reward    0.60 = 0.5 x answer 1.00 + 0.2 x citation 0.50",
        "facts     turns 2, answer_em 0",
        "training  advantage +0.50, 4 of 4 tokens with mask 1 are trained on",
    ]


def test_pitfall_05_brackets_follow_the_loss_mask() -> None:
    # a reply that is trained on has no brackets, a sampled token that is not trained on has: the bug is seen
    shown = lines(record(rows=[row([1, 2, 3, 4, 5, 6, 4], [0, 0, 1, 0, 1, 1, 1])]))
    assert shown[1] == "turn 1    w3[w4]"
    assert shown[3] == "reply     w5"
    styles = [style for line in episode_lines(record(), RIGHT, WEIGHTS, words) for text, style in line if "w" in text]
    assert styles[:2] == [MASKED, TRAINED]


def test_pitfall_07_a_second_row_is_shown_with_its_mask() -> None:
    turns = [turn([1, 2], [3, 4]), turn([1, 8], [6, 4])]
    rows = [row([1, 2, 3, 4], [0, 0, 1, 1]), row([1, 8, 6, 4], [0, 0, 1, 0])]
    shown = lines(record(turns=turns, rows=rows))
    assert shown[:4] == ["prompt    [w1 w2]", "turn 1    w3 w4", "prompt    [w1 w8]", "turn 2    w6[w4]"]
    assert shown[-1] == "training  advantage +0.50, 3 of 3 tokens with mask 1 are trained on in 2 rows"


@pytest.mark.parametrize(
    ("stop", "sentence"),
    [("length", "CUT OFF after 2 tokens"), ("max_turns", "NO TURNS LEFT after 2"), ("aborted", "GIVEN UP by the")],
)
def test_the_end_of_an_episode_is_named(stop: str, sentence: str) -> None:
    cut = record(stop_reason=stop, turns=[record().turns[0], turn([1, 2, 3, 4, 5], [6, 4], stop_reason=stop)])
    assert any(sentence in line for line in lines(cut, NONE))


def test_grades_and_scores_of_every_kind() -> None:
    assert "answer    answer 5: wrong, Norway is right" in lines(record(), WRONG)
    assert "answer    the model gave no answer; Norway is right" in lines(record(), NONE)
    failed = record(reward=None, score_status="error", diagnostics={"error": "service down"})
    assert "reward    none: the verifier failed (service down)" in lines(failed)
    assert "training  left out, its reward is not known" in lines(failed)
    other = lines(record(reward=1.2, score_status="invalid", reward_parts={"answer": 1.0, "mine": 2.0}))
    assert (
        "reward    1.20 = 0.5 x answer 1.00  (also mine 2.00)  (the sum of the parts is 0.5000)  "
        "(invalid: the answer could not be read)"
    ) in other
    masked = record(rows=[row([1, 2, 3, 4, 5, 6, 4], [0, 0, 1, 1, 0, 1, 1], advantage=0.0)], advantage=0.0)
    assert lines(masked)[-1] == "training  advantage +0.00, 0 of 4 tokens with mask 1 are trained on"


HOSTILE = "\x1b[2J\x07[bold red]x[/]\r\u202e\nreward    9.99"


def test_pitfall_28_text_of_the_model_is_escaped() -> None:
    shown = indented(HOSTILE)
    assert not any(char in shown for char in "\x1b\x07\r\u202e")
    assert shown.startswith(r"\x1b[2J\x07[bold red]x[/]\r\u202e")
    assert "\nreward" not in shown
    call = CallRecord(name=HOSTILE, arguments={HOSTILE: HOSTILE}, problem=None)
    assert "\x1b" not in call_text(call)
    assert "\nreward" not in call_text(call)
    assert "\x1b" not in call_text(dataclasses.replace(call, problem=HOSTILE))


def test_episodes_without_masks_are_shown_by_turn() -> None:
    call = CallRecord(name="search", arguments={}, problem="no JSON")
    turns = [TextTurn(completion="a", calls=(call,), reply="found"), TextTurn(completion="b")]
    assert ["".join(text for text, _ in line).rstrip() for line in turn_lines(turns, "question")] == [
        "prompt    question",
        "turn 1    a",
        "          calls no call: no JSON",
        "reply     found",
        "turn 2    b",
    ]
