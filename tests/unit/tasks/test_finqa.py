import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr.data.rows import DataError, Row
from rlvr.tasks.base import Task
from rlvr.tasks.finqa import Finqa
from rlvr.tasks.loading import NO_GOLD
from rlvr.types import Example
from tests.unit.tasks.data_tasks import FIXTURES, graded, ids, make, real_data, scored, solved, turn

FINQA = FIXTURES / "finqa"
PROGRAM: dict[str, str] = {"reward": "finqa_program", "prompt": "financial_program"}


def task(path: Path = FINQA, **changes: object) -> dict[str, object]:
    return {"name": "finqa", "path": str(path), **changes}


def row(**changes: Any) -> Row:
    """A row of the official schema; `qa` is changed, not replaced."""
    values: dict[str, Any] = {
        "id": "ACME/2012/page_1.pdf-1",
        "pre_text": ["acme makes tools ."],
        "post_text": ["."],
        "table": [["", "2012", "2011"], ["net sales", "$ 250", "200"]],
        "qa": {"question": "growth ?", "answer": "25%", "program": "subtract(250, 200)", "exe_ans": 0.25},
    }
    qa = changes.pop("qa", {})
    return Row("test.json, row 3", values | {"qa": values["qa"] | qa} | changes)


def parse(given: Row, answer: str = "number") -> Any:
    return Finqa(path="x", answer=answer).parse(given)


def test_a_row_gives_page_question_and_executed_gold() -> None:
    problem = parse(row())
    assert problem.question == (
        "acme makes tools .\n\n | 2012 | 2011\nnet sales | $ 250 | 200\n\n.\n\nQuestion: growth ?"
    )
    assert (problem.answer, problem.solution) == ("0.25", "subtract(250, 200)")
    assert problem.metadata == {
        "table": [["", "2012", "2011"], ["net sales", "$ 250", "200"]],
        "program": "subtract(250, 200)",
        "exe_ans": 0.25,
    }


@pytest.mark.parametrize(
    ("exe_ans", "answer"),
    [(94.0, "94"), (94, "94"), (-3.5, "-3.5"), (1e-05, "0.00001"), (3.6e13, "36000000000000"), ("No", "no")],
)
def test_golds_are_written_in_full(exe_ans: object, answer: str) -> None:
    assert parse(row(qa={"exe_ans": exe_ans})).answer == answer


def test_a_program_is_the_answer_and_the_facts_are_the_working() -> None:
    problem = parse(row(qa={"gold_inds": {"table_1": "net sales of 2012 is 250 ;"}}), "program")
    assert (problem.answer, problem.solution) == ("subtract(250, 200)", "net sales of 2012 is 250 ;")
    assert problem.metadata["exe_ans"] == 0.25
    for gold_inds in (None, 5, "net sales", []):
        assert parse(row(qa={"gold_inds": gold_inds}), "program").solution == ""


def test_flat_rows_of_the_hub_are_read_for_numbers_only() -> None:
    fields = {name: value for name, value in row().fields.items() if name != "qa"}
    flat = Row("p", fields | {"question": "growth ?", "answer": "25%", "final_result": "0.25", "gold_inds": ["x"]})
    problem = parse(flat)
    assert (problem.answer, problem.metadata["exe_ans"]) == ("0.25", 0.25)
    assert problem.question.endswith("Question: growth ?")
    with pytest.raises(DataError, match=r"'qa\.program' must be a program"):
        parse(flat, "program")


@pytest.mark.parametrize(
    ("qa", "tags"),
    [
        ({"program": "add(1, 2)"}, ("1_step",)),
        ({"program": "add(1, 2), divide(#0, 2)"}, ("2_steps",)),
        ({"program": ", ".join(["add(1, 2)"] * 4)}, ("3_or_more_steps",)),
        ({"program": "greater(1, 2)", "exe_ans": "no"}, ("1_step", "yes_or_no")),
    ],
)
def test_tags_count_steps_and_name_yes_or_no(qa: dict[str, str], tags: tuple[str, ...]) -> None:
    assert parse(row(qa=qa)).tags == tags


@pytest.mark.parametrize("gold", [None, ""])
def test_a_row_without_a_gold_is_none(gold: object) -> None:
    assert parse(row(qa={"exe_ans": gold})) == NO_GOLD


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"qa": {"exe_ans": "about 5"}}, "field 'qa.exe_ans' must be a number, yes or no, but is the text 'about 5'"),
        ({"qa": {"exe_ans": True}}, "field 'qa.exe_ans' must be a number, yes or no, but is the boolean True"),
        ({"qa": {"exe_ans": 10**400}}, "field 'qa.exe_ans' must be a number, yes or no, but is the number 1000"),
        ({"qa": {"question": " "}}, "field 'qa.question' must be a text that is not blank"),
        ({"qa": {"program": 5}}, "field 'qa.program' must be a valid string, but is the number 5"),
        ({"table": "a | b"}, "field 'table' must be a valid list"),
        ({"table": [["a", None]]}, "field 'table.0.1' must be a valid string, but is null"),
        ({"pre_text": "one text"}, "field 'pre_text' must be a valid list"),
        ({"id": 7}, "field 'id' must be a valid string, but is the number 7"),
    ],
)
def test_a_row_of_another_schema_names_row_and_field(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as error:
        parse(row(**changes))
    assert str(error.value).startswith(f"test.json, row 3: {said}")


def test_pitfall_38_overlap_is_the_same_question_and_table(tmp_path: Path) -> None:
    shutil.copytree(FINQA, tmp_path, dirs_exist_ok=True)
    test = json.loads((tmp_path / "test.json").read_text())
    train = json.loads((tmp_path / "train.json").read_text())
    again = test[0] | {"id": "again", "pre_text": ["a longer page ."]}  # a reduced and a full page of one question
    other = test[1] | {"id": "other", "table": [["", "shares"], ["2016", "999"]]}
    (tmp_path / "train.json").write_text(json.dumps([*train, again, other]))
    made = make(task(tmp_path))
    assert "1 of 7 training examples are also held out: left out" in made.notes
    assert "again" not in ids(made, range(6))
    assert "other" in ids(made, range(6))


@pytest.fixture(params=["number", "program"])
def finqa(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes the task with answers of one kind."""
    more: dict[str, Any] = PROGRAM if request.param == "program" else {}
    return lambda path=FINQA, **changes: make(task(path, answer=request.param, **changes), **more)


def test_every_gold_passes_verifier_and_metric(finqa: Callable[..., Any]) -> None:
    made = finqa(train_split="train+dev")
    assert made.notes[0].startswith("6 training and 4 held-out examples")
    examples = [*made.eval_examples(10), *(made.train_example(i) for i in range(6))]
    assert len({example.id for example in examples}) == 10
    check_golds(made, examples)
    for example in examples:
        for wrong in ("subtract(1, 2)", "123.456"):
            assert not graded(made, example, solved(wrong)).correct
        wrong = "subtract(1, 2)" if "(" in example.answer else "123.456"
        assert scored(made, example, solved(wrong)).value == 1.5


def test_worked_examples_earn_full_marks(finqa: Callable[..., Any]) -> None:
    made = finqa()
    by_question = {e.messages[-1].content: e for e in (made.train_example(i) for i in range(5))}
    for index in range(5):
        prompt, completion = made.demonstration(index, 1.0)
        example = next(e for question, e in by_question.items() if prompt.endswith(question))
        assert scored(made, example, completion).value == 4.5


def check_golds(made: Task, examples: list[Example]) -> None:
    """Every gold earns full marks, every prompt has its table and no placeholder."""

    async def run() -> None:
        for example in examples:
            turns = [turn(solved(example.answer))]
            score = await made.env(example).score(turns)
            assert score.value == 4.5, (example.id, score)
            assert (await made.grade(example, turns)).correct, example.id
            system, user = example.messages
            assert "{" not in system.content
            assert "<SOLUTION>" in system.content
            for cells in example.metadata["table"]:
                assert " | ".join(" ".join(cell.split()) for cell in cells) in user.content

    asyncio.run(run())


@pytest.mark.slow
def test_the_real_data_loads_and_every_gold_passes(finqa: Callable[..., Any]) -> None:
    path = real_data("finqa")
    made = finqa(path, train_split="train+dev")
    assert made.notes == (f"983 training and 801 held-out examples from {path}",)
    examples = [*made.eval_examples(1_000), *(made.train_example(i) for i in range(983))]
    assert len({example.id for example in examples}) == 1_784
    check_golds(made, examples)
