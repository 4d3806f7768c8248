from dataclasses import replace
from typing import Literal

import pytest

from rlvr.rollout.metrics import rollout_metrics
from rlvr.types import Episode, Group, Score, StopReason
from tests.unit.rollout.test_batch import completion, episode, group


def test_pitfall_14_truncated_invalid_and_failed_are_counted_apart() -> None:
    """Of eight episodes one was truncated only, two are invalid only, one is both, three failed, one is neither."""

    def made(stop: StopReason, status: Literal["scored", "invalid", "error"]) -> Episode:
        value = float("nan") if status == "error" else 0.0
        return episode(((1,), completion(5, stop=stop)), score=Score(value=value, status=status))

    episodes = [
        made(StopReason.LENGTH, "scored"),
        made(StopReason.STOP, "invalid"),
        made(StopReason.STOP, "invalid"),
        made(StopReason.LENGTH, "invalid"),
        made(StopReason.ABORTED, "error"),
        made(StopReason.STOP, "error"),
        made(StopReason.STOP, "error"),
        made(StopReason.MAX_TURNS, "scored"),
    ]
    metrics = rollout_metrics([group(*episodes[:4]), group(*episodes[4:])], num_refilled=0)
    assert metrics["rollout/truncated_share"] == 2 / 8
    assert metrics["rollout/invalid_share"] == 3 / 8
    assert metrics["rollout/error_share"] == 3 / 8


def test_the_numbers_of_a_small_batch_by_hand() -> None:
    good = episode(((1,), completion(5, 2)), score=Score(value=1.0, parts={"boxed": 1.0}))
    bad = episode(((1,), completion(5, 6, 2)), score=Score(value=0.0, parts={"boxed": 1.0}))
    cut = episode(
        ((1,), completion(5, stop=StopReason.LENGTH)), score=Score(value=0.0, status="invalid", parts={"boxed": 0.0})
    )
    failed = episode(((1,), completion(5, 2)), score=Score(value=float("nan"), status="error"))
    metrics = rollout_metrics([group(good, bad), group(cut, failed)], num_refilled=3)
    assert metrics["reward/mean"] == pytest.approx(1 / 3)
    assert metrics["reward/within_group_std"] == pytest.approx(0.25)
    assert metrics["reward/boxed"] == pytest.approx(2 / 3)
    assert metrics["rollout/zero_advantage_share"] == 0.5
    assert (
        metrics["rollout/invalid_share"] == metrics["rollout/error_share"] == metrics["rollout/truncated_share"] == 0.25
    )
    assert metrics["rollout/completion_tokens_mean"] == 2.0
    assert metrics["rollout/completion_tokens_max"] == 3.0
    assert metrics["rollout/refilled_groups"] == 3.0
    assert metrics["rollout/entropy"] == pytest.approx((0.3 + 0.6 + 0.1 + 0.3) / 8)


def test_tasks_of_a_mix_are_told_apart() -> None:
    def of(task: str, value: float) -> Group:
        made = group(episode(((1,), completion(5, 2)), score=Score(value=value)))
        return replace(made, example=replace(made.example, metadata={"task": task}))

    metrics = rollout_metrics([of("a", 1.0), of("a", 0.0), of("b", 3.0)], num_refilled=0)
    assert metrics["task/a/reward_mean"] == 0.5
    assert (metrics["task/b/reward_mean"], metrics["task/b/episodes"]) == (3.0, 1.0)
    assert not any(name.startswith("task/") for name in rollout_metrics([of("a", 1.0)], num_refilled=0))
