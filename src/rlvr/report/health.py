"""The health table of docs/metrics.md: wrong, fine, and judged by a person."""

import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rlvr.report.curves import band_of
from rlvr.report.page import finite
from rlvr.tracking.health import WINDOW, Metrics, checked, hints, solved
from rlvr.tracking.metrics import describe

MAX_LOOKS_BACK = 20  # earlier steps at which hints are re-evaluated

# Signals with a bound in docs/metrics.md and no hint: a notice if all of the last values are beyond it.
_NOTICES: tuple[tuple[str, Callable[[float], bool]], ...] = (
    (r"rollout/truncated_share|task/[^/]+/truncated_share", lambda x: x > 0.2),
    (r"rollout/invalid_share|task/[^/]+/invalid_share", lambda x: x > 0.5),
    (r"rollout/(error|empty_mask|tool_timeout)_share|eval/[^/]+/error_share", lambda x: x > 0),
    (r"policy/ratio", lambda x: abs(x - 1) > 0.1),
    (r"policy/approx_kl", lambda x: x > 0.1),
    (r"policy/mismatch_kl", lambda x: x > 0.01),
    (r"policy/mismatch_capped", lambda x: x > 0.05),
    (r"policy/clamped_tokens", lambda x: x > 0),
    (r"policy/(learning_rate|trained_tokens)", lambda x: x == 0),
    (r"policy/changed_weight_share", lambda x: x < 0.2),
    (r"reward/std", lambda x: x == 0),
    (r"eval/[^/]+/truncated_share", lambda x: x > 0.05),
    (r"time/evaluation_share", lambda x: x > 0.5),
    (r"time/other_share", lambda x: x > 0.2),
    (r"loss/.*|reward/mean", lambda x: False),  # no bound, only NaN is reported
)
_SOLVED_IS_FINE = ("reward/std", "policy/trained_tokens")

# A person must judge a loss or reward curve; with a critic, equal rewards in a group are no problem.
_NEVER_FINE = r"loss/.*|reward/(mean|within_group_std)"


def health(history: Sequence[Metrics], penalties: Collection[str] = ()) -> list[dict[str, Any]]:
    """A row per signal, wrong ones first, then by name.

    `state` is `wrong` (a hint in `texts`), `notice` (outside the normal range of docs/metrics.md), `fine` (checked) or
    `look` (no rule, or too few steps: `bad` says when it is bad); `value` is the last number; `past` are sentences
    about hints of earlier steps only.
    """
    current = hints(history, penalties=penalties)
    now: dict[str, list[str]] = {}
    for hint in current:
        now.setdefault(_metric_of(hint.key), []).append(hint.text)
    past = _past(history, penalties, {hint.key for hint in current})
    names = {name for row in history for name in row} - {"step"}
    rows = [_row(history, name, now.pop(name, []), past.get(name, [])) for name in sorted(names) if _is_signal(name)]
    if sum("reward/mean" in row for row in history) < WINDOW:  # too early for hints
        rows = [row | {"state": "look"} if row["state"] == "fine" else row for row in rows]
    rows += [_row(history, name, texts, []) for name, texts in now.items()]  # hints about other names
    order = ("wrong", "notice", "fine", "look")
    return sorted(rows, key=lambda row: (order.index(row["state"]), row["metric"]))


def _is_signal(name: str) -> bool:
    metric = describe(name)
    return metric is not None and metric.bad != "-" and band_of(name) is None and name.count("/") < 3


def _row(history: Sequence[Metrics], name: str, texts: list[str], past: list[str]) -> dict[str, Any]:
    metric = describe(name)
    bad = "" if metric is None else metric.bad
    values = [row[name] for row in history if name in row]
    wrong = next((check for pattern, check in _NOTICES if re.fullmatch(pattern, name)), None)
    notice = None if texts or wrong is None else _notice(name, values[-WINDOW:], wrong, bad)
    if name in _SOLVED_IS_FINE and solved(history):
        notice = None
    is_checked = wrong is not None or name in checked().values() or name.startswith("reward/")
    is_checked = is_checked and not re.fullmatch(_NEVER_FINE, name)
    return {
        "metric": name,
        "state": "wrong" if texts else "notice" if notice else "fine" if is_checked else "look",
        "value": finite(values[-1]) if values else None,
        "texts": texts or ([notice] if notice else []),
        "bad": bad,
        "past": past,
    }


def _notice(name: str, values: Sequence[float], wrong: Callable[[float], bool], bad: str) -> str | None:
    """A sentence if all of the last values are outside the normal range, or the last one is not finite."""
    if values and not math.isfinite(values[-1]):
        return f"{name} is not a number in the last step: something overflowed or was divided by 0."
    if len(values) >= 2 and all(math.isfinite(value) and wrong(value) for value in values):
        shown = " to ".join(dict.fromkeys(f"{value:.4g}" for value in (min(values), max(values))))
        return f"{name} was {shown} in the last {len(values)} values. It looks wrong when: {bad}."
    return None


def _metric_of(key: str) -> str:
    """The metric of a hint: `silent/<metric>`, `gamed/<task>`, `worse/<task>`, or the key of a rule."""
    kind, _, rest = key.partition("/")
    if kind == "silent":
        return rest
    if kind in ("gamed", "worse"):
        return f"eval/{rest}/accuracy"
    return checked()[key]


def _past(history: Sequence[Metrics], penalties: Collection[str], now: Collection[str]) -> dict[str, list[str]]:
    """Hints of earlier steps that are no longer in `now`, with their first and last steps."""
    evaluated = [number for number, row in enumerate(history) if any(name.startswith("eval/") for name in row)]
    seen: dict[str, list[int]] = {}
    every = max(1, math.ceil(len(history) / MAX_LOOKS_BACK))
    for end in range(WINDOW, len(history), every):
        # hints use only evaluations and the last steps
        kept = [history[number] for number in evaluated if number < end - WINDOW] + list(history[end - WINDOW : end])
        for hint in hints(kept, penalties=penalties):
            seen.setdefault(hint.key, []).append(int(history[end - 1]["step"]))
    found: dict[str, list[str]] = {}
    for key, steps in seen.items():
        if key not in now:
            when = f"at step {steps[0]}" if len(steps) == 1 else f"from step {steps[0]} to {steps[-1]}"
            found.setdefault(_metric_of(key), []).append(f"It looked wrong {when}, and does not any more.")
    return found
