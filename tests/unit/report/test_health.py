"""Signals that go wrong in silence are said in a sentence; what was checked and is fine is listed, too."""

import math

import pytest

from rlvr.report.health import health
from rlvr.tracking.health import checked
from rlvr.tracking.metrics import describe

FINE = {
    "reward/mean": 0.5,
    "reward/std": 0.4,
    "rollout/truncated_share": 0.0,
    "rollout/error_share": 0.0,
    "policy/ratio": 1.0,
    "policy/grad_norm": 0.3,
    "policy/entropy": 0.7,
    "rollout/turns_mean": 2.0,
}


def states(*rows: dict[str, float]) -> dict[str, str]:
    history = [{"step": float(step), **FINE, **row} for step, row in enumerate(rows, start=1)]
    return {row["metric"]: row["state"] for row in health(history)}


def row_of(history: list[dict[str, float]], name: str) -> dict[str, object]:
    return next(row for row in health(history) if row["metric"] == name)


def test_a_sound_run_has_nothing_wrong_and_says_what_was_checked() -> None:
    found = states(*[{}] * 8)
    assert set(found.values()) == {"fine", "look"}
    assert found["rollout/truncated_share"] == "fine"
    assert found["rollout/turns_mean"] == "look"  # no rule can tell


def test_pitfall_14_a_hint_of_the_console_is_wrong_here_with_its_sentence() -> None:
    history = [{"step": float(step), **FINE, "rollout/truncated_share": 0.8} for step in range(1, 9)]
    found = health(history)
    assert found[0]["metric"] == "rollout/truncated_share"
    assert found[0]["state"] == "wrong"
    assert "max_completion_tokens" in found[0]["texts"][0]
    assert found[0]["value"] == 0.8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rollout/truncated_share", 0.3),
        ("rollout/error_share", 0.01),
        ("policy/ratio", 1.3),
        ("policy/ratio", 0.7),
        ("policy/clamped_tokens", 1.0),
        ("policy/mismatch_kl", 0.02),
        ("eval/rpn/error_share", 0.1),
        ("policy/approx_kl", 0.2),
    ],
)
def test_pitfall_21_what_the_table_of_metrics_calls_wrong_is_worth_a_look(name: str, value: float) -> None:
    history = [{"step": float(step), **FINE, name: value} for step in range(1, 9)]
    row = row_of(history, name)
    metric = describe(name)
    assert metric is not None
    assert row["state"] == "notice"
    assert metric.bad in str(row["texts"])


def test_pitfall_16_a_number_that_is_none_any_more_is_said_at_once() -> None:
    history = [{"step": 1.0, **FINE, "loss/total": 1.0}, {"step": 2.0, **FINE, "loss/total": math.nan}]
    row = row_of(history, "loss/total")
    assert row["state"] == "notice"
    assert "not a number" in str(row["texts"])
    assert row["value"] is None


def test_equal_rewards_of_a_solved_task_are_no_fault() -> None:
    dead = {"rollout/zero_advantage_share": 1.0, "reward/std": 0.0, "policy/grad_norm": 0.0}
    unsolved = states(*[dead] * 8)
    assert {unsolved["reward/std"], unsolved["rollout/zero_advantage_share"]} <= {"wrong", "notice"}
    solved = states(*[dead] * 7, {**dead, "eval/rpn/accuracy": 0.99})
    assert solved["reward/std"] == "fine"
    assert solved["rollout/zero_advantage_share"] == "fine"


def test_what_looked_wrong_once_and_is_fine_now_is_remembered() -> None:
    history = [
        {"step": float(step), **FINE, "rollout/truncated_share": 0.8 if step < 20 else 0.0} for step in range(1, 41)
    ]
    row = row_of(history, "rollout/truncated_share")
    assert row["state"] == "fine"
    assert row["past"] == ["It looked wrong from step 5 to 19, and does not any more."]


def test_a_gamed_reward_is_told_at_the_accuracy() -> None:
    def evaluated(step: int, accuracy: float, reward: float) -> dict[str, float]:
        interval = {"eval/rpn/accuracy_low": accuracy - 0.05, "eval/rpn/accuracy_high": accuracy + 0.05}
        return {"step": float(step), **FINE, "eval/rpn/accuracy": accuracy, "eval/rpn/reward": reward, **interval}

    row = row_of([evaluated(1, 0.8, 0.5), evaluated(2, 0.2, 0.9)], "eval/rpn/accuracy")
    assert row["state"] == "wrong"
    assert "gamed" in str(row["texts"])


def test_penalties_are_not_silent_parts() -> None:
    history = [{"step": float(step), **FINE, "reward/length": 0.0, "reward/correct": 0.5} for step in range(1, 9)]
    assert row_of(history, "reward/length")["state"] == "wrong"
    assert next(row for row in health(history, {"length"}) if row["metric"] == "reward/length")["state"] == "fine"


def test_every_hint_is_about_a_documented_metric() -> None:
    assert all(describe(name) is not None for name in checked().values())


def test_nothing_is_called_fine_that_no_rule_looks_at() -> None:
    """A flat reward and a loss that does not fall are for a person to see."""
    found = states(*[{"reward/mean": 0.5, "loss/value": 0.5, "reward/within_group_std": 0.0}] * 8)
    assert {found[name] for name in ("reward/mean", "loss/value", "reward/within_group_std")} == {"look"}


def test_before_there_are_steps_enough_for_hints_nothing_is_called_fine() -> None:
    dead = {"policy/entropy": 0.0, "rollout/truncated_share": 1.0, "policy/ratio": 1.0}
    assert set(states(*[dead] * 4).values()) == {"look", "notice"}
    assert states(*[dead] * 5)["policy/entropy"] == "wrong"
