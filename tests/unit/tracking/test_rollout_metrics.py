import math
from dataclasses import replace
from typing import Literal

import pytest

from rlvr.tracking.rollout_metrics import rollout_metrics
from rlvr.tracking.signals import undocumented
from rlvr.types import Episode, Group, Score, StopReason
from tests.unit.core.test_batch import completion, episode, group


def test_pitfall_14_truncated_invalid_and_failed_are_separate() -> None:
    kinds: list[tuple[StopReason, Literal["scored", "invalid", "error"]]] = [
        (StopReason.LENGTH, "scored"),
        (StopReason.STOP, "invalid"),
        (StopReason.STOP, "invalid"),
        (StopReason.LENGTH, "invalid"),
        (StopReason.ABORTED, "error"),
        (StopReason.STOP, "error"),
        (StopReason.STOP, "error"),
        (StopReason.MAX_TURNS, "scored"),
    ]
    episodes = [
        episode(
            ((1,), completion(5, stop=stop)),
            score=Score(value=math.nan if status == "error" else 0.0, status=status),
        )
        for stop, status in kinds
    ]
    metrics = rollout_metrics([group(*episodes[:4]), group(*episodes[4:])], num_refilled=0)
    assert metrics["rollout/truncated_share"] == 2 / 8
    assert metrics["rollout/invalid_share"] == 3 / 8
    assert metrics["rollout/error_share"] == 3 / 8


def test_the_numbers_of_a_small_batch_by_hand() -> None:
    good = episode(((1,), completion(5, 2)), score=Score(value=1.0, parts={"boxed": 1.0}))
    bad = episode(((1,), completion(5, 6, 2)), score=Score(value=0.0, parts={"boxed": 1.0}))
    unread = Score(value=0.0, status="invalid", parts={"boxed": 0.0})
    cut = episode(((1,), completion(5, stop=StopReason.LENGTH)), score=unread)
    failed = episode(((1,), completion(5, 2)), score=Score(value=math.nan, status="error"))
    metrics = rollout_metrics([group(good, bad), group(cut, failed)], num_refilled=3)
    assert metrics["reward/mean"] == pytest.approx(1 / 3)
    assert metrics["reward/within_group_std"] == pytest.approx(0.25)
    assert metrics["reward/boxed"] == pytest.approx(2 / 3)
    assert metrics["rollout/zero_advantage_share"] == 0.5
    assert [metrics[f"rollout/{kind}_share"] for kind in ("invalid", "error", "truncated")] == [0.25] * 3
    assert metrics["rollout/completion_tokens_mean"] == 2.0
    assert metrics["rollout/completion_tokens_max"] == 3.0
    assert metrics["rollout/refilled_groups"] == 3.0
    assert metrics["rollout/entropy"] == pytest.approx((0.3 + 0.6 + 0.1 + 0.3) / 8)


def test_pitfall_14_all_turns_of_an_episode_count_once() -> None:
    talkative = episode(((1,), completion(5, 2)), ((1, 5, 2, 7), completion(5, 5, 5, 2)), ((1, 8), completion(2)))
    short = episode(((1,), completion(2)))
    metrics = rollout_metrics([group(talkative, short)], num_refilled=0)
    assert metrics["rollout/episodes"] == 2.0
    assert metrics["rollout/completion_tokens_mean"] == (7 + 1) / 2
    assert metrics["rollout/completion_tokens_max"] == 7.0
    assert metrics["rollout/entropy"] == pytest.approx((0.3 + 1.0 + 0.1 + 0.1) / 8)


def test_tasks_of_a_mix_have_their_own_metrics() -> None:
    def of(task: str, value: float) -> Group:
        made = group(episode(((1,), completion(5, 2)), score=Score(value=value)))
        return replace(made, example=replace(made.example, metadata={"task": task}))

    metrics = rollout_metrics([of("a", 1.0), of("a", 0.0), of("b", 3.0)], num_refilled=0)
    assert metrics["task/a/reward_mean"] == 0.5
    assert (metrics["task/b/reward_mean"], metrics["task/b/episodes"]) == (3.0, 1.0)
    assert not any(name.startswith("task/") for name in rollout_metrics([of("a", 1.0)], num_refilled=0))


def with_tools(turns: int, stop: StopReason = StopReason.STOP, **counts: float) -> Episode:
    diagnostics = {"turns": float(turns), "tool_calls": 0.0, "answer_em": 1.0, "note": "x", **counts}
    made = episode(((1,), completion(5, 2)), score=Score(value=1.0, diagnostics=diagnostics))
    return replace(made, stop_reason=stop)


def test_pitfall_05_turns_and_tool_calls_are_counted() -> None:
    first = with_tools(3, tool_calls=4.0, tool_errors=2.0, malformed_calls=1.0, unknown_tools=1.0)
    counts = {"tool_calls": 6.0, "tool_errors": 3.0, "invalid_arguments": 2.0, "tool_timeouts": 1.0}
    second = with_tools(6, StopReason.MAX_TURNS, **counts, answer_em=0.0)
    none = episode(((1,), completion(5, 2)), score=Score(value=1.0))
    metrics = rollout_metrics([group(first, second), group(none, none)], num_refilled=0)
    expected = {
        "turns_mean": 4.5,
        "tool_calls_mean": 5.0,
        "max_turns_share": 0.5,
        "tool_error_share": 0.5,
        "malformed_call_share": 0.1,
        "unknown_tool_share": 0.1,
        "invalid_argument_share": 0.2,
        "tool_timeout_share": 0.1,
    }
    assert {name: metrics[f"rollout/{name}"] for name in expected} == pytest.approx(expected)
    assert metrics["episode/answer_em"] == 0.5
    assert "episode/note" not in metrics
    failed = replace(first, score=replace(first.score, value=math.nan, status="error"))
    counted = rollout_metrics([group(failed, second)], num_refilled=0)
    assert {name: counted[f"rollout/{name}"] for name in expected} == pytest.approx(expected)  # tools ran all the same
    assert "episode/tool_calls" not in metrics
    assert undocumented(metrics) == []


def test_without_calls_there_are_no_shares_of_calls() -> None:
    silent = rollout_metrics([group(with_tools(1), with_tools(1))], num_refilled=0)
    assert silent["rollout/tool_calls_mean"] == 0.0
    assert "rollout/tool_error_share" not in silent
    plain = rollout_metrics([group(episode(((1,), completion(5, 2))))], num_refilled=0)
    assert not any("tool" in name or "turns" in name for name in plain)
