import asyncio
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr.data.problems import fingerprint
from rlvr.data.rows import Row
from rlvr.errors import UserError
from rlvr.tasks.dataset import DatasetTask
from rlvr.tasks.gsm8k import Gsm8k
from rlvr.tasks.loading import NO_GOLD
from tests.unit.tasks.data_tasks import FIXTURES, graded, make, real_data, scored, solved, turn, write_jsonl

GSM8K = FIXTURES / "gsm8k"
MAX_LOADING_S = 5.0


def task(path: Path = GSM8K, **changes: object) -> dict[str, object]:
    return {"name": "gsm8k", "path": str(path), **changes}


def rows(split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (GSM8K / f"{split}.jsonl").read_text().splitlines()]


@pytest.fixture
def save(tmp_path: Path) -> Callable[[list[dict[str, str]]], DatasetTask]:
    """The task of the fixture with other training rows."""
    shutil.copytree(GSM8K, tmp_path, dirs_exist_ok=True)
    return lambda rows: make(task(write_jsonl(tmp_path / "train.jsonl", rows).parent))


def parse(answer: str, solution_lines: int | None = None) -> Any:
    return Gsm8k(path="x", solution_lines=solution_lines).parse(Row("p", {"question": " Q? ", "answer": answer}))


def test_a_row_gives_gold_and_working_without_marks() -> None:
    answer = "48/2 = <<48/2=24>>24 clips.\n\nIn all 1,072.\n#### 1,072 "
    problem = parse(answer)
    assert (problem.question, problem.answer) == ("Q?", "1072")
    assert problem.solution == "48/2 = 24 clips.\nIn all 1,072."
    assert parse(answer, 1).solution == "In all 1,072."


@pytest.mark.parametrize(
    ("steps", "tags"),
    [(0, ()), (1, ("1_step",)), (2, ("2_steps",)), (5, ("5_or_more_steps",)), (9, ("5_or_more_steps",))],
)
def test_tags_count_the_calculations_of_the_reference(steps: int, tags: tuple[str, ...]) -> None:
    assert parse("so <<1+1=2>>2 " * steps + "\n#### 2").tags == tags


@pytest.mark.parametrize("answer", ["no mark at all 72", "working\n####", "working\n#### ", "working\n#### none"])
def test_a_row_without_a_number_after_the_mark_has_no_gold(answer: str) -> None:
    assert parse(answer) == NO_GOLD


def test_the_gold_passes_verifier_and_metric() -> None:
    made = make(task())
    assert made.notes == (f"12 training and 6 held-out examples from {GSM8K}",)
    for example in [*made.eval_examples(100), *(made.train_example(i) for i in range(12))]:
        system, user = example.messages
        assert "<start_working_out>" in system.content
        assert "{" not in system.content + user.content
        assert graded(made, example, solved(example.answer)).correct
        assert scored(made, example, solved(example.answer)).value == 4.5
        assert not graded(made, example, solved(f"{example.answer}1")).correct
        assert scored(made, example, solved(f"{example.answer}1")).value == 1.5
        assert example.metadata["task"] == "gsm8k"


def test_every_demonstration_earns_full_marks() -> None:
    made = make(task())
    by_question = {made.train_example(i).messages[-1].content: made.train_example(i) for i in range(12)}
    for index in range(12):
        prompt, completion = made.demonstration(index, 1.0)
        example = by_question[prompt.rpartition("\n")[2]]
        assert scored(made, example, completion).value == 4.5
        assert graded(made, example, completion).correct


def test_plain_demonstrations_are_the_words_of_the_data() -> None:
    made = make(task(solution_lines=1))
    _, completion = made.demonstration(0, 0.0)
    working, answer = completion.split("\n")
    assert answer.startswith("#### ")
    assert "<<" not in working
    assert sum("<SOLUTION>" in made.demonstration(i, 0.5)[1] for i in range(100)) == pytest.approx(50, abs=20)


def test_pitfall_38_held_out_training_examples_are_left_out(save: Callable[..., DatasetTask]) -> None:
    test = rows("test")
    again = test[0] | {"answer": "another way\n#### 7"}
    spelled_otherwise = {**test[3], "question": f"  {test[3]['question'].upper()} "}
    made = save([*rows("train"), again, spelled_otherwise])
    assert "2 of 14 training examples are also held out: left out" in made.notes
    held_out = {fingerprint(example.messages[-1].content) for example in made.eval_examples(100)}
    assert len(held_out) == 6
    asked = {fingerprint(made.train_example(i).messages[-1].content) for i in range(100)}
    shown = {fingerprint(made.demonstration(i, 1.0)[0].rpartition("\n")[2]) for i in range(100)}
    assert len(asked) == len(shown) == 12
    assert not held_out & (asked | shown)


def test_a_training_set_that_is_all_held_out_evaluates(save: Callable[..., DatasetTask]) -> None:
    made = save(rows("test"))
    assert len(made.eval_examples(100)) == 6
    assert made.notes[0].startswith("0 training and ")
    made.limit_prompts(lambda messages, tools=(): 1, 10)
    with pytest.raises(UserError, match="every training example is also held out"):
        made.train_example(0)


def test_the_default_path_follows_rlvr_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RLVR_DATA", raising=False)
    assert Gsm8k().path == "openai/gsm8k"
    for folder, path in ((GSM8K.parent, str(GSM8K)), (tmp_path, "openai/gsm8k")):
        monkeypatch.setenv("RLVR_DATA", str(folder))
        assert Gsm8k().path == path


@pytest.mark.slow
def test_the_real_data_loads_in_time_and_every_gold_passes() -> None:
    path = real_data("gsm8k")
    start = time.perf_counter()
    made = make(task(path))
    train = [made.train_example(index) for index in range(7_473)]
    seconds = time.perf_counter() - start
    assert seconds <= MAX_LOADING_S
    print(f"loaded and rendered {len(train):,} examples in {seconds:.2f} s")
    assert made.notes == (f"7,473 training and 923 held-out examples from {path}",)
    assert len({example.id for example in train}) == 7_473

    async def check() -> None:
        for example in [*train, *made.eval_examples(10_000)]:
            turns = [turn(solved(example.answer))]
            assert (await made.env(example).score(turns)).value == 4.5, example
            assert (await made.grade(example, turns)).correct, example
            assert example.messages[1].content

    asyncio.run(check())
