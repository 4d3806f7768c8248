from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from rlvr.errors import ConfigError
from rlvr.rows import DataError, read_file
from rlvr.tasks import readers
from tests.unit.tasks.data_tasks import graded, ids, make, scored, solved, sums, write_jsonl


def jsonl(path: Path, **changes: Any) -> dict[str, Any]:
    return {"name": "jsonl", "path": str(path), **changes}


def hub(path: Path, **changes: Any) -> dict[str, Any]:
    return {"name": "hub", "path": str(path), **changes}


def test_any_file_with_questions_and_answers_is_a_task(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "my.jsonl", [{"prompt": f"{n}+1?", "gold": n + 1} for n in range(50)])
    made = make(jsonl(path, question_field="prompt", answer_field="gold", eval_share=0.3))
    held_out = made.eval_examples(50)
    assert 5 <= len(held_out) <= 25
    asked = set(ids(made, range(200)))
    assert len(asked) + len(held_out) == 50
    assert not asked & {example.id for example in held_out}
    example = held_out[0]
    assert graded(made, example, solved(f"${example.answer}.0")).correct
    assert scored(made, example, solved(example.answer)).value == 1.0


def test_pitfall_38_the_share_that_is_held_out_is_chosen_by_hash_and_not_by_seed_or_order(tmp_path: Path) -> None:
    rows = sums(100)
    made = make(jsonl(write_jsonl(tmp_path / "a.jsonl", rows)), seed=0)
    other = make(jsonl(write_jsonl(tmp_path / "b.jsonl", rows[::-1])), seed=7)
    assert [e.id for e in made.eval_examples(100)] == [e.id for e in other.eval_examples(100)]
    more = make(jsonl(write_jsonl(tmp_path / "c.jsonl", sums(200))))
    held_out = {e.id for e in more.eval_examples(200)}
    assert {e.id for e in made.eval_examples(100)} == held_out & {e.id for e in made.eval_examples(100)}
    assert not set(ids(made, range(100))) & held_out


def test_a_file_of_its_own_can_be_held_out_and_overlap_is_left_out(tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", sums(10))
    held_out = write_jsonl(tmp_path / "test.json.jsonl", sums(3, start=8))
    made = make(jsonl(train, eval_path=str(held_out)))
    assert "2 of 10 training examples are also held out: left out" in made.notes
    assert len(made.eval_examples(10)) == 3


def test_a_tiny_file_holds_out_at_least_one_question(tmp_path: Path) -> None:
    for num in range(2, 8):
        made = make(jsonl(write_jsonl(tmp_path / "few.jsonl", sums(num)), eval_share=0.01))
        assert len(made.eval_examples(10)) == 1
        assert len(set(ids(made, range(50)))) == num - 1
    with pytest.raises(ConfigError, match="has 1 different questions"):
        make(jsonl(write_jsonl(tmp_path / "one.jsonl", sums(1))))


def test_given_ids_are_used_and_must_differ(tmp_path: Path) -> None:
    rows = [row | {"key": f"k{n}"} for n, row in enumerate(sums(20))]
    made = make(jsonl(write_jsonl(tmp_path / "x.jsonl", rows), id_field="key"))
    assert set(ids(made, range(40))) | {e.id for e in made.eval_examples(40)} == {f"k{n}" for n in range(20)}
    rows[7]["key"] = "k3"
    with pytest.raises(DataError, match=r"x\.jsonl, line 8: the id 'k3' was given before, at .*x\.jsonl, line 4"):
        make(jsonl(write_jsonl(tmp_path / "x.jsonl", rows), id_field="key"))
    rows[7]["key"] = None
    with pytest.raises(DataError, match=r"line 8: field 'key' must be a text or a whole number, but is null"):
        make(jsonl(write_jsonl(tmp_path / "x.jsonl", rows), id_field="key"))


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
    ],
)
def test_answers_may_be_texts_and_numbers(tmp_path: Path, answer: Any, metric: str, text: str) -> None:
    rows = [row | {"answer": answer} for row in sums(5)]
    made = make(jsonl(write_jsonl(tmp_path / "x.jsonl", rows), metric=metric))
    assert made.train_example(0).answer == text


def test_several_accepted_texts_are_all_right(tmp_path: Path) -> None:
    rows = [row | {"answer": ["New York", "NYC", ""]} for row in sums(5)]
    made = make(jsonl(write_jsonl(tmp_path / "x.jsonl", rows), metric="text"), reward="text", prompt="short_answer")
    example = made.eval_examples(1)[0]
    assert (example.answer, example.metadata["aliases"]) == ("New York", ("NYC",))
    assert graded(made, example, "nyc").correct
    assert scored(made, example, "the NYC.").value == 1.0
    assert not graded(made, example, "York").correct


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("eighteen", "must be a number, yes or no for task.metric=numeric"),
        (True, "must be a text, a number or a list of them, but is the boolean True"),
        ({"text": ["18"]}, "must be a text, a number or a list of them, but is an object"),
        (["18", "19"], "has 2 accepted answers, which task.metric=numeric cannot grade"),
        ([["18"]], "must be a text, a number or a list of them, but is a list of 1"),
        (10**400, "must be a finite number, but is the number 1000"),
    ],
)
def test_an_answer_that_the_metric_cannot_grade_is_an_error_at_load_time(
    tmp_path: Path, answer: Any, said: str
) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [*sums(9), {"question": "Q?", "answer": answer}])
    with pytest.raises(DataError) as error:
        make(jsonl(path))
    assert f"{path}, line 10: field 'answer' {said}" in str(error.value)


@pytest.mark.parametrize("field", ["id", "question", "answer"])
def test_a_text_that_is_too_long_is_an_error_that_names_its_field(tmp_path: Path, field: str) -> None:
    row = {"id": "a", "question": "Q?", "answer": "1"} | {field: "x" * 2_000_000 + "#### 1"}
    path = write_jsonl(tmp_path / "x.jsonl", [row])
    with pytest.raises(DataError, match=f"field '{field}' must have 2,000,000 characters at most"):
        make(jsonl(path, id_field="id"))


def test_a_data_set_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "train.jsonl", sums(9))
    files: list[Path] = []
    monkeypatch.setattr(readers, "read_file", lambda path: (files.append(path), read_file(path))[1])
    make(hub(tmp_path))
    assert files == [tmp_path / "train.jsonl"]


def test_rows_without_an_answer_are_left_out_and_noted(tmp_path: Path) -> None:
    rows = [*sums(20), {"question": "a?", "answer": None}, {"question": "b?", "answer": " "}, {"question": "c?"}]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    assert f"3 training rows have no gold answer: left out (first: {path}, line 21)" in make(jsonl(path)).notes
    with pytest.raises(DataError, match=r"x\.jsonl, line 1: field 'gold' is missing; there are 'question', 'answer'"):
        make(jsonl(path, answer_field="gold"))


@pytest.mark.parametrize("field", ["question_field", "answer_field", "id_field"])
def test_a_missing_field_names_the_setting_that_chooses_it(tmp_path: Path, field: str) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", sums(20))
    with pytest.raises(DataError, match=rf"field 'gone' is missing; .* \(name the right one: task\.{field}=\.\.\.\)"):
        make(jsonl(path, **{field: "gone"}))


@pytest.mark.parametrize(("metric", "answer"), [("numeric", "1,072"), ("math", "1,072")])
def test_golds_behind_four_hashes_are_read_and_the_working_is_shown(tmp_path: Path, metric: str, answer: str) -> None:
    rows = [row | {"answer": "48 / 2 = <<48/2=24>>24\nand so on\n#### 1,072"} for row in sums(5)]
    made = make(jsonl(write_jsonl(tmp_path / "x.jsonl", rows), metric=metric))
    assert made.train_example(0).answer == answer
    assert "48 / 2 = 24\nand so on" in made.demonstration(0, 1.0)[1]
    text = make(jsonl(tmp_path / "x.jsonl", metric="text"))
    assert "####" in text.train_example(0).answer


def test_a_folder_of_files_of_any_kind_is_read(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", sums(20))
    (tmp_path / "b.csv").write_text("question,answer\n" + "".join(f"Twice {n}?,#### {2 * n}\n" for n in range(10)))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(sums(10, start=50)), tmp_path / "c.parquet")
    (tmp_path / "README.md").write_text("read me")
    assert make(jsonl(tmp_path)).sizes == (38, 2)
    held_out = write_jsonl(tmp_path / "test.jsonl", sums(5, start=90))
    with pytest.raises(ConfigError, match=r"has test\.jsonl, which would be trained on: name it as task\.eval_path"):
        make(jsonl(tmp_path))
    assert make(jsonl(tmp_path, eval_path=str(held_out))).sizes == (40, 5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"has no data file; data files end in \.jsonl"):
        make(jsonl(tmp_path / "empty"))
