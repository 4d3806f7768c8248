"""Hints for a flat curve: which metric looks wrong, and what to check first."""

import operator
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Metrics = Mapping[str, float]
WINDOW = 5  # a metric must look wrong for this many consecutive steps: one bad step is noise

_RULES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_COMPARE = {">": operator.gt, "<": operator.lt, "==": operator.eq}


@dataclass(frozen=True, kw_only=True, slots=True)
class Hint:
    """`Hint(key="truncated", text="...")`: `key` names the hint, so that each is reported once."""

    key: str
    text: str


def _holds(condition: str, metrics: Metrics) -> bool:
    """Evaluate `policy/grad_norm > 0 and policy/grad_norm < 1e-5`; false if a metric is missing."""
    parts = (part.split() for part in condition.split(" and "))
    return all(name in metrics and _COMPARE[sign](metrics[name], float(limit)) for name, sign, limit in parts)


def checked() -> dict[str, str]:
    """The metric of each hint rule by key: `{"truncated": "rollout/truncated_share", ...}`."""
    return {key: rule["when"].split()[0] for key, rule in _RULES.items()}


def hints(history: Sequence[Metrics], *, window: int = WINDOW, penalties: Collection[str] = ()) -> list[Hint]:
    """Problems in the metrics so far, oldest first; considers the last `window` steps and all evaluations.

    `penalties` are the reward parts that are normally 0.
    """
    is_solved = solved(history)
    updates = [metrics for metrics in history if "reward/mean" in metrics]  # line 0 holds only the evaluation
    recent = updates[-window:] if len(updates) >= window else []
    steps = "the last step" if window == 1 else f"each of the last {window} steps"
    found = [
        Hint(key=key, text=rule["text"].format(steps=steps))
        for key, rule in _RULES.items()
        if recent and not (is_solved and rule.get("unless_solved"))
        if all(_holds(rule["when"], metrics) for metrics in recent)
        if not any(_holds(other, metrics) for other in rule.get("unless", ()) for metrics in recent)
    ]
    return found + _silent_parts(recent, steps, penalties) + _beyond_chance(history)


def _silent_parts(recent: Sequence[Metrics], steps: str, penalties: Collection[str]) -> list[Hint]:
    """One hint per reward part that is always exactly 0 while another one is not.

    A bug in answer extraction looks like this: exact match is silently 0, and the other parts are trained on.
    """
    names = {name for metrics in recent for name in metrics}
    named = {name for name in names if name.startswith("reward/") or name == "episode/answer_em"}
    named -= {"reward/mean", "reward/std", "reward/within_group_std"}
    parts = sorted(name for name in named if name.rpartition("/")[2] not in penalties)
    silent = [name for name in parts if all(metrics.get(name) == 0 for metrics in recent)]
    if len(silent) > 1 and "episode/answer_em" in silent:
        silent.remove("episode/answer_em")  # already covered by the reward part
    if not any(metrics.get(name, 0.0) > 0 for metrics in recent for name in parts):
        return []
    return [
        Hint(
            key=f"silent/{name}",
            text=f"{name} was exactly 0 in {steps} while other parts of the reward were not: never right, or never "
            "read. Compare an answer in rollouts/ with its reference by hand, then score it with `rlvr score`.",
        )
        for name in silent
    ]


def solved(history: Sequence[Metrics]) -> bool:
    """Whether the last evaluation leaves little to learn."""
    found = [[v for n, v in m.items() if re.fullmatch("eval/[^/]+/accuracy", n)] for m in history]
    return min(next((values for values in reversed(found) if values), [0.0])) >= 0.9


def _beyond_chance(history: Sequence[Metrics]) -> list[Hint]:
    """Tasks with a significant drop in accuracy: since their best evaluation while the reward rose, or since the first
    evaluation."""
    gamed, worse = [], []
    for task in sorted({n.split("/")[1] for m in history for n in m if re.fullmatch("eval/[^/]+/accuracy_low", n)}):
        accuracy, reward = f"eval/{task}/accuracy", f"eval/{task}/reward"
        low, high = f"{accuracy}_low", f"{accuracy}_high"
        rows = [metrics for metrics in history if {low, high} <= metrics.keys()]
        rewarded = [metrics for metrics in rows if {accuracy, reward} <= metrics.keys()]
        best = max(rewarded, key=lambda metrics: metrics[accuracy], default={})
        if best and rewarded[-1][high] < best[low] and rewarded[-1][reward] > best[reward]:
            text = (
                f"Reward rises while held-out accuracy falls on {task}, by more than chance: it is being gamed. "
                "Read the newest rollouts/, and give the parts of the reward that are not the answer less weight; "
                "the checkpoint with the best accuracy is kept (trainer.keep_best)."
            )
            gamed.append(Hint(key=f"gamed/{task}", text=text))
        if rows and rows[-1][high] < rows[0][low]:
            text = (
                f"Held-out accuracy on {task} is now lower than before training, by more than chance. "
                "Lower trainer.learning_rate, and compare the reward with the metric: the reward may be gamed."
            )
            worse.append(Hint(key=f"worse/{task}", text=text))
    return gamed + worse
