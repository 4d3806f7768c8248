"""Every kind of task fits the protocol, RPN included."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rlvr.tasks.base import Task
from tests.unit.tasks.data_tasks import FIXTURES, graded, make, opened, solved

TASKS: dict[str, dict[str, Any]] = {
    "rpn": {"name": "rpn"},
    "gsm8k": {"name": "gsm8k", "path": str(FIXTURES / "gsm8k")},
    "finqa": {"name": "finqa", "path": str(FIXTURES / "finqa")},
    "jsonl": {"name": "jsonl", "path": str(FIXTURES / "gsm8k" / "train.jsonl"), "metric": "text"},
    "hub": {"name": "hub", "path": str(FIXTURES / "gsm8k"), "eval_split": "test", "metric": "exact"},
    "generator": {"name": "generator", "source": "tests.unit.tasks.yielding:worked"},
    "reasoning_gym": {"name": "reasoning_gym", "dataset": "chain_sum"},
}


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> Iterator[Task]:
    with opened(TASKS[request.param], name="mine") as made:
        yield made


@pytest.mark.slow
def test_every_task_trains_evaluates_and_demonstrates(task: Task) -> None:
    assert task.name == "mine"
    assert all(isinstance(note, str) for note in task.notes)
    held_out = task.eval_examples(2)
    assert held_out
    asked = {example.messages[-1].content for example in held_out}
    assert not asked & {task.train_example(index).messages[-1].content for index in range(30)}
    for index in range(5):
        example = task.train_example(index)
        assert all((example.id, example.answer, *task.demonstration(index, 1.0)))
        assert isinstance(task.tags(example), tuple)
    assert next(task.texts())
    assert task.eval_sets() == (task,)
    task.limit_prompts(lambda messages, tools=(): 10, 10)
    assert task.eval_examples(2) == held_out


@pytest.mark.parametrize(
    ("name", "said", "gold", "correct"),
    [
        ("finqa", "34.7%", "0.34719", True),
        ("finqa", "12.0 million", "12", True),
        ("gsm8k", "34.7%", "0.34719", False),
        ("gsm8k", "12 million", "12", False),
        ("gsm8k", "$18.00", "18", True),
    ],
)
def test_pitfall_28_each_task_has_the_metric_of_its_data(name: str, said: str, gold: str, correct: bool) -> None:
    made = make(TASKS[name])
    example = replace(made.eval_examples(1)[0], answer=gold)
    assert graded(made, example, solved(said)).correct is correct
