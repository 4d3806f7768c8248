"""Answers stand behind the model's own reasoning, wherever the prompt wants them."""

import pytest

from rlvr.reasoning import GEMMA, HARMONY, MISTRAL, THINK, Marks
from rlvr.rewards.extract import AnswerFormat, Markers
from rlvr.types import Attempt, Example, Message, StopReason, TurnText

WORKING = Markers(
    reasoning_start="<start_working_out>",
    reasoning_end="<end_working_out>",
    solution_start="<SOLUTION>",
    solution_end="</SOLUTION>",
)
TAGS = Markers(reasoning_start="<think>", reasoning_end="</think>", solution_start="<answer>", solution_end="</answer>")
STATED = AnswerFormat(answer_in="stated")
BOX, HASH, TAG, BARE = r"in \boxed{}.", "End with #### and the number.", "in <answer> </answer> tags.", "How many?"


def attempt(prompt: str, text: str, marks: Marks = THINK, *, opened: bool = False) -> Attempt:
    example = Example(id="1", messages=(Message(role="user", content=prompt),), answer="5")
    turn = TurnText(
        prompt=prompt,
        completion=text,
        text=text,
        stop_reason=StopReason.STOP,
        num_tokens=1,
        marks=marks,
        opened=opened,
    )
    return Attempt.of(example, [turn])


@pytest.mark.parametrize(
    ("prompt", "text", "answer"),
    [
        (TAG, "2 plus 3.\n</think>\n<answer>5</answer>", "5"),
        (TAG, "<think>the form is <answer></answer></think><answer>5</answer>", "5"),
        (TAG, "<think>maybe 4</think>5", None),
        (BOX, r"<think>so \boxed{5}?</think>The answer is \boxed{5}.", "5"),
        (BOX, r"<think>maybe \boxed{4}</think>\boxed{5}", "5"),
        (BOX, r"<think>so \boxed{5}", None),
        (BOX, r"so \boxed{5}</think>", None),
        (HASH, "<think>#### 4</think>\n#### 5", "5"),
        (HASH, "<think>2+3\n#### 5</think>", None),
        (BARE, "<think>\n2+3\n</think>\n\n5", "5"),
        (BARE, "2+3\n</think>\n\n5", "5"),
        (BARE, "<think>\n\n</think>\n\n5", "5"),
        (BARE, "<think>5", None),
    ],
)
def test_the_answer_stands_behind_the_reasoning(prompt: str, text: str, answer: str | None) -> None:
    assert STATED.answer_of(attempt(prompt, text)) == answer


@pytest.mark.parametrize(
    ("marks", "opened", "text", "answer"),
    [
        (THINK, True, "2+3", None),  # the prompt opened reasoning, which does not end
        (THINK, True, "2+3</think>5", "5"),
        (MISTRAL, False, r"[THINK]\boxed{4}[/THINK]5", "5"),
        (MISTRAL, True, "2+3[/THINK]5", "5"),
        (HARMONY, False, "<|channel|>analysis<|message|>2+3<|end|><|start|>assistant<|channel|>final<|message|>5", "5"),
        (GEMMA, False, "<|channel>thought\n2+3<channel|>5", "5"),
    ],
)
def test_the_marks_are_those_of_the_chat_template(marks: Marks, opened: bool, text: str, answer: str | None) -> None:
    assert STATED.answer_of(attempt(BARE, text, marks, opened=opened)) == answer


@pytest.mark.parametrize(
    ("markers", "opened", "text", "exact"),
    [
        (TAGS, True, "2+3</think><answer>5</answer>", True),  # the template wrote the first marker
        (TAGS, False, "<think>2+3</think><answer>5</answer>", True),
        (TAGS, False, "2+3</think><answer>5</answer>", False),
        (WORKING, False, "<think>hm</think><start_working_out>x<end_working_out><SOLUTION>5</SOLUTION>", True),
        (WORKING, True, "hm</think>\n<start_working_out>x<end_working_out><SOLUTION>5</SOLUTION>", True),
    ],
)
def test_the_form_is_that_of_what_the_prompt_asks_for(markers: Markers, opened: bool, text: str, exact: bool) -> None:
    form, one = AnswerFormat(answer_in="solution", markers=markers), attempt(BARE, text, opened=opened)
    assert form.is_exact(form.form_of(one)) is exact
    assert form.answer_of(one) == "5"


MINERVA = 'Finish with "Final Answer: The final answer is X. I hope it is correct."'
DAPO = (
    "Solve the problem. The last line of your response should be of the form Answer: $Answer (without quotes) where "
    '$Answer is the answer.\n\n7 plus 8?\n\nRemember to put your answer on its own line after "Answer:".'
)


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        (DAPO, "line"),
        ('End your answer with a line "Final answer: X".', "line"),
        ("Finish with the format `The final answer is: [number]`.", "line"),
        ("Question: 7 plus 8?\nAnswer:", "whole"),  # begins the completion
        ("Q: 1 plus 1?\nAnswer: 2\n\nQ: 7 plus 8?\nAnswer:", "whole"),
        ("Think. End your answer with: #### <answer>", "hash"),
        ("Put it in <answer></answer>.", "solution"),
        ("Put it inside the <answer> tag.", "solution"),
        ("Write the line Answer: <answer> at the end.", "line"),
        (r"Answer: in \boxed{}.", "boxed"),
    ],
)
def test_the_place_is_the_one_that_the_prompt_names(prompt: str, place: str) -> None:
    assert STATED.for_prompt(prompt).answer_in == place


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("14 plus 1 is 15.\n\nAnswer: 15", "15"),
        ("14 plus 1 is 15.\n\n**Answer:** $15$", "$15$"),
        ("so\nFinal answer: 15\n", "15"),
        ("Answer: 14\nno\nAnswer: 15", None),
        ("Answer: 15\nas I said", None),
        ("15", None),
        ("Answer:", None),
        ("14 + 1\nAnswer:\n15", "15"),
        ("14 + 1\n**Answer:**\n**15**", "15"),
        ("Answer:\n15\nI think", None),
        *((f"14 + 1\n{line}", "15") for line in ("- Answer: 15", "### Answer: 15", "> Answer: 15", "Answer：15")),
        ("not Answer: 15", None),
    ],
)
def test_a_stated_line_is_the_last_and_the_only_one(text: str, answer: str | None) -> None:
    assert STATED.answer_of(attempt(DAPO, text)) == answer


@pytest.mark.parametrize(
    ("prompt", "completion", "answer"),
    [
        ('Finish with "The final answer is X".', "2+3.\nThe final answer is 5.", "5"),
        ("End with: Therefore, say the final answer is [number]", "So the answer is $5$.", "$5$"),
        ('Finish with "The final answer is X".', "The final answer is not known", "not known"),
        ('Finish with "The final answer is X".', "The final answer is 5\nor so", None),
        ('Finish with "So the answer is X."', "2+3=5\nSo the answer is 5.", "5"),
        (MINERVA, "2+3=5\nFinal Answer: The final answer is $5$. I hope it is correct.", "$5$"),
        (MINERVA, "2+3=5\nFinal Answer: The final answer is 5.5.", "5.5"),
        ("Put your answer in <ans> </ans> tags.", "2+3 is <ans>5</ans>", "5"),
        ('Finish with "Final Answer:" and the number.', "2+3\nFinal Answer: 5", "5"),
        ("Reasoning: ...\nFinal Answer: [number]", "Reasoning: 2+3\nFinal Answer: 5", "5"),
        ("Reasoning: ...\nANSWER: $LETTER", "hm\nANSWER: B", "B"),
        ("Write it between <FINAL_ANSWER> and </FINAL_ANSWER>.", "2+3 <FINAL_ANSWER>5</FINAL_ANSWER>", "5"),
        ("Use <ANSWER></ANSWER> tags.", "2+3\n<ANSWER>\n5\n</ANSWER>", "5"),
        ("Use <ANSWER></ANSWER> tags.", "2+3\n<answer>5</answer>", None),
        (
            "<reasoning>\n...\n</reasoning>\n<result>\n...\n</result>",
            "<reasoning>2</reasoning>\n<result>5</result>",
            "5",
        ),
        ("Put your answer in <x></x>.", "2+3 is <x>5</x>", "5"),
        ("The answer goes in <answer>...</answer>, the thoughts in <think>...</think>.", "<answer>5</answer>", "5"),
        ("Give your final answer as [[X]].", "2+3 gives [[5]]", "5"),
        ('Output your verdict by this format: "[[A]]" or "[[B]]".', "A is worse. [[B]]", "B"),
        ("Give your final answer as [[X]].", "[[4]] or [[5]]", None),
        ("Wrap it as [[answer]].", "It is [[5]].", "5"),
        ("Wrap it as [[answer]].", "It is [[5]]%", None),
        ("Put your answer in double brackets, <<answer>>.", "It is <<5>>", "5"),
        ("Format:\n**Reasoning**: ...\n**Final Answer**: ...", "**Reasoning**: add\n**Final Answer**: 5", "5"),
        ('Reply in JSON: {"answer": <number>}', '```json\n{"answer": 5}\n```', "5"),
        ('Reply with {"reasoning": "...", "final answer": "..."}.', '{"reasoning": "a", "final answer": "5"}', "5"),
        ('Reply in JSON: {"answer": <number>}', '{"answer": 5} or {"answer": 6}', None),
        ('Reply in JSON: {"answer": <number>}', '{"answer": [5]}', None),
        ('What is the result of {"result": 5}["result"]?', "5", "5"),
        (r"Put the answer in \fbox{}.", r"so \fbox{5}", "5"),
        (r"Put the answer in \fbox{}.", r"so \boxed{5}", None),
        (r"Put it in \boxed{<answer>}.", r"\boxed{5}", "5"),
        ("What does <b></b> do in HTML?", "bold", "bold"),
        ("Is m[[1]] the first item in R?", "yes", "yes"),
        ("Is <think></think> a tag of the answer?", "no", "no"),
        ("Say whether the answer is a number.", "yes", "yes"),
        ("Q: a or b?\nAnswer: A\n\nQ: c or d?\nAnswer:", "C", "C"),
    ],
)
def test_the_place_is_the_form_that_the_prompt_shows(prompt: str, completion: str, answer: str | None) -> None:
    assert STATED.answer_of(attempt(prompt, completion)) == answer


@pytest.mark.parametrize(
    "prompt",
    [DAPO, BOX, HASH, TAG, BARE, 'as "The final answer is X".', "Answer as [[X]].", r"\fbox{}", '{"answer": "..."}'],
)
def test_a_filled_form_is_read_where_it_is(prompt: str) -> None:
    form = STATED.for_prompt(prompt)
    assert form.extract(f"2+3\n{form.filled('5')}" if form.answer_in != "whole" else form.filled("5")) == "5"
