"""Metrics of a step's rollouts; names are defined in docs/metrics.md."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from rlvr.algorithms.advantages import is_dead_group
from rlvr.types import Episode, Group, StopReason

_SHARES_OF_CALLS = {  # counts of tool environments, and the share of calls each is reported as
    "tool_errors": "tool_error_share",
    "malformed_calls": "malformed_call_share",
    "unknown_tools": "unknown_tool_share",
    "invalid_arguments": "invalid_argument_share",
    "tool_timeouts": "tool_timeout_share",
}
TOOL_COUNTS = frozenset({"turns", "tool_calls", *_SHARES_OF_CALLS})
"""Counts in `Score.diagnostics` of episodes with tools, reported by `tool_metrics`."""


def rollout_metrics(groups: Sequence[Group], num_refilled: int, num_dropped: int | None = None) -> dict[str, float]:
    """`reward/...` over episodes without a verifier error, `rollout/...` over all episodes."""
    episodes = [episode for group in groups for episode in group.episodes]
    scores = [e.score for e in episodes if e.score.status != "error"]
    rewards = _rewards(episodes)
    spreads = [pstdev(of_group) for group in groups if (of_group := _rewards(group.episodes))]
    lengths = [sum(len(turn.completion.token_ids) for turn in e.turns) for e in episodes]
    logprobs = [p for e in episodes for turn in e.turns for p in turn.completion.behavior_logprobs]
    parts = sorted({name for score in scores for name in score.parts})
    of_tools = tool_metrics([e.score.diagnostics for e in episodes], [e.stop_reason for e in episodes])
    return {
        "reward/mean": _mean(rewards),
        "reward/std": pstdev(rewards) if rewards else 0.0,
        "reward/within_group_std": _mean(spreads),
        "rollout/episodes": float(len(episodes)),
        "rollout/refilled_groups": float(num_refilled),
        **({} if num_dropped is None else {"rollout/dropped_groups": float(num_dropped)}),
        "rollout/zero_advantage_share": _mean(is_dead_group(_rewards(g.episodes)) for g in groups),
        "rollout/truncated_share": _mean(e.stop_reason is StopReason.LENGTH for e in episodes),
        "rollout/invalid_share": _mean(e.score.status == "invalid" for e in episodes),
        "rollout/error_share": _mean(e.score.status == "error" for e in episodes),
        "rollout/empty_mask_share": _mean(length == 0 for length in lengths),
        "rollout/completion_tokens_mean": _mean(lengths),
        "rollout/completion_tokens_max": float(max(lengths)),
        # mean surprisal of sampled tokens: an unbiased estimate of the policy's entropy, except for truncated sampling
        "rollout/entropy": -_mean(logprobs),
        **{f"reward/{name}": _mean(s.parts[name] for s in scores if name in s.parts) for name in parts},
        **{f"episode/{name}": value for name, value in facts([score.diagnostics for score in scores]).items()},
        **{f"rollout/{name}": value for name, value in of_tools.items()},
        **_by_task(groups),
    }


def facts(diagnostics: Sequence[Mapping[str, float | str]]) -> dict[str, float]:
    """The mean of every numeric diagnostic except `TOOL_COUNTS`, over the episodes that have it."""
    names = sorted({name for one in diagnostics for name in one} - TOOL_COUNTS)
    found = {name: [value for one in diagnostics if isinstance(value := one.get(name), int | float)] for name in names}
    return {name: _mean(values) for name, values in found.items() if values}


def tool_metrics(
    diagnostics: Sequence[Mapping[str, float | str]], stop_reasons: Sequence[StopReason]
) -> dict[str, float]:
    """`turns_mean`, `tool_calls_mean`, `max_turns_share` of episodes that count tool calls.

    Also the shares of failed calls, if there was any call. Empty without tools.
    """
    of_tools = [(one, stop) for one, stop in zip(diagnostics, stop_reasons, strict=True) if "tool_calls" in one]
    if not of_tools:
        return {}
    sums = {name: sum(float(one.get(name, 0.0)) for one, _ in of_tools) for name in TOOL_COUNTS}
    counted = {name for one, _ in of_tools for name in one}
    known = {name: share for name, share in _SHARES_OF_CALLS.items() if sums["tool_calls"] and name in counted}
    shares = {share: sums[name] / sums["tool_calls"] for name, share in known.items()}
    return {
        "turns_mean": sums["turns"] / len(of_tools),
        "tool_calls_mean": sums["tool_calls"] / len(of_tools),
        "max_turns_share": _mean(stop is StopReason.MAX_TURNS for _, stop in of_tools),
        **shares,
    }


def _by_task(groups: Sequence[Group]) -> dict[str, float]:
    """`task/<task>/...` if a step has examples of several tasks."""
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
