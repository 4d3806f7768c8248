"""Fingerprints of how a measurement was made."""

from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.records.graded import Origin
from rlvr.run.evaluate_sets import _draws, _hash, origin_of
from rlvr.types import Example, Message
from tests.unit.core.tiny import tiny_config


def origin(
    *changes: str,
    question: str = "3 4 +",
    weights: str = "f",
    name: str = "rpn",
    split: str = "test",
    config: str = "rpn_test",
) -> Origin:
    settings = tiny_config(*changes, name=config)
    example = Example(id="e", messages=(Message(role="user", content=question),), answer="7", metadata={})
    inference: Any = SimpleNamespace(config=settings, loaded=SimpleNamespace(source="runs/a", fingerprint=weights))
    task: Any = SimpleNamespace(name=name, eval_examples=lambda num: [example])
    return origin_of(inference, task, split)


def test_pitfall_38_settings_are_all_that_decides_an_answer() -> None:
    others = [
        origin(question="what is 3 4 + ?"),  # the data have changed under the same id
        origin(weights="g"),
        origin(name="twin"),  # a second set of the same kind, in one file with the first
        origin(split="train"),
        origin("seed=1", split="train"),  # another stream
        origin("reward.parts.correct.weight=1.0"),
        origin("rollout.temperature=0.5"),
    ]
    assert len({one.settings for one in [origin(), *others]}) == 8
    assert origin().settings == origin("seed=1").settings == origin("trainer.learning_rate=1e-5").settings


def test_where_an_answer_is_read_is_another_measurement() -> None:
    """Though the prompt's words are the same."""
    how = ("reward=numeric", "prompt=plain")
    first, other = (origin(*how, f"prompt.answer_in={place}", config="gsm8k_smoke") for place in ("whole", "stated"))
    assert first.settings != other.settings
    assert first.conditions != other.conditions


@pytest.mark.parametrize("line", ["reward.parts.correct.weight=1.0", "rollout.temperature=0.5", "seed=1"])
def test_pitfall_38_conditions_are_only_how_it_is_asked(line: str) -> None:
    assert origin(line, weights="g").conditions == origin().conditions
    assert origin("rollout.max_completion_tokens=7").conditions != origin().conditions


def test_a_fingerprint_is_of_sixteen_letters_whatever_the_order() -> None:
    assert _hash({"b": 1, "a": [2]}) == _hash({"a": [2], "b": 1}) != _hash({"a": [1], "b": 2})
    assert len(_hash({})) == len(origin().settings) == len(origin().conditions) == 16


def test_the_size_of_a_batch_and_the_retriever_are_no_other_question() -> None:
    """How many prompts and completions a step has does not change an evaluation; a retriever changes the answers."""
    assert origin("rollout.group_size=2", "rollout.prompts_per_step=3").settings == origin().settings


@pytest.mark.parametrize(("samples", "numbers"), [(0, [0]), (3, [0, 1, 2, 3])])
def test_the_greedy_sample_comes_before_the_drawn_ones(samples: int, numbers: list[int]) -> None:
    player: Any = SimpleNamespace(stop_ids=frozenset({7}))
    params, drawn = _draws(tiny_config(f"evaluation.samples_per_example={samples}"), player)
    assert [*drawn] == numbers
    assert params.stop_ids == {7}
