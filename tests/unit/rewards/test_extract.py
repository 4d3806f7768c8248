from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.errors import ConfigError
from rlvr.rewards.extract import AnswerFormat
from rlvr.types import Attempt, Example, Message, StopReason, TurnText
from tests.unit.rewards.attempts import FORMATS, MARKERS, SOLUTION, attempt, solved


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *(("<r>a</r><s>18</s>", "18"), ("\n <r>a</r>\n<s> 18 </s> \n", "18"), ("<r>a</r> so <s>18</s>", "18")),
        *(("no reasoning marks <s>18</s>", "18"), ("<s>1</s", None), ("<s>two\nlines</s>", "two\nlines")),
    ],
)
def test_the_answer_in_the_solution_block(text: str, answer: str | None) -> None:
    assert SOLUTION.extract(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        *("", "18", "<r>a</r>18", "<r>a</r><s>18", "<r>a</r>18</s>", "<r>a</r></s>18<s>"),  # not opened or not closed
        *("<r>a</r><s></s>", "<r>a</r><s> \n </s>", "<r>a</r><s>17</s> 18", "18 <r>a</r><s>18</s>"),
        *("<r>a</r><s>17</s><s>18</s>", "<r>a</r><s>18</s><s>18</s>", "<r>a</r><s><s>18</s></s>"),
        *("<r>a</r><s>17<s>18</s>", "<r>a</r><s>18</s></s>", "<r>a</r><r>b</r><s>18</s>", "<r>a<s>18</s>"),
        *("a</r><s>18</s>", "</r>a<r><s>18</s>", "<r>a<s>18</s></r>", "<s>18</s><r>a</r>", "<s><r>a</r>18</s>"),
    ],
)
def test_pitfall_28_an_answer_is_in_one_closed_block_at_the_end(text: str) -> None:
    assert SOLUTION.extract(text) is None
    assert not SOLUTION.is_exact(text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *(("steps\n#### 18", "18"), ("#### 18\n\n", "18"), ("  ####18", "18")),
        ("steps\n#### Paris, France", "Paris, France"),
        *((text, None) for text in ("", "18", "####", "#### 17\n#### 18", "#### 18\nthat is all", "so #### 18")),
        *((text, None) for text in ("#### 17 #### 18", "##### 18", "######## 18")),
    ],
)
def test_pitfall_28_the_answer_after_the_hashes(text: str, answer: str | None) -> None:
    assert FORMATS["hash"].extract(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *(("\\boxed{18}", "18"), ("so $\\boxed{18}$. I am sure.", "18"), ("\\boxed {18}", "18")),
        *(("\\boxed{\\frac{3}{4}}", "\\frac{3}{4}"), ("\\boxed{ \\{1, 2\\} }", "\\{1, 2\\}")),
        *((text, None) for text in ("", "18", "\\boxed{\\}", "\\boxed{18", "\\boxed{{18}", "\\boxed{}", "\\boxed 18")),
        *((f"\\boxed{{18}} {more}", None) for more in ("indeed \\boxed{18}", "or \\boxed {19}", "or \\boxed 19")),
        *((f"\\boxed{{18}} or {more}", None) for more in ("\\boxed19", "\\fbox{19}", "\\boxed{17}")),
        *((text, None) for text in ("\\boxed{\\boxed{18}}", "\\fbox{18}")),
    ],
)
def test_pitfall_28_the_answer_in_the_box(text: str, answer: str | None) -> None:
    assert FORMATS["boxed"].extract(text) == answer


@pytest.mark.parametrize(
    ("name", "text"),
    [("solution", solved("18")), ("hash", "#### 18"), ("boxed", "\\boxed{18}"), ("whole", "18"), (None, "18")],
)
def test_pitfall_28_a_completion_that_was_cut_off_has_no_answer(name: str | None, text: str) -> None:
    ended = replace(attempt(text), format=FORMATS[name] if name else None)
    assert ended.answer == "18"
    for reason in set(StopReason) - {StopReason.STOP}:
        assert replace(ended, stop_reason=reason).answer is None


@pytest.mark.parametrize(
    ("prompt", "completion", "answer"),
    [
        *(("<boe> 3 4 + =", "7 <eoe>", "7"), ("<boe> 3 4 + =", "3 4 + = 7 <eoe>", "7")),
        *(("reverse: a b =", "b <eoe> = c <eoe>", "b"), ("a = b", "c = d <eoe>", "d"), ("", "7 <eoe>", None)),
        *(("3 + 4 =", "3 + 4 = 7", "7"), ("3 + 4 =", "7 7", None)),  # a model that has no <eoe>
        *(("<boe> 3 4 + =", said, None) for said in ("7 7 <eoe>", "<eoe>", "= <eoe>")),
    ],
)
def test_pitfall_28_the_one_word_after_the_last_equals(prompt: str, completion: str, answer: str | None) -> None:
    example = Example(id="e", messages=(Message(role="user", content=prompt),), answer="7")
    made = replace(attempt(completion), example=example, format=AnswerFormat(answer_in="equals"))
    assert made.answer == answer
    assert replace(made, stop_reason=StopReason.LENGTH).answer == (answer if "<eoe>" in completion else None)
    assert made.format.extract(completion) is None


@pytest.mark.parametrize(
    ("name", "marker"),
    [
        *(("solution_end", ""), ("reasoning_start", " "), ("solution_end", "s>")),
        *(("solution_start", "<r>"), ("solution_start", "<r>!")),
    ],
)
def test_markers_that_cannot_be_told_apart_are_refused(name: str, marker: str) -> None:
    with pytest.raises(ConfigError, match=r"marker '.*' is blank or part of another one"):
        replace(MARKERS, **{name: marker})


PIECES = ["<r>", "</r>", "<s>", "</s>", "18", " ", "\n", "a", "####", "\\boxed{", "{", "}", "\\", "$"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join))
def test_no_text_crashes_and_an_answer_is_part_of_the_text(text: str) -> None:
    for form in FORMATS.values():
        answer = form.extract(text)
        assert answer is None or (answer and answer == answer.strip() and answer in text)
        assert answer is not None or not form.is_exact(text)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_megabyte_of_anything_takes_linear_time(name: str) -> None:
    size = 10**6
    for text in ("<s>" * (size // 3), *("\\boxed{" + c * size for c in "{\\"), *(c * size for c in "# <")):
        assert name == "whole" or FORMATS[name].extract(text) is None
    long = {"solution": solved("1" * size), "boxed": "So \\boxed{18}." + " Sure." * size, "whole": "1" * size}
    assert FORMATS[name].extract(long.get(name, "#### 18")) is not None


@pytest.mark.parametrize(
    ("prompt", "text", "answer"),
    [
        ("2 + 2? Put it after ####.", "four\n#### 4", "4"),
        ("2 + 2? Put it in \\boxed{}.", "so \\boxed{4}", "4"),
        ("2 + 2? <answer> holds the answer.", "<think>well</think><answer>4</answer>", "4"),
        ("2 + 2?", " 4 ", "4"),
        ("2 + 2? Put it in \\boxed{}.", "so\n#### 4", None),
        ("So \\boxed{3}.\nNow 2 + 2, after ####.", "#### 4", "4"),  # an earlier turn, then what is asked
    ],
)
def test_an_answer_is_read_where_its_prompt_asks_for_it(prompt: str, text: str, answer: str | None) -> None:
    example = Example(id="e", messages=(Message(role="user", content=prompt),), answer="4")
    turn = TurnText(prompt=prompt, completion=text, text=text, stop_reason=StopReason.STOP, num_tokens=1)
    assert AnswerFormat(answer_in="stated").answer_of(Attempt.of(example, [turn])) == answer


def test_an_answer_after_hashes_may_have_lines_if_the_gold_has() -> None:
    form = AnswerFormat(answer_in="hash")
    turn = TurnText(prompt="", completion="", text="so\n#### 1 2\n3 4\n", stop_reason=StopReason.STOP, num_tokens=1)
    for gold, answer in (("1 2\n3 4", "1 2\n3 4"), ("12", None), ("12\n", None)):
        example = Example(id="e", messages=(Message(role="user", content="?"),), answer=gold)
        assert form.answer_of(Attempt.of(example, [turn])) == answer
