"""A hint when a signal looks wrong for several steps, and silence otherwise."""

import math

import pytest

from rlvr.tracking.health import WINDOW, hints

HEALTHY = {
    "reward/mean": 0.4,
    "rollout/zero_advantage_share": 0.3,
    "rollout/truncated_share": 0.0,
    "rollout/invalid_share": 0.1,
    "rollout/error_share": 0.0,
    "policy/entropy": 0.5,
    "policy/clip_fraction": 0.05,
    "policy/mismatch_kl": 1e-8,
    "policy/grad_norm": 0.6,
    "policy/changed_weight_share": 1.0,
}


def keys(history: list[dict[str, float]]) -> list[str]:
    return [hint.key for hint in hints(history)]


def test_nothing_is_said_about_a_healthy_run() -> None:
    assert keys([HEALTHY] * 50) == []
    assert keys([]) == []


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("reward/mean", 0.0, "no_reward"),
        ("rollout/zero_advantage_share", 0.95, "no_signal"),
        ("rollout/truncated_share", 0.6, "truncated"),
        ("rollout/invalid_share", 0.95, "invalid"),
        ("rollout/error_share", 0.2, "errors"),
        ("policy/entropy", 0.001, "collapse"),
        ("policy/clip_fraction", 0.5, "clipped"),
        ("policy/mismatch_kl", 0.1, "mismatch"),
        ("policy/grad_norm", 0.0, "no_gradient"),
        ("policy/changed_weight_share", 0.001, "rounding"),
    ],
)
def test_a_signal_that_stays_wrong_is_named_after_some_steps(name: str, value: float, key: str) -> None:
    bad = HEALTHY | {name: value}
    assert keys([HEALTHY] * 3 + [bad] * (WINDOW - 1)) == []
    assert keys([HEALTHY] * 3 + [bad] * WINDOW) == [key]
    assert keys([bad] * (WINDOW - 1) + [HEALTHY]) == []


def test_equal_rewards_of_a_solved_task_are_no_warning() -> None:
    bad = HEALTHY | {"rollout/zero_advantage_share": 1.0, "policy/entropy": 0.0}
    assert keys([{"eval/rpn/accuracy": 0.97}] + [bad] * WINDOW) == []
    assert keys([{"eval/rpn/accuracy": 0.3}] + [bad] * WINDOW) == ["no_signal", "collapse"]


def test_equal_groups_are_no_warning_where_the_batch_is_trained_on_all_the_same() -> None:
    sampled = HEALTHY | {"rollout/episodes": 8.0, "rollout/completion_tokens_mean": 10.0}
    ppo = sampled | {"rollout/zero_advantage_share": 1.0, "policy/trained_tokens": 80.0}
    assert keys([ppo] * WINDOW) == []
    assert keys([ppo | {"policy/trained_tokens": 4.0}] * WINDOW) == ["no_signal"]


def test_a_number_that_is_absent_or_nan_is_not_wrong() -> None:
    assert keys([{"reward/mean": math.nan}] * 20) == []


def test_an_accuracy_below_the_first_one_beyond_chance_is_named() -> None:
    first = {"eval/rpn/accuracy": 0.5, "eval/rpn/accuracy_low": 0.46, "eval/rpn/accuracy_high": 0.54}
    noise = {"eval/rpn/accuracy": 0.45, "eval/rpn/accuracy_low": 0.41, "eval/rpn/accuracy_high": 0.49}
    worse = {"eval/rpn/accuracy": 0.35, "eval/rpn/accuracy_low": 0.31, "eval/rpn/accuracy_high": 0.39}
    assert keys([first, noise]) == []
    assert keys([first, noise, worse]) == ["worse/rpn"]
    assert keys([first, worse, noise]) == []


def evaluation(accuracy: float, reward: float) -> dict[str, float]:
    """An evaluation whose interval is 0.04 to each side."""
    return {
        "eval/rpn/accuracy": accuracy,
        "eval/rpn/accuracy_low": accuracy - 0.04,
        "eval/rpn/accuracy_high": accuracy + 0.04,
        "eval/rpn/reward": reward,
    }


def test_a_reward_that_rises_while_accuracy_falls_is_an_alarm() -> None:
    """The first evaluation is the worst, so nothing is lower than before training: only the best one tells."""
    rising = [evaluation(0.2, 0.1), evaluation(0.6, 0.5)]
    assert keys([*rising, evaluation(0.4, 0.9)]) == ["gamed/rpn"]
    assert keys([*rising, evaluation(0.57, 0.9)]) == []  # chance
    assert keys([*rising, evaluation(0.4, 0.4)]) == []  # both fall
