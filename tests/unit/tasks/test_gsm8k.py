import asyncio
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr.errors import UserError
from rlvr.rows import Row
from rlvr.tasks.dataset import NO_GOLD
from rlvr.tasks.gsm8k import Gsm8k
from rlvr.tasks.problems import Problem, fingerprint
from tests.unit.tasks.data_tasks import FIXTURES, graded, make, real_data, scored, solved, turn, write_jsonl

GSM8K = FIXTURES / "gsm8k"
MAX_LOADING_S = 5.0


def task(path: Path = GSM8K, **changes: object) -> dict[str, object]:
    return {"name": "gsm8k", "path": str(path), **changes}


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], list[dict[str, str]]]:
    """A copy of the fixture in tmp_path; gives the rows of a split."""
    shutil.copytree(GSM8K, tmp_path, dirs_exist_ok=True)
    return lambda split: [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text().splitlines()]


def parse(answer: str, solution_lines: int | None = None) -> Problem | str:
    return Gsm8k(path="x", solution_lines=solution_lines).parse(Row("p", {"question": " Q? ", "answer": answer}))


def test_a_row_gives_gold_and_working_without_calculation_marks() -> None:
    answer = "48/2 = <<48/2=24>>24 clips.\n\nIn all 1,072.\n#### 1,072 "
    problem = parse(answer)
    assert isinstance(problem, Problem)
    assert (problem.question, problem.answer) == ("Q?", "1072")
    assert problem.solution == "48/2 = 24 clips.\nIn all 1,072."
    last = parse(answer, 1)
    assert isinstance(last, Problem)
    assert last.solution == "In all 1,072."


def test_tags_say_how_many_calculations_the_reference_makes() -> None:
    def tags(steps: int) -> tuple[str, ...]:
        problem = parse("so <<1+1=2>>2 " * steps + "\n#### 2")
        assert isinstance(problem, Problem)
        return problem.tags

    most = ("5_or_more_steps",)
    assert [tags(steps) for steps in (0, 1, 2, 5, 9)] == [(), ("1_step",), ("2_steps",), most, most]


@pytest.mark.parametrize("answer", ["no mark at all 72", "working\n####", "working\n#### ", "working\n#### none"])
def test_a_row_without_a_number_after_the_mark_has_no_gold(answer: str) -> None:
    assert parse(answer) == NO_GOLD


def test_the_prompt_asks_for_the_markers_and_the_gold_passes_verifier_and_metric() -> None:
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


def test_demonstrations_without_the_format_are_the_datas_own_words() -> None:
    made = make(task(solution_lines=1))
    _, completion = made.demonstration(0, 0.0)
    working, answer = completion.split("\n")
    assert answer.startswith("#### ")
    assert "<<" not in working
    assert sum("<SOLUTION>" in made.demonstration(i, 0.5)[1] for i in range(100)) == pytest.approx(50, abs=20)


def test_pitfall_38_training_examples_that_are_also_held_out_are_left_out_and_counted(
    copy: Callable, tmp_path: Path
) -> None:
    rows, test = copy("train"), copy("test")
    planted = [
        test[0] | {"answer": "another way\n#### 7"},
        {**test[3], "question": f"  {test[3]['question'].upper()} "},
    ]
    write_jsonl(tmp_path / "train.jsonl", [*rows, *planted])
    made = make(task(tmp_path))
    assert "2 of 14 training examples are also held out: left out" in made.notes
    held_out = {fingerprint(example.messages[-1].content) for example in made.eval_examples(100)}
    assert len(held_out) == 6
    asked = {fingerprint(made.train_example(i).messages[-1].content) for i in range(100)}
    shown = {fingerprint(made.demonstration(i, 1.0)[0].rpartition("\n")[2]) for i in range(100)}
    assert len(asked) == len(shown) == 12
    assert not held_out & (asked | shown)


def test_a_training_set_that_is_all_held_out_can_only_be_evaluated(copy: Callable, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", copy("test"))
    made = make(task(tmp_path))
    assert len(made.eval_examples(100)) == len(copy("test"))
    assert made.notes[0].startswith("0 training and ")
    made.limit_prompts(lambda messages, tools=(): 1, 10)
    with pytest.raises(UserError, match="every training example is also held out"):
        made.train_example(0)


def test_the_default_path_is_the_hub_or_the_folder_of_rlvr_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RLVR_DATA", raising=False)
    assert Gsm8k().path == "openai/gsm8k"
    monkeypatch.setenv("RLVR_DATA", str(GSM8K.parent))
    assert Gsm8k().path == str(GSM8K)
    monkeypatch.setenv("RLVR_DATA", str(tmp_path))
    assert Gsm8k().path == "openai/gsm8k"


def test_all_of_the_real_data_loads_and_renders_in_time_and_every_gold_passes() -> None:
    path = real_data("gsm8k")
    start = time.perf_counter()
    made = make(task(path))
    train = [made.train_example(index) for index in range(7_473)]
    seconds = time.perf_counter() - start
    assert seconds <= MAX_LOADING_S
    print(f"loaded and rendered {len(train):,} examples in {seconds:.2f} s")
    assert made.notes == (f"7,473 training and 923 held-out examples from {path}",)
    held_out = made.eval_examples(10_000)
    assert len({example.id for example in train}) == 7_473

    async def check() -> None:
        for example in [*train, *held_out]:
            turns = [turn(solved(example.answer))]
            assert (await made.env(example).score(turns)).value == 4.5, example
            assert (await made.grade(example, turns)).correct, example
            assert example.messages[1].content

    asyncio.run(check())
