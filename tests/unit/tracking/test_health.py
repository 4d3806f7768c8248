"""A hint when a signal looks wrong for several steps, and silence otherwise."""

import pytest

from rlvr.tracking.health import WINDOW, hints
from rlvr.tracking.signals import SIGNALS

HEALTHY = {
    "reward/mean": 0.4,
    "rollout/zero_advantage_share": 0.3,
    "rollout/truncated_share": 0.0,
    "rollout/invalid_share": 0.1,
    "rollout/error_share": 0.0,
    "policy/entropy": 0.5,
    "policy/clip_fraction": 0.05,
    "policy/mismatch_kl": 1e-8,
    "policy/mismatch_weight": 1.0,
    "policy/mismatch_capped": 0.01,
    "policy/grad_norm": 0.6,
    "policy/changed_weight_share": 1.0,
    "policy/trained_token_share": 0.7,
}
TOOLS = HEALTHY | {
    "reward/answer": 0.3,
    "reward/citation": 0.2,
    "episode/answer_em": 0.1,
    "rollout/turns_mean": 3.0,
    "rollout/tool_calls_mean": 2.5,
    "rollout/max_turns_share": 0.1,
    "rollout/tool_error_share": 0.1,
    "rollout/malformed_call_share": 0.05,
    "rollout/unknown_tool_share": 0.0,
    "rollout/invalid_argument_share": 0.05,
    "rollout/tool_timeout_share": 0.0,
    "rollout/empty_mask_share": 0.0,
}


EQUAL = {"rollout/zero_advantage_share": 1.0, "policy/trained_token_share": 0.0, "policy/grad_norm": 0.0}


def keys(history: list[dict[str, float]]) -> list[str]:
    return [hint.key for hint in hints(history)]


def test_a_healthy_run_has_no_hint() -> None:
    assert keys([HEALTHY] * 50) == []
    assert keys([TOOLS] * 50) == []
    assert keys([]) == []


SILENT = ("reward/citation", "episode/answer_em")
BEYOND = [
    *((name, s.wrong, name) for name, s in SIGNALS.items() if s.wrong is not None and "<" not in name),
    *((name, 0.0, f"silent/{name}") for name in SILENT),
    ("task/gsm8k/truncated_share", 0.6, "task/gsm8k/truncated_share"),
]


@pytest.mark.parametrize(("name", "value", "key"), BEYOND)
def test_a_signal_that_stays_wrong_is_named_after_some_steps(name: str, value: float, key: str) -> None:
    bad = TOOLS | ({"policy/trained_token_share": 0.1} if "zero_advantage" in key else {}) | {name: value}
    assert keys([TOOLS] * 3 + [bad] * (WINDOW - 1)) == []
    [hint] = hints([TOOLS] * 3 + [bad] * WINDOW)
    assert (hint.key, hint.metric) == (key, name)
    assert name in hint.text
    assert keys([bad] * (WINDOW - 1) + [TOOLS]) == []


def test_pitfall_13_a_short_run_is_graded_by_all_of_its_steps() -> None:
    bad = HEALTHY | {"rollout/truncated_share": 0.9}
    assert [hint.key for hint in hints([bad] * 3, window=3)] == ["rollout/truncated_share"]
    assert hints([HEALTHY] + [bad] * 2, window=3) == []
    [hint] = hints([HEALTHY, bad], window=1)
    assert "in the last step (" in hint.text


def test_pitfall_29_a_part_that_stays_zero_is_named() -> None:
    silent = HEALTHY | {"reward/answer": 0.0, "reward/retrieval": 0.8, "reward/length": 0.0}
    assert [hint.key for hint in hints([silent] * WINDOW, penalties={"length"})] == ["silent/reward/answer"]
    assert keys([silent | {"reward/length": -0.1}] * WINDOW) == ["silent/reward/answer"]
    assert keys([silent | {"episode/answer_em": 0.0, "reward/length": -0.1}] * WINDOW) == ["silent/reward/answer"]
    nothing = HEALTHY | {"reward/answer": 0.0, "reward/retrieval": 0.0}
    assert keys([nothing] * WINDOW) == []  # all are 0: then the reward is, which has its own hint
    assert keys([silent] * (WINDOW - 1) + [silent | {"reward/answer": 0.01, "reward/length": -0.1}]) == []


@pytest.mark.parametrize(
    ("healthy", "changes", "found"),
    [
        (
            TOOLS,
            {"rollout/malformed_call_share": 0.9, "rollout/tool_error_share": 0.9},
            ["rollout/malformed_call_share"],
        ),
        (HEALTHY, EQUAL | {"policy/changed_weight_share": 0.0}, ["rollout/zero_advantage_share"]),
        (
            HEALTHY,
            {"rollout/truncated_share": 1.0, "rollout/invalid_share": 1.0, "reward/mean": 0.0},
            ["rollout/truncated_share", "reward/mean"],
        ),
        (HEALTHY, {"reward/mean": 0.0, "rollout/zero_advantage_share": 1.0}, ["reward/mean"]),
        (
            HEALTHY,
            {"policy/mismatch_kl": 0.2, "policy/mismatch_capped": 0.4, "policy/mismatch_weight": 0.1},
            ["policy/mismatch_kl"],
        ),
        (HEALTHY, {"policy/grad_norm": 0.0, "policy/changed_weight_share": 0.0}, ["policy/grad_norm"]),
    ],
)
def test_one_cause_has_one_hint(healthy: dict[str, float], changes: dict[str, float], found: list[str]) -> None:
    assert keys([healthy | changes] * WINDOW) == found


def test_equal_rewards_of_a_solved_task_are_no_warning() -> None:
    bad = HEALTHY | {"rollout/zero_advantage_share": 1.0, "policy/trained_token_share": 0.1, "rollout/entropy": 0.0}
    assert keys([{"eval/rpn/accuracy": 0.97}] + [bad] * WINDOW) == []
    assert keys([{"eval/rpn/accuracy": 0.3}] + [bad] * WINDOW) == ["rollout/zero_advantage_share", "rollout/entropy"]


def evaluation(accuracy: float, reward: float = 0.0) -> dict[str, float]:
    """An evaluation whose interval is 0.04 to each side."""
    ends = {"eval/rpn/accuracy_low": accuracy - 0.04, "eval/rpn/accuracy_high": accuracy + 0.04}
    return {"eval/rpn/accuracy": accuracy, "eval/rpn/reward": reward} | ends


def test_an_accuracy_below_the_first_one_beyond_chance_is_named() -> None:
    first, noise, worse = evaluation(0.5), evaluation(0.45), evaluation(0.35)
    assert keys([first, noise]) == []
    assert keys([first, noise, worse]) == ["worse/rpn"]
    assert keys([first, worse, noise]) == []


def test_a_reward_that_rises_while_accuracy_falls_is_an_alarm() -> None:
    """The first evaluation is the worst, so nothing is lower than before training: only the best one tells."""
    rising = [evaluation(0.2, 0.1), evaluation(0.6, 0.5)]
    assert keys([*rising, evaluation(0.4, 0.9)]) == ["gamed/rpn"]
    assert keys([*rising, evaluation(0.57, 0.9)]) == []  # chance
    assert keys([*rising, evaluation(0.4, 0.4)]) == []  # both fall
