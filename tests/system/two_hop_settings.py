"""Settings of task=two_hop, as `test_data_settings` has those of other tasks: two values give something else."""

from __future__ import annotations

from rlvr.tasks.base import Task
from rlvr.tasks.two_hop import TwoHopTask
from tests.system.test_data_settings import DataCase, Look

BASE = ("task=two_hop",)


def names(letter: str) -> Look:
    """How many persons, organizations or cities a world has."""

    def look(task: Task) -> int:
        assert isinstance(task, TwoHopTask)
        assert task.vocabulary is not None
        found = " ".join(task.facts(task.train_example(0)).values()).split()
        return len([word for word in task.vocabulary if word[0] == letter and word[1:].isdecimal() and word in found])

    return look


def asked(task: Task) -> list[str]:
    return [example.id for example in task.eval_examples(20)]


def turns(task: Task) -> int | None:
    return task.env(task.train_example(0)).max_turns


TWO_HOP_CASES = [
    DataCase(key=f"task.{key}", a=a, b=b, look=look, base=BASE)
    for key, a, b, look in (
        ("num_persons", "40", "5", names("p")),
        ("num_organizations", "30", "6", names("o")),
        ("num_cities", "20", "4", names("c")),
        ("held_out_share", "0.2", "0.5", asked),
        ("max_turns", "4", "3", turns),
    )
]
