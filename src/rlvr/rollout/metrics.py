"""What a step's rollouts look like, in numbers. Names are defined in docs/metrics.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev

from rlvr.types import Episode, Group, StopReason


def rollout_metrics(groups: Sequence[Group], num_refilled: int) -> dict[str, float]:
    """`reward/...` over the episodes whose verifier gave a verdict, `rollout/...` over all episodes."""
    episodes = [episode for group in groups for episode in group.episodes]
    judged = [e for e in episodes if e.score.status != "error"]
    spreads = [pstdev(rewards) for group in groups if (rewards := _rewards(group.episodes))]
    lengths = [sum(len(turn.completion.token_ids) for turn in e.turns) for e in episodes]
    logprobs = [p for e in episodes for turn in e.turns for p in turn.completion.behavior_logprobs]
    rewards = _rewards(judged)
    metrics = {
        "reward/mean": _mean(rewards),
        "reward/std": pstdev(rewards) if rewards else 0.0,
        "reward/within_group_std": _mean(spreads),
        "rollout/episodes": float(len(episodes)),
        "rollout/refilled_groups": float(num_refilled),
        "rollout/zero_advantage_share": _mean(len(set(_rewards(g.episodes))) <= 1 for g in groups),
        "rollout/truncated_share": _mean(e.stop_reason is StopReason.LENGTH for e in episodes),
        "rollout/invalid_share": _mean(e.score.status == "invalid" for e in episodes),
        "rollout/error_share": _mean(e.score.status == "error" for e in episodes),
        "rollout/completion_tokens_mean": _mean(lengths),
        "rollout/completion_tokens_max": float(max(lengths)),
        # the mean surprise of what was sampled is an unbiased estimate of the policy's entropy
        "rollout/entropy": -_mean(logprobs),
    }
    parts = sorted({name for e in judged for name in e.score.parts})
    metrics |= {f"reward/{name}": _mean(e.score.parts[name] for e in judged if name in e.score.parts) for name in parts}
    return metrics | _by_task(groups)


def _by_task(groups: Sequence[Group]) -> dict[str, float]:
    """`task/<task>/...` where a step holds examples of several tasks."""
    by_name: dict[str, list[Episode]] = {}
    for group in groups:
        by_name.setdefault(str(group.example.metadata.get("task", "")), []).extend(group.episodes)
    if len(by_name) < 2:
        return {}
    metrics: dict[str, float] = {}
    for name, episodes in sorted(by_name.items()):
        metrics[f"task/{name}/episodes"] = float(len(episodes))
        metrics[f"task/{name}/reward_mean"] = _mean(_rewards(episodes))
        metrics[f"task/{name}/invalid_share"] = _mean(e.score.status == "invalid" for e in episodes)
        metrics[f"task/{name}/truncated_share"] = _mean(e.stop_reason is StopReason.LENGTH for e in episodes)
    return metrics


def _rewards(episodes: Iterable[Episode]) -> list[float]:
    return [e.score.value for e in episodes if not math.isnan(e.score.value)]


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return fmean(values) if values else 0.0
