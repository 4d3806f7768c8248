"""The health table of a report: wrong, fine, and judged by a person; bounds are in tracking/signals.toml."""

import math
from collections.abc import Collection, Sequence
from typing import Any

from rlvr.report.curves import band_of
from rlvr.report.page import finite
from rlvr.tracking.health import WINDOW, Metrics, hints, is_said, solved, spread
from rlvr.tracking.signals import Signal, describe

MAX_LOOKS_BACK = 20  # earlier steps at which hints are re-evaluated


def health(history: Sequence[Metrics], penalties: Collection[str] = ()) -> list[dict[str, Any]]:
    """A row per signal, wrong ones first, then by name.

    `state` is `wrong` (a hint in `texts`), `notice` (outside the normal range of docs/metrics.md), `fine` (checked) or
    `look` (no rule, or too few steps: `bad` says when it is bad); `value` is the last number; `past` are sentences
    about hints of earlier steps only.
    """
    current = hints(history, penalties=penalties)
    now: dict[str, list[str]] = {}
    for hint in current:
        now.setdefault(hint.metric, []).append(hint.text)
    past = _past(history, penalties, {hint.key for hint in current})
    names = {name for row in history for name in row} - {"step"}
    rows = [
        _row(history, name, signal, now.get(name, []), past.get(name, []))
        for name in sorted(names)
        if (signal := describe(name)) is not None
        if name in now or (signal.bad != "-" and band_of(name) is None and name.count("/") < 3)
    ]
    if sum("reward/mean" in row for row in history) < WINDOW:  # too early for hints
        rows = [row | {"state": "look"} if row["state"] == "fine" else row for row in rows]
    order = ("wrong", "notice", "fine", "look")
    return sorted(rows, key=lambda row: (order.index(row["state"]), row["metric"]))


def _row(history: Sequence[Metrics], name: str, signal: Signal, texts: list[str], past: list[str]) -> dict[str, Any]:
    values = [row[name] for row in history if name in row]
    notice = None if texts else _notice(name, signal, values[-WINDOW:])
    if not is_said(signal, history[-WINDOW:], is_solved=solved(history)):
        notice = None
    is_checked = signal.fine is not None or signal.name == "reward/<part>"  # a part that is always 0 has a hint
    return {
        "metric": name,
        "state": "wrong" if texts else "notice" if notice else "fine" if is_checked else "look",
        "value": finite(values[-1]),
        "texts": texts or ([notice] if notice else []),
        "bad": signal.bad,
        "past": past,
    }


def _notice(name: str, signal: Signal, values: Sequence[float]) -> str | None:
    """A sentence if all of the last values are outside the normal range, or the last one is not finite."""
    if not math.isfinite(values[-1]):
        return f"{name} is not a number in the last step: something overflowed or was divided by 0."
    if len(values) >= 2 and all(math.isfinite(value) and not signal.is_fine(value) for value in values):
        return f"{name} was {spread(values)} in the last {len(values)} values. It looks wrong when: {signal.bad}."
    return None


def _past(history: Sequence[Metrics], penalties: Collection[str], now: Collection[str]) -> dict[str, list[str]]:
    """Hints of earlier steps that are no longer in `now`, with their first and last steps."""
    evaluated = [number for number, row in enumerate(history) if any(name.startswith("eval/") for name in row)]
    seen: dict[tuple[str, str], list[int]] = {}
    every = max(1, math.ceil(len(history) / MAX_LOOKS_BACK))
    for end in range(WINDOW, len(history), every):
        # hints use only evaluations and the last steps
        kept = [history[number] for number in evaluated if number < end - WINDOW] + list(history[end - WINDOW : end])
        for hint in hints(kept, penalties=penalties):
            seen.setdefault((hint.key, hint.metric), []).append(int(history[end - 1]["step"]))
    warnings: dict[str, list[str]] = {}
    for (key, metric), steps in seen.items():
        if key not in now:
            when = f"at step {steps[0]}" if len(steps) == 1 else f"from step {steps[0]} to {steps[-1]}"
            warnings.setdefault(metric, []).append(f"It looked wrong {when}, and does not any more.")
    return warnings
