"""Records of made runs: flat ones in which nothing is wrong but what a test changes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr.records.history import History
from rlvr.records.rollouts import EpisodeRecord, RowRecord, TurnRecord
from rlvr.trust.record import Record
from rlvr.trust.weights import WeightChange
from rlvr.types import TraceStep

SETTINGS: dict[str, Any] = {
    "algorithm": {"name": "grpo", "truncated": "keep", "kl_coef": 0.0},
    "rollout": {"group_size": 4, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "max_staleness": 0}
    | {"max_completion_tokens": 16},
    "trainer": {"learning_rate": 4e-4},
    "model": {"max_context_tokens": 64},
    "engine": {"name": "local", "dtype": "auto"},
    "evaluation": {"headline": "accuracy"},
}
STEP = {
    "reward/mean": 0.5,
    "reward/std": 0.5,
    "rollout/episodes": 64.0,
    "rollout/refilled_groups": 0.0,
    "rollout/zero_advantage_share": 0.2,
    "rollout/truncated_share": 0.0,
    "rollout/invalid_share": 0.02,
    "rollout/error_share": 0.0,
    "rollout/entropy": 0.6,
    "rollout/completion_tokens_mean": 3.0,
    "policy/entropy": 0.6,
    "policy/grad_norm": 0.8,
    "policy/learning_rate": 4e-4,
    "policy/trained_token_share": 0.8,
    "policy/mismatch_kl": 1e-6,
    "policy/approx_kl": 0.0,
}
ACCURACY = (0.4, 0.35, 0.45)  # with its interval
WEIGHTS = WeightChange(count=200_000, moved=0.04, still=0.0)
ANSWERS = ("7", "3", "7", "5")  # of a group whose gold is 7


def turn(ids: Sequence[int], text: str, prompt: Sequence[int], stop: str) -> TurnRecord:
    logprobs: list[float | None] = [-0.5] * len(ids)
    return TurnRecord(
        prompt_ids=list(prompt),
        completion_ids=list(ids),
        prompt=" ".join(map(str, prompt)),
        completion=text,
        stop_reason=stop,
        policy_version=0,
        behavior_logprobs=logprobs,
        sampling_logprobs=logprobs,
    )


def episode(group: int, sample: int, answer: str, reward: float, **changes: Any) -> EpisodeRecord:
    """A completion `answer END` of three tokens, the last of which is 1; its metric calls `7` right."""
    ids, stop = changes.pop("ids", (20 + sample, 30 + int(answer), 1)), changes.pop("stop", "stop")
    prompt = changes.pop("prompt", (10, 40 + group))
    advantages = changes.pop("advantages", [0.0] * len(prompt) + [reward - 0.5] * len(ids))
    length = len(prompt) + len(ids)
    row = RowRecord(
        ids=[*prompt, *ids],
        loss_mask=[0] * len(prompt) + [1] * len(ids),
        behavior_logprobs=[0.0] * length,
        trainer_logprobs=None,
        reference_logprobs=None,
        values=None,
        advantages=advantages,
        returns=None,
    )
    found = EpisodeRecord(
        example_id=f"example {group}",
        answer="7",
        group=group,
        sample_index=sample,
        seed=sample,
        policy_version=0,
        reward=reward,
        reward_parts={"correct": reward},
        score_status="scored",
        diagnostics={},
        stop_reason=stop,
        advantage=reward - 0.5,
        trace=[TraceStep(kind="answer", text=answer, ok=answer == "7")],
        turns=[turn(ids, f"{answer} <eoe>", prompt, stop)],
        rows=[row],
    )
    return replace(found, **changes)


def sound(group: int) -> list[EpisodeRecord]:
    """Four completions, of which the right ones are paid."""
    return [episode(group, number, answer, float(answer == "7")) for number, answer in enumerate(ANSWERS)]


def record(
    rows: Mapping[str, float | Sequence[float]] | None = None,
    *,
    episodes: Sequence[EpisodeRecord] | None = None,
    accuracy: Sequence[tuple[float, float, float]] = (ACCURACY, ACCURACY),
    weights: WeightChange | None = WEIGHTS,
    settings: Mapping[str, Any] | None = None,
    steps: int = 10,
) -> Record:
    """A run of 10 steps; `rows` has metrics of all steps, or one value a step; evaluations are at its two ends."""
    lines: list[dict[str, float]] = [{"step": 0.0}]
    for step in range(1, steps + 1):
        changed = {k: v if isinstance(v, int | float) else v[step - 1] for k, v in (rows or {}).items()}
        lines.append({"step": float(step), **STEP, **changed})
    for line, (value, low, high) in zip((lines[0], lines[-1]), accuracy, strict=False):
        line |= {"eval/made/accuracy": value, "eval/made/accuracy_low": low, "eval/made/accuracy_high": high}
    sections = SETTINGS.keys() | (settings or {}).keys()
    merged = {name: {**SETTINGS.get(name, {}), **(settings or {}).get(name, {})} for name in sections}
    history = History(folder=Path("made"), rows=lines, settings=merged, text="", notes=[])
    shown = [one for group in range(8) for one in sound(group)] if episodes is None else list(episodes)
    return Record(history, {1: shown, 10: shown}, weights)
