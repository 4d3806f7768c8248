"""Every kind of task fits the protocol, RPN included."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rlvr.registry import ours
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
    "dates": {"name": "dates"},
}


SEARCHED = {"has_documents", "rereads"}
FACTS: dict[str, set[str]] = {  # what is true of each, of what the rest of the library asks tasks
    "code": {"has_tests", "shows_calls"},
    "dates": {"shows_calls"},
    "finqa": {"shows_calls"},
    "generator": {"shows_calls"},
    "gsm8k": {"shows_calls"},
    "hotpotqa": SEARCHED,
    "hub": {"shows_calls"},
    "jsonl": {"shows_calls"},
    "k_hop": {"is_generated", "has_tools", "made_of_words"},
    "keep_one": {"is_generated", "has_tools", "rereads", "made_of_words"},
    "meta": {"is_generated", "made_of_words"},
    "mix": {"writes_prompts", "scores_itself", "shows_calls"},
    "musique": SEARCHED | {"has_decompositions"},
    "reasoning_gym": {"is_generated", "brings_verifier", "shows_calls"},
    "rpn": {"is_generated", "writes_prompts", "shows_calls", "made_of_words"},
    "two_hop": {"is_generated", "has_tools", "made_of_words"},
    "wiki2": SEARCHED,
}
ASKED = sorted(set[str]().union(*FACTS.values()))


@pytest.mark.parametrize("name", FACTS)
def test_every_task_says_what_it_is(name: str) -> None:
    assert ours("task").keys() == FACTS.keys()
    kind = ours("task")[name]
    assert {fact for fact in ASKED if getattr(kind, fact) is True} == FACTS[name]


@pytest.mark.parametrize(
    ("name", "values", "needs"),
    [
        *((name, {}, False) for name in ("rpn", "two_hop", "k_hop", "keep_one", "meta")),
        *(("jsonl", {"path": "x.jsonl", "metric": metric}, metric == "math") for metric in ("numeric", "text", "math")),
        ("reasoning_gym", {"dataset": "chain_sum"}, True),
    ],
)
def test_only_what_may_hang_is_graded_in_another_process(name: str, values: dict[str, Any], needs: bool) -> None:
    assert ours("task")[name](**values).metric_uses_sandbox == needs


def test_an_episode_has_one_turn_unless_its_task_says_more() -> None:
    kinds, found = ours("task"), {"rpn": 1, "meta": 1, "keep_one": 2}
    assert {name: kinds[name]().num_turns for name in found} == found


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
