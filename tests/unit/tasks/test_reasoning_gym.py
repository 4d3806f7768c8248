import asyncio
import importlib.util
from typing import Any

import pytest

from rlvr.errors import ConfigError, UserError
from rlvr.tasks.dataset import DatasetTask
from tests.unit.tasks.data_tasks import graded, ids, make, opened, solved, turn
from tests.variants import variants


def gym(dataset: str = "chain_sum", seed: int = 0, prompt: dict[str, Any] | None = None, **changes: Any) -> DatasetTask:
    return make({"name": "reasoning_gym", "dataset": dataset, **changes}, seed=seed, prompt=prompt)


def test_problems_are_real_and_carry_what_their_verifier_needs() -> None:
    made = gym(settings={"min_terms": 2, "max_terms": 2})
    example = made.train_example(0)
    entry = example.metadata["entry"]
    assert (entry["answer"], entry["question"]) == (example.answer, example.messages[-1].content)
    assert (example.metadata["dataset"], entry["metadata"]["num_terms"]) == ("chain_sum", 2)
    assert "<SOLUTION>" in example.messages[0].content


def test_pitfall_37_a_problem_is_a_function_of_seed_and_index() -> None:
    straight = ids(gym(), range(30))
    assert ids(gym(), range(20, 30)) == straight[20:]
    assert ids(gym(seed=1), range(30)) != straight
    assert len(set(straight)) > 25
    backwards = gym()
    assert [backwards.train_example(index).id for index in reversed(range(30))] == straight[::-1]
    assert ids(gym("acre"), range(70))[66:] == ids(gym("acre"), range(66, 70))  # made in chunks by the library


def test_pitfall_38_held_out_problems_are_never_trained_on() -> None:
    settings = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    made = gym(settings=settings)
    held_out = {example.id for example in made.eval_examples(20)}
    assert len(held_out) >= 5
    assert not held_out & set(ids(made, range(400)))
    assert {example.id for example in gym(settings=settings, seed=9).eval_examples(20)} == held_out


@pytest.mark.slow
@pytest.mark.parametrize("dataset", variants(["chain_sum", "acre", "rearc", "countdown"], always=2))
def test_every_gold_earns_full_marks_from_the_library(dataset: str) -> None:
    async def run() -> None:
        for example in [made.train_example(0), *made.eval_examples(1)]:
            right, wrong, bare = (
                [turn(said)] for said in (solved(example.answer), solved("no answer"), example.answer)
            )
            assert (await made.env(example).score(right)).value == 1.0
            assert (await made.grade(example, right)).correct
            assert (await made.env(example).score(wrong)).value < 0.5
            assert not (await made.grade(example, wrong)).correct
            unread = await made.grade(example, bare)
            assert (unread.answer, unread.correct) == (None, False)

    with opened({"name": "reasoning_gym", "dataset": dataset}) as made:
        asyncio.run(run())


@pytest.mark.parametrize(
    ("dataset", "settings"),
    [
        ("chain_sums", {}),
        ("chain_sum", {"max_term": 3}),
        ("chain_sum", {"seed": 3}),
        ("chain_sum", {"min_terms": 9, "max_terms": 2}),
        ("chain_sum", {"min_terms": "many"}),
    ],
)
def test_refused_settings_are_an_error_naming_them(dataset: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"task\.dataset={dataset} task\.settings=.* cannot make a problem of them"):
        gym(dataset, settings=settings)


def test_data_sets_without_golds_cannot_be_demonstrated() -> None:
    made = gym("graph_color")
    example = made.train_example(0)
    assert example.answer == ""
    assert graded(made, example, "no solution block").answer is None
    with pytest.raises(UserError, match=r"no reference answers to demonstrate: set warm_start\.enabled=false"):
        made.demonstration(0, 1.0)
    with pytest.raises(ConfigError, match=r"prompt\.few_shot=1: reasoning_gym has 0 different training examples"):
        gym("graph_color", prompt={"few_shot": 1})


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[reasoning-gym\]'"):
        gym()
