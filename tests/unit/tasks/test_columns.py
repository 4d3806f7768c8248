from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from rlvr.data import readers
from rlvr.data.problems import Problem
from rlvr.data.rows import DataError, Row, read_file, with_kind
from rlvr.errors import ConfigError
from rlvr.tasks.columns import Jsonl
from rlvr.tasks.layouts import layout_of
from tests.unit.tasks.data_tasks import graded, held_out_ids, ids, make, scored, solved, sums, write_jsonl


def jsonl(path: Path, **changes: Any) -> dict[str, Any]:
    return {"name": "jsonl", "path": str(path), **changes}


def of_rows(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> Any:
    more = {key: changes.pop(key) for key in ("seed", "reward", "prompt") if key in changes}
    return make(jsonl(write_jsonl(folder / "x.jsonl", rows), **changes), **more)


def answering(answer: Any, num: int = 5) -> list[dict[str, Any]]:
    return [row | {"answer": answer} for row in sums(num)]


def test_a_file_of_questions_and_answers_is_a_task(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+1?", "gold": n + 1} for n in range(50)]
    made = of_rows(tmp_path, rows, question_field="prompt", answer_field="gold", eval_share=0.3)
    held_out, asked = held_out_ids(made), {*ids(made, range(200))}
    assert 5 <= len(held_out) <= 25
    assert len(asked) + len(held_out) == 50
    assert not asked & held_out
    example = made.eval_examples(1)[0]
    assert graded(made, example, solved(f"${example.answer}.0")).correct
    assert scored(made, example, solved(example.answer)).value == 1.0


def test_pitfall_38_seed_and_order_do_not_move_the_split(tmp_path: Path) -> None:
    made, other = of_rows(tmp_path, sums(100), seed=0), of_rows(tmp_path, sums(100)[::-1], seed=7)
    assert [e.id for e in made.eval_examples(100)] == [e.id for e in other.eval_examples(100)]
    more = held_out_ids(of_rows(tmp_path, sums(200)))
    assert held_out_ids(made) == more & held_out_ids(made)
    assert not {*ids(made, range(100))} & more


def test_a_tiny_file_holds_out_at_least_one_question(tmp_path: Path) -> None:
    for num in range(2, 8):
        made = of_rows(tmp_path, sums(num), eval_share=0.01)
        assert len(made.eval_examples(10)) == 1
        assert len({*ids(made, range(50))}) == num - 1
    with pytest.raises(ConfigError, match="has 1 different questions"):
        of_rows(tmp_path, sums(1))


def test_a_missing_field_of_a_field_is_told_its_neighbors(tmp_path: Path) -> None:
    rows = [row | {"meta": {"sol": {"final": 1, "steps": 2}}} for row in sums(4)]
    for field, there in (
        ("meta.sol.fnal", "in 'meta.sol' there are 'final', 'steps' "),
        ("mta.sol", "there are 'ques"),
    ):
        with pytest.raises(DataError, match=rf"field '{field}' is missing; {there}.*task\.answer_field"):
            of_rows(tmp_path, rows, answer_field=field)


def test_given_ids_are_used_and_must_differ(tmp_path: Path) -> None:
    rows = [row | {"key": f"k{n}"} for n, row in enumerate(sums(20))]
    made = of_rows(tmp_path, rows, id_field="key")
    assert {*ids(made, range(40))} | held_out_ids(made) == {f"k{n}" for n in range(20)}
    for key, said in (
        ("k3", r"x\.jsonl, line 8: the id 'k3' was given before, at .*x\.jsonl, line 4"),
        (None, r"line 8: field 'key' must be a text or a whole number, but is null"),
    ):
        rows[7]["key"] = key
        with pytest.raises(DataError, match=said):
            of_rows(tmp_path, rows, id_field="key")


WORKED = "48 / 2 = <<48/2=24>>24\nand so on\n#### 1,072"


@pytest.mark.parametrize(
    ("answer", "metric", "text"),
    [
        (18, "numeric", "18"),
        (18.50, "numeric", "18.5"),
        (" 1,080 ", "numeric", "1,080"),
        ("yes", "numeric", "yes"),
        ("Paris", "text", "Paris"),
        (["Paris"], "exact", "Paris"),
        ("\\frac{1}{2}", "math", "\\frac{1}{2}"),
        (WORKED, "numeric", "1,072"),
        (WORKED, "math", "1,072"),
        (WORKED, "text", WORKED),
    ],
)
def test_answers_are_texts_numbers_or_behind_four_hashes(tmp_path: Path, answer: Any, metric: str, text: str) -> None:
    made = of_rows(tmp_path, answering(answer), metric=metric)
    assert made.train_example(0).answer == text
    worked = made.demonstration(0, 1.0)[1]
    assert ("48 / 2 = 24\nand so on" in worked) == (answer == WORKED and metric != "text")


def test_any_of_several_accepted_texts_is_right(tmp_path: Path) -> None:
    rows = answering(["New York", "NYC", ""])
    made = of_rows(tmp_path, rows, metric="text", reward="text", prompt="short_answer")
    example = made.eval_examples(1)[0]
    assert (example.answer, example.metadata["aliases"]) == ("New York", ("NYC",))
    assert graded(made, example, "nyc").correct
    assert scored(made, example, "the NYC.").value == 1.0
    assert not graded(made, example, "York").correct


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("eighteen", "must be a number, yes or no for task.metric=numeric"),
        (["18", True], "must be a text, a number or a list of them (there is the boolean True), but is a list of 2"),
        ({"text": ["18"]}, "must be a text, a number or a list of them, but is an object"),
        (["18", "19"], "has 2 accepted answers, which task.metric=numeric cannot grade"),
        ([["18"]], "must be a text, a number or a list of them (there is a list of 1), but is a list of 1"),
        (10**400, "must be a finite number, but is the number 1000"),
    ],
)
def test_an_answer_the_metric_cannot_grade_fails_at_load(tmp_path: Path, answer: Any, said: str) -> None:
    with pytest.raises(DataError) as error:
        of_rows(tmp_path, [*sums(9), {"question": "Q?", "answer": answer}])
    assert f"{tmp_path / 'x.jsonl'}, line 10: field 'answer' {said}" in str(error.value)


def test_a_boolean_needs_a_metric_that_knows_yes_and_no(tmp_path: Path) -> None:
    said = (
        """must be the word that a completion is to say, "no" or "false", or needs task.metric=text, but is the bool"""
    )
    with pytest.raises(DataError, match=said):
        of_rows(tmp_path, answering(False), metric="exact", reward="text")


@pytest.mark.parametrize("field", ["id", "question", "answer"])
def test_a_text_that_is_too_long_names_its_field(tmp_path: Path, field: str) -> None:
    row = {"id": "a", "question": "Q?", "answer": "1"} | {field: "x" * 2_000_000 + "#### 1"}
    with pytest.raises(DataError, match=f"field '{field}' must have 2,000,000 characters at most"):
        of_rows(tmp_path, [row], id_field="id")


def test_a_data_set_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "train.jsonl", sums(9))
    files: list[Path] = []
    monkeypatch.setattr(readers, "read_file", lambda path: (files.append(path), read_file(path))[1])
    make({"name": "hub", "path": str(tmp_path)})
    assert files == [tmp_path / "train.jsonl"]


def test_rows_without_an_answer_are_left_out_and_noted(tmp_path: Path) -> None:
    rows = [*sums(20), {"question": "a?", "answer": None}, {"question": "b?", "answer": " "}, {"question": "c?"}]
    rows += [{"question": "d?", "answer": ""}]
    places = "; ".join(f"{tmp_path / 'x.jsonl'}, line {line}" for line in (21, 22, 23))
    note = f"4 training rows have no gold answer: left out ({places}; and 1 more)"
    assert note in of_rows(tmp_path, rows).notes
    with pytest.raises(DataError, match=r"x\.jsonl, line 1: field 'gold' is missing; there are 'question', 'answer'"):
        of_rows(tmp_path, rows, answer_field="gold")


def test_a_question_asked_twice_is_left_out_and_one_with_another_answer_told_apart(tmp_path: Path) -> None:
    rows = [*sums(20), sums(20)[3], sums(20)[4] | {"answer": "1000"}, sums(20)[5] | {"answer": "1001"}]
    notes = of_rows(tmp_path, rows).notes
    said = f"rows repeat an earlier question: left out ({tmp_path / 'x.jsonl'}, line 21)"
    assert f"1 training {said}" in notes
    assert (
        "2 training rows repeat an earlier question with another answer: left out "
        f"({tmp_path / 'x.jsonl'}, line 22; {tmp_path / 'x.jsonl'}, line 23)"
    ) in notes


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_values_that_have_no_text_are_told_by_their_kind() -> None:
    assert with_kind(10**5000) == "a number that cannot be shown"
    assert with_kind(Odd()) == "a Odd that cannot be shown"
    assert with_kind(10**400).startswith("the number 1000")


@pytest.mark.parametrize("field", ["question_field", "answer_field", "id_field"])
def test_a_missing_field_names_the_setting_that_chooses_it(tmp_path: Path, field: str) -> None:
    with pytest.raises(DataError, match=rf"field 'gone' is missing; .* \(name the right one: task\.{field}=\.\.\.\)"):
        of_rows(tmp_path, sums(20), **{field: "gone"})


def test_a_folder_of_files_of_any_kind_is_read(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", sums(20))
    (tmp_path / "b.csv").write_text("question,answer\n" + "".join(f"Twice {n}?,#### {2 * n}\n" for n in range(10)))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(sums(10, start=50)), tmp_path / "c.parquet")
    (tmp_path / "README.md").write_text("read me")
    assert make(jsonl(tmp_path)).sizes == (38, 2)
    held_out = write_jsonl(tmp_path / "test.json.jsonl", [*sums(5, start=90), *sums(2)])  # two are trained on, too
    with pytest.raises(ConfigError, match=r"has test\.json\.jsonl, .* be trained on: name it as task\.eval_path"):
        make(jsonl(tmp_path))
    assert make(jsonl(tmp_path, eval_path=str(held_out))).sizes == (38, 7)
    for name in ("alone", "empty"):
        (tmp_path / name).mkdir()
    write_jsonl(tmp_path / "alone" / "test.jsonl", sums(20))  # the only file, whatever its name is
    assert sum(make(jsonl(tmp_path / "alone")).sizes) == 20
    with pytest.raises(ConfigError, match=r"has no data file; data files end in \.jsonl"):
        make(jsonl(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"instruction": "Add them.", "input": "2 and 3"}, "Add them.\n\n2 and 3"),
        ({"Instruction": "Add them.", "Input": "2 and 3"}, "Add them.\n\n2 and 3"),
        ({"instruction": "Name a day.", "input": " "}, "Name a day."),
        ({"instruction": "Name a day.", "input": None}, "Name a day."),
        ({"instruction": "Name a day."}, "Name a day."),
        ({"query": "Name a day.", "input": "Not asked."}, "Name a day."),
    ],
)
def test_an_instruction_has_its_input_below(fields: dict[str, Any], asked: str) -> None:
    row = Row("row 1", fields | {"target": "5"})
    layout = layout_of([row], None, None)
    assert layout is not None
    problem = Jsonl(path="x.jsonl", question_field=layout.question, answer_field=layout.answer).parse(row)
    assert isinstance(problem, Problem)
    assert problem.question == asked


@pytest.mark.parametrize(
    ("choices", "lines"),
    [
        (["red", "blue"], "A. red\nB. blue"),
        ({"A": "red", "C": "blue"}, "A. red\nC. blue"),
        ({"text": ["red", "blue"], "label": ["1", "2"]}, "1. red\n2. blue"),
        ({"label": ["1", "2"], "text": ["red", "blue"]}, "1. red\n2. blue"),
        ([1, 2.5], "A. 1\nB. 2.5"),
        (None, ""),
    ],
)
def test_context_is_shown_around_the_question(choices: Any, lines: str) -> None:
    task = Jsonl(path="x.jsonl", context_fields=("choices", "about.passage"), metric="text")
    fields = {"question": "Which color?", "choices": choices, "about": {"passage": "It was one."}, "answer": "A"}
    problem = task.parse(Row("row 1", fields))
    assert isinstance(problem, Problem)
    assert problem.question == "\n\n".join(filter(None, ["It was one.", "Which color?", lines]))


@pytest.mark.parametrize("choices", [[["red"]], {"text": ["red"], "label": ["1", "2"]}, {"a": {"b": "c"}}])
def test_a_context_that_has_no_form_is_named(choices: Any) -> None:
    task = Jsonl(path="x.jsonl", context_fields=("choices",), metric="text")
    with pytest.raises(DataError, match="row 1: field 'choices' must be a text, or choices"):
        task.parse(Row("row 1", {"question": "Which?", "choices": choices, "answer": "A"}))
    with pytest.raises(DataError, match=r"task\.context_fields"):
        task.parse(Row("row 1", {"question": "Which?", "answer": "A"}))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, ["prompts do not show passage, level: task.context_fields=[...] adds columns"]),
        ({"context_fields": ("passage", "level")}, []),
    ],
)
def test_columns_that_prompts_do_not_show_are_named(tmp_path: Path, settings: Any, told: list[str]) -> None:
    rows = [row | {"passage": "It was one.", "level": 3} for row in sums(20)]
    notes = make(jsonl(write_jsonl(tmp_path / "a.jsonl", rows), **settings)).notes
    assert [note for note in notes if "do not show" in note] == told


def test_an_input_that_is_the_answer_is_not_told() -> None:
    task = Jsonl(path="x.jsonl", question_field="instruction", answer_field="input", metric="text")
    problem = task.parse(Row("row 1", {"instruction": "Name a day.", "input": "Monday"}))
    assert isinstance(problem, Problem)
    assert (problem.question, problem.answer) == ("Name a day.", "Monday")


@pytest.mark.parametrize(
    ("answer", "field", "given"),
    [
        (["a", "b"], "answer", ["a", "b"]),
        (["a"], "answer", ["a"]),
        ({"ground_truth": {"target": ["a"]}}, "answer.ground_truth.target", {"target": ["a"]}),
        ({"target": ["a"]}, "answer.target", ["a"]),
        ({"target": ["a"], "other": ["b"]}, "answer.other", ["b"]),
        (4, "answer", 4),
        ("2 + 2 = 4\n#### 4", "answer", "2 + 2 = 4\n#### 4"),
        ("a", "answer", None),
    ],
)
def test_an_answer_that_is_read_is_also_kept_as_given(answer: Any, field: str, given: Any) -> None:
    task = Jsonl(path="x.jsonl", answer_field=field, metric="math" if "####" in str(answer) else "text")
    problem = task.parse(Row("row 1", {"question": "?", "answer": answer}))
    assert isinstance(problem, Problem)
    assert problem.metadata.get("gold_as_given") == given


def test_a_tool_in_the_form_of_anthropic_is_offered_in_that_of_templates() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"name": "weather", "description": "Tells it.", "input_schema": schema}
    row = Row("row 1", {"prompt": [{"role": "user", "content": "?"}], "answer": "4", "tools": [tool]})
    problem = Jsonl(path="x.jsonl", question_field="prompt").parse(row)
    assert isinstance(problem, Problem)
    function = {"name": "weather", "description": "Tells it.", "parameters": schema}
    assert problem.tools == ({"type": "function", "function": function},)


@pytest.mark.parametrize("tools", ["", None])
def test_a_blank_column_of_tools_means_none(tools: str | None) -> None:
    row = Row("row 1", {"prompt": [{"role": "user", "content": "?"}], "answer": "4", "tools": tools})
    problem = Jsonl(path="x.jsonl", question_field="prompt").parse(row)
    assert isinstance(problem, Problem)
    assert problem.tools == ()
