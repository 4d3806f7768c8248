import math
from collections.abc import Collection

import pytest

from rlvr.report.health import health
from rlvr.tracking.signals import describe

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


def run(*rows: dict[str, float]) -> list[dict[str, float]]:
    return [{"step": float(step), **FINE, **row} for step, row in enumerate(rows, start=1)]


def states(*rows: dict[str, float]) -> dict[str, str]:
    return {row["metric"]: row["state"] for row in health(run(*rows))}


def row_of(name: str, *rows: dict[str, float], penalties: Collection[str] = ()) -> dict[str, object]:
    return next(row for row in health(run(*rows), penalties) if row["metric"] == name)


def test_a_sound_run_has_nothing_wrong_and_says_what_was_checked() -> None:
    found = states(*[{}] * 8)
    assert set(found.values()) == {"fine", "look"}
    assert found["rollout/truncated_share"] == "fine"
    assert found["rollout/turns_mean"] == "look"  # no rule can tell


def test_pitfall_14_a_hint_of_the_console_is_wrong_here() -> None:
    first = health(run(*[{"rollout/truncated_share": 0.8}] * 8))[0]
    assert (first["metric"], first["state"], first["value"]) == ("rollout/truncated_share", "wrong", 0.8)
    assert "max_completion_tokens" in first["texts"][0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("rollout/truncated_share", 0.3), ("rollout/error_share", 0.01), ("eval/rpn/error_share", 0.1)),
        *(("policy/ratio", 1.3), ("policy/ratio", 0.7), ("policy/clamped_tokens", 1.0), ("policy/mismatch_kl", 0.02)),
        ("policy/approx_kl", 0.2),
    ],
)
def test_pitfall_21_a_documented_bad_value_is_worth_a_look(name: str, value: float) -> None:
    row = row_of(name, *[{name: value}] * 8)
    metric = describe(name)
    assert metric is not None
    assert row["state"] == "notice"
    assert metric.bad in str(row["texts"])


def test_pitfall_16_nan_is_noticed_at_once() -> None:
    row = row_of("loss/total", {"loss/total": 1.0}, {"loss/total": math.nan})
    assert (row["state"], row["value"]) == ("notice", None)
    assert "not a number" in str(row["texts"])


def test_equal_rewards_of_a_solved_task_are_no_fault() -> None:
    dead = {"rollout/zero_advantage_share": 1.0, "reward/std": 0.0, "policy/grad_norm": 0.0}
    unsolved = states(*[dead] * 8)
    assert {unsolved["reward/std"], unsolved["rollout/zero_advantage_share"]} <= {"wrong", "notice"}
    solved = states(*[dead] * 7, {**dead, "eval/rpn/accuracy": 0.99})
    assert (solved["reward/std"], solved["rollout/zero_advantage_share"]) == ("fine", "fine")


def test_what_looked_wrong_once_and_is_fine_now_is_remembered() -> None:
    name = "rollout/truncated_share"
    row = row_of(name, *[{name: 0.8}] * 19, *[{name: 0.0}] * 21)
    assert row["state"] == "fine"
    assert row["past"] == ["It looked wrong from step 5 to 19, and does not any more."]


def test_a_gamed_reward_is_told_at_the_accuracy() -> None:
    def evaluated(accuracy: float, reward: float) -> dict[str, float]:
        interval = {"eval/rpn/accuracy_low": accuracy - 0.05, "eval/rpn/accuracy_high": accuracy + 0.05}
        return {"eval/rpn/accuracy": accuracy, "eval/rpn/reward": reward, **interval}

    row = row_of("eval/rpn/accuracy", evaluated(0.8, 0.5), evaluated(0.2, 0.9))
    assert row["state"] == "wrong"
    assert "gamed" in str(row["texts"])


def test_penalties_are_not_silent_parts() -> None:
    silent = [{"reward/length": 0.0, "reward/correct": 0.5}] * 8
    assert row_of("reward/length", *silent)["state"] == "wrong"
    assert row_of("reward/length", *silent, penalties={"length"})["state"] == "fine"


def test_nothing_is_called_fine_that_no_rule_looks_at() -> None:
    """A flat reward and a loss that does not fall are for a person to see."""
    found = states(*[{"reward/mean": 0.5, "loss/value": 0.5, "reward/within_group_std": 0.0}] * 8)
    assert {found[name] for name in ("reward/mean", "loss/value", "reward/within_group_std")} == {"look"}


def test_nothing_is_fine_before_there_are_enough_steps() -> None:
    dead = {"policy/entropy": 0.0, "rollout/truncated_share": 1.0, "policy/ratio": 1.0}
    assert set(states(*[dead] * 4).values()) == {"look", "notice"}
    assert states(*[dead] * 5)["policy/entropy"] == "wrong"
