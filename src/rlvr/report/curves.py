"""The charts of a page: sections, points and descriptions."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlvr.report.page import finite
from rlvr.tracking.signals import describe

Numbers = Mapping[str, float]

MAX_POINTS = 2000  # per run; a chart is a few hundred pixels wide
_SECTIONS = (  # title, initially open, name pattern; the first match counts
    (
        "Held-out accuracy and reward",
        True,
        r"eval/[^/]+/(accuracy|sampled_accuracy|pass_at_\d+|maj_at_\d+)|reward/(mean|std|within_group_std)",
    ),
    ("Parts of the reward", True, r"reward/.*|episode/.*"),
    ("Loss", True, r"loss/.*|critic/.*"),
    ("KL, ratio and mismatch", True, r"policy/(.*kl|ratio|clip_.*|mismatch_.*|clamped_tokens)"),
    ("Entropy", True, r"(policy|rollout)/entropy"),
    ("Lengths, turns and calls", True, r"rollout/(completion_tokens_.*|turns_mean|tool_calls_mean)"),
    ("Shares of episodes and tokens", True, r"rollout/.*_share|policy/trained_token_share"),
    ("Gradient and update", True, r"policy/.*"),
    ("Tasks of a mix", True, r"task/.*"),
    ("Held-out by kind, and facts beside accuracy", False, r"eval/.*"),
    ("Speed and memory", False, r"(time|system)/.*|rollout/.*"),
    ("Other numbers", False, r".*"),
)


def sections(runs: Sequence[Sequence[Numbers]]) -> list[dict[str, Any]]:
    """`{"title", "open", "names": [..], "still": [..]}` per non-empty section; `still` are constant in all runs.

    `x_low` and `x_high` are the band of `x`, not curves. The first section is always drawn: a flat accuracy is news.
    """
    names = sorted({name for rows in runs for row in rows for name in row} - {"step"})
    left = [name for name in names if band_of(name) not in names]
    still = {name for name in left if all(_is_still(rows, name) for rows in runs)}
    drawn = []
    for title, is_open, pattern in _SECTIONS:
        shown = [name for name in left if re.fullmatch(pattern, name)]
        left = [name for name in left if name not in shown]
        if title == _SECTIONS[0][0]:
            still -= set(shown)
        if shown:
            moving = [name for name in shown if name not in still]
            flat = [name for name in shown if name in still]
            drawn.append({"title": title, "open": is_open, "names": moving, "still": flat})
    return drawn


def band_of(name: str) -> str | None:
    """`eval/rpn/accuracy` for `eval/rpn/accuracy_low`; None for other names."""
    found = re.fullmatch(r"(.+)_(?:low|high)", name)
    return found[1] if found else None


def _is_still(rows: Sequence[Numbers], name: str) -> bool:
    return len({row[name] for row in rows if name in row and math.isfinite(row[name])}) <= 1


def series(rows: Sequence[Numbers]) -> dict[str, Any]:
    """`{"steps": [..], "series": {name: [..]}}` with None for missing values.

    Long runs keep every n-th step, and every evaluated one.
    """
    every = max(1, math.ceil(len(rows) / MAX_POINTS))
    kept = [
        row
        for number, row in enumerate(rows)
        if number % every == 0 or number == len(rows) - 1 or any(name.startswith("eval/") for name in row)
    ]
    names = sorted({name for row in kept for name in row} - {"step"})
    return {
        "steps": [int(row["step"]) for row in kept],
        "series": {name: [finite(row.get(name)) for row in kept] for name in names},
    }


def meanings(names: Iterable[str]) -> dict[str, dict[str, str]]:
    rows = {name: describe(name) for name in sorted(set(names) - {"step"})}
    return {name: {"unit": row.unit, "meaning": row.meaning, "bad": row.bad} for name, row in rows.items() if row}
