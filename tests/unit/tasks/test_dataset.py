import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlvr.data.problems import Problem, fingerprint
from rlvr.errors import ConfigError, UserError
from rlvr.tasks.loading import ParsedRows, make_data
from rlvr.types import Example, Message
from tests.unit.tasks.data_tasks import FIXTURES, graded, make, scored, solved, sums, write_jsonl

TASK = {"name": "gsm8k", "path": str(FIXTURES / "gsm8k")}
SHOT = re.compile(r"<start_working_out>.+<end_working_out><SOLUTION>-?\d+</SOLUTION>", re.DOTALL)


def key(example: Example) -> bytes:
    return fingerprint(example.messages[-1].content)


def shots(example: Example) -> dict[bytes, str]:
    """The shown completions, by their questions."""
    turns = [message.content for message in example.messages if message.role != "system"][:-1]
    return {fingerprint(question): answer for question, answer in zip(turns[::2], turns[1::2], strict=True)}


def words(messages: Sequence[Message], tools: Sequence[object] = ()) -> int:
    return sum(len(message.content.split()) for message in messages)


def test_shown_examples_are_solved_and_never_held_out() -> None:
    made = make(TASK, prompt={"few_shot": 3})
    held_out = made.eval_examples(6)
    hidden = set(map(key, held_out))
    for example in [*map(made.train_example, range(12)), *held_out]:
        shown = shots(example)
        assert len(shown) == 3
        assert not shown.keys() & (hidden | {key(example)})
        assert all(map(SHOT.fullmatch, shown.values()))


def test_pitfall_38_shots_of_held_out_questions_ignore_the_seed() -> None:
    made, other = (make(TASK, seed=seed, prompt={"few_shot": 3}) for seed in (0, 1))
    assert made.eval_examples(6) == other.eval_examples(6)
    assert len({tuple(shots(example)) for example in made.eval_examples(6)}) == 1


def test_pitfall_38_what_another_task_holds_out_is_not_shown(tmp_path: Path) -> None:
    other = make(TASK)
    held_out = other.eval_examples(6)
    copies = [{"question": e.messages[-1].content, "answer": e.answer} for e in held_out]
    path = write_jsonl(tmp_path / "copy.jsonl", [*sums(20), *copies])
    made = make({"name": "jsonl", "path": str(path), "eval_share": 0.01}, prompt={"few_shot": 8})
    made.hold_out_for(other)
    examples = [*map(made.train_example, range(20)), *made.eval_examples(5)]
    assert not set(map(key, held_out)) & {question for e in examples for question in shots(e)}


def test_pitfall_36_demonstrations_have_their_own_order() -> None:
    made = make(TASK)
    trained = ["\n".join(m.content for m in made.train_example(index).messages) for index in range(12)]
    shown = [made.demonstration(index, 1.0)[0] for index in range(12)]
    assert sorted(shown) == sorted(trained)
    assert shown != trained


def test_more_shots_begin_with_the_fewer() -> None:
    few, more = (make(TASK, prompt={"few_shot": number}) for number in (2, 5))
    for one, other in zip(few.eval_examples(6), more.eval_examples(6), strict=True):
        assert one.id == other.id
        assert list(shots(one).items()) == list(shots(other).items())[:2]


def finqa_pages(tmp_path: Path, *sizes: int) -> Path:
    """A copy of FinQA's rows: so many training questions about each of some pages, and one held-out question a page."""
    (row, *_) = json.loads((FIXTURES / "finqa" / "train.json").read_text())
    for split, numbers in (("train", sizes), ("test", [1] * len(sizes))):
        rows = [
            {
                **row,
                "id": f"{split}/{page}-{number}",
                "pre_text": [f"page {page}"],
                "qa": {**row["qa"], "question": f"{split} question {page} {number}"},
            }
            for page, num in enumerate(numbers)
            for number in range(num)
        ]
        (tmp_path / f"{split}.json").write_text(json.dumps(rows))
    return tmp_path


def test_a_shot_is_never_about_the_page_of_the_question(tmp_path: Path) -> None:
    made = make({"name": "finqa", "path": str(finqa_pages(tmp_path, 4, 1, 1))}, prompt={"few_shot": 2})
    for example in [*map(made.train_example, range(60)), *made.eval_examples(3)]:
        *before, asked = (m.content for m in example.messages if m.role == "user")
        pages = [re.findall(r"page \d", text) for text in before]
        assert len(pages) == 2
        assert re.findall(r"page \d", asked) not in pages


def test_pages_with_too_many_neighbors_are_an_error_with_the_numbers(tmp_path: Path) -> None:
    task = {"name": "finqa", "path": str(finqa_pages(tmp_path, 4, 1, 1))}
    with pytest.raises(ConfigError, match=r"few_shot=3: finqa has 6 different .* and 7 are needed"):
        make(task, prompt={"few_shot": 3})


def test_too_many_shots_are_an_error_with_the_numbers() -> None:
    make(TASK, prompt={"few_shot": 11})
    with pytest.raises(ConfigError, match=r"prompt\.few_shot=12: gsm8k has 12 different .* and 13 are needed"):
        make(TASK, prompt={"few_shot": 12})


def test_max_train_examples_are_those_that_are_left_to_train_on() -> None:
    problems = [Problem(id=str(n), key=fingerprint(str(n)), question=str(n), answer="1") for n in range(10)]
    parts = ParsedRows(problems=tuple(problems)), ParsedRows(problems=tuple(problems[:3]))
    data = make_data(parts, where="sums", max_train=5, seed=0)
    assert data.source.sizes == (5, 3)
    assert data.notes[0] == "5 training and 3 held-out examples from sums"
    assert "3 of 10 training examples" in data.notes[1]


def test_long_prompts_are_left_out_and_noted() -> None:
    made = make(TASK)
    lengths = [words(made.train_example(index).messages) for index in range(12)]
    limit = sorted(lengths)[8]
    num_long = sum(length > limit for length in lengths)
    made.limit_prompts(words, limit)
    assert f"{num_long} of 12 training examples have prompts of more than {limit} tokens: left out" in made.notes
    examples = [*map(made.train_example, range(100)), *made.eval_examples(100)]
    assert max(words(example.messages) for example in examples) <= limit
    with pytest.raises(UserError, match=r"the prompts of all 12 training examples have more than 5 tokens"):
        make(TASK).limit_prompts(words, 5)


def test_a_users_own_question_has_no_answer() -> None:
    made = make(TASK)
    example = made.example("  Six times\x00 seven? ")
    assert example.messages[0] == made.eval_examples(1)[0].messages[0]
    assert example.messages[1].content == "Six times seven?"
    grade = graded(made, example, solved("42"))
    assert (grade.answer, grade.correct) == ("42", False)
    assert graded(made, example, "42").answer is None
    with pytest.raises(UserError, match="blank"):
        made.example(" \n")


@pytest.mark.parametrize("text", ["", "0", "The answer is 0.", solved("many"), solved("0") + solved("0")])
def test_an_unreadable_completion_is_invalid_and_not_zero(text: str) -> None:
    made = make(TASK)
    example = made.train_example(0)
    assert graded(made, example, text).answer is None
    assert scored(made, example, text).status == "invalid"


@pytest.mark.parametrize("shown", [{}, {"shown": "so"}, None], ids=["bare", "the user's own", "with working"])
def test_answers_without_working_are_told_from_others(shown: dict[str, str] | None, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [row | (shown or {}) for row in sums(20)])
    settings = {"name": "jsonl", "path": str(path)} | ({"demonstration_field": "shown"} if shown else {})
    solutions = make(TASK if shown is None else settings).solutions(3)
    assert [solution.is_bare for solution in solutions] == [shown == {}] * 3
