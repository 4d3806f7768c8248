"""Fingerprints of how a measurement was made."""

from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.run.evaluate_sets import origin_of
from rlvr.tracking.graded import Origin
from rlvr.types import Example, Message
from tests.unit.core.tiny import tiny_config


def origin(
    *changes: str, question: str = "3 4 +", weights: str = "f", name: str = "rpn", split: str = "test"
) -> Origin:
    config = tiny_config(*changes, name="rpn_test")
    example = Example(id="e", messages=(Message(role="user", content=question),), answer="7", metadata={})
    inference: Any = SimpleNamespace(config=config, loaded=SimpleNamespace(source="runs/a", fingerprint=weights))
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


@pytest.mark.parametrize("line", ["reward.parts.correct.weight=1.0", "rollout.temperature=0.5", "seed=1"])
def test_pitfall_38_conditions_are_only_how_it_is_asked(line: str) -> None:
    assert origin(line, weights="g").conditions == origin().conditions
    assert origin("rollout.max_completion_tokens=7").conditions != origin().conditions
