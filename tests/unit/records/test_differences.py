"""The first difference between two records of a step is named by stage, episode and token."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rlvr.records.differences import metric_differences, record_differences
from rlvr.records.jsonl import to_line
from rlvr.records.rollouts import EpisodeRecord
from tests.unit.report.runs import episode

Edit = Callable[[EpisodeRecord], EpisodeRecord]


def of_turn(**changes: Any) -> Edit:
    return lambda one: replace(one, turns=[replace(one.turns[0], **changes), *one.turns[1:]])


def of_row(**changes: Any) -> Edit:
    return lambda one: replace(one, rows=[replace(one.rows[0], **changes)])


EDITS: dict[str, tuple[Edit, str]] = {
    "token": (of_turn(completion_ids=[5, 4]), "sampling: {}, turn 0, token 1, completion_ids: recorded 4, replayed 6"),
    "longer": (
        of_turn(completion_ids=[5, 6, 1]),
        "sampling: {}, turn 0, token 2, completion_ids: recorded 1, replayed null",
    ),
    "logprob": (
        of_turn(behavior_logprobs=[-0.25, -0.5]),
        "sampling: {}, turn 0, token 1, behavior_logprobs: recorded -0.5, replayed -0.125",
    ),
    "prompt": (of_row(ids=[0, 1, 2, 3, 1, 5, 6]), "sampling: {}, row 0, token 4, ids: recorded 1, replayed 4"),
    "stop": (
        lambda one: replace(one, stop_reason="length"),
        'sampling: {}, stop_reason: recorded "length", replayed "stop"',
    ),
    "turns": (lambda one: replace(one, turns=one.turns * 2), "sampling: {}, number of turns: recorded 2, replayed 1"),
    "reward": (lambda one: replace(one, reward=0.0), "scores: {}, reward: recorded 0.0, replayed 1.0"),
    "part": (
        lambda one: replace(one, reward_parts={"boxed": 0.0}),
        'scores: {}, reward_parts: recorded {"boxed": 0.0}',
    ),
    "trainer": (
        of_row(trainer_logprobs=[None] * 5 + [-0.25, -0.2]),
        "logprobs: {}, row 0, token 6, trainer_logprobs: recorded -0.2, replayed -0.126",
    ),
    "zero": (of_row(advantages=[-0.0] * 5 + [0.5, 0.5]), "advantages: {}, row 0, token 0, advantages: recorded -0.0"),
    "advantage": (
        of_row(advantages=[0.0] * 5 + [0.5, 1.5]),
        "advantages: {}, row 0, token 6, advantages: recorded 1.5",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_difference_is_named(name: str) -> None:
    edit, said = EDITS[name]
    lines = [to_line(episode()), to_line(episode(sample=1))]
    (found,) = record_differences([lines[0], to_line(edit(episode(sample=1)))], lines)
    assert str(found).startswith(said.replace("{}", "episode 1"))


def test_the_first_of_each_stage_in_the_order_of_a_step() -> None:
    whole = [to_line(episode(sample=number)) for number in range(3)]
    later = of_row(advantages=[0.0] * 5 + [1.5, 0.5])(replace(episode(sample=2), reward=0.0))
    edited = [to_line(of_row(advantages=[0.0] * 6 + [0.5])(episode())), whole[1], to_line(later)]
    assert [(one.stage, one.episode) for one in record_differences(edited, whole)] == [("scores", 2), ("advantages", 0)]
    assert record_differences(whole, whole) == []
    assert str(record_differences(whole, whole[:2])[0]) == "sampling: episodes: recorded 3, replayed 2"


METRICS = {
    "rollout/completion_tokens_mean": "sampling",
    "rollout/error_share": "scores",
    "reward/mean": "scores",
    "loss/total": "update",
    "policy/grad_norm": "update",
    "eval/rpn/accuracy": "evaluation",
}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_tells_its_stage(name: str) -> None:
    row = dict.fromkeys(METRICS, 1.0) | {"step": 3, "time/step_s": 1.0, "critic/x": float("nan")}
    changed = row | {name: 2.0, "time/step_s": 2.0}
    (found,) = metric_differences(row, changed)
    assert (found.stage, found.name, found.recorded, found.replayed) == (METRICS[name], name, 1.0, 2.0)
    assert metric_differences(row, row | {"system/peak_memory_mb": 1.0}) == []
