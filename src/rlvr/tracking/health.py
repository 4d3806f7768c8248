"""Hints for a flat curve: which metric looks wrong, and what to check first. Bounds and words are in signals.toml."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlvr.tracking.signals import LINKS, SIGNALS, Signal, describe, wrong_at

Metrics = Mapping[str, float]
WINDOW = 5  # a metric must look wrong for this many consecutive steps: one bad step is noise


@dataclass(frozen=True, kw_only=True, slots=True)
class Hint:
    """`Hint(key="rollout/truncated_share", metric="rollout/truncated_share", text="...")`; `key` names the hint, so
    that each is reported once."""

    key: str
    metric: str
    text: str


def hints(history: Sequence[Metrics], *, window: int = WINDOW, penalties: Collection[str] = ()) -> list[Hint]:
    """Problems in the metrics so far, causes before what they cause; considers the last `window` steps and all
    evaluations.

    `penalties` are the reward parts that are normally 0.
    """
    is_solved = solved(history)
    updates = [metrics for metrics in history if "reward/mean" in metrics]  # line 0 holds only the evaluation
    recent = updates[-window:] if len(updates) >= window else []
    steps = "the last step" if window == 1 else f"each of the last {window} steps"
    named = {name: signal for name in (recent[-1] if recent else ()) if (signal := describe(name)) is not None}
    wrong = [
        (name, signal)
        for name, signal in named.items()
        if all(name in metrics and signal.is_wrong(metrics[name]) for metrics in recent)
        if is_said(signal, recent, is_solved=is_solved)
    ]
    order = list(SIGNALS.values())
    wrong.sort(key=lambda pair: (list(LINKS).index(pair[1].link), order.index(pair[1])))
    told = [Hint(key=name, metric=name, text=_sentence(name, signal, recent, steps)) for name, signal in wrong]
    return told + _silent_parts(recent, steps, penalties) + _beyond_chance(history)


def is_said(signal: Signal, recent: Sequence[Metrics], *, is_solved: bool) -> bool:
    """Whether nothing else says more than the signal, and the task is not solved where that explains it."""
    worse = any(SIGNALS[name].is_wrong(row[name]) for name in signal.unless for row in recent if name in row)
    sound = any(SIGNALS[name].is_fine(row[name]) for name in signal.unless_fine for row in recent if name in row)
    return not (worse or sound or (is_solved and signal.unless_solved))


def _sentence(name: str, signal: Signal, recent: Sequence[Metrics], steps: str) -> str:
    return (
        f"{signal.says} in {steps} ({name} {spread(row[name] for row in recent)}; wrong: {wrong_at(signal)}): "
        f"{signal.leads}. {signal.remedy}"
    )


def spread(values: Iterable[float]) -> str:
    """`0.3 to 0.5`, or `0.5` for equal ones."""
    sizes = list(values)
    return " to ".join(dict.fromkeys(f"{value:.3g}" for value in (min(sizes), max(sizes))))


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
            metric=name,
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
            gamed.append(Hint(key=f"gamed/{task}", metric=accuracy, text=text))
        if rows and rows[-1][high] < rows[0][low]:
            text = (
                f"Held-out accuracy on {task} is now lower than before training, by more than chance. "
                "Lower trainer.learning_rate, and compare the reward with the metric: the reward may be gamed."
            )
            worse.append(Hint(key=f"worse/{task}", metric=accuracy, text=text))
    return gamed + worse
