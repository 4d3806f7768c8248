"""Table of a sweep's runs: the last held-out score of each setting, with an interval over its runs."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rlvr.records.history import MAX_DEPTH, History, headline_of, run_folders

NOT_COMPARED = ("seed", "name", "run_dir", "resume", "debug")
"""Settings that do not distinguish experiments, besides `tracker`."""


def runs_of(folder: Path, *, depth: int = MAX_DEPTH) -> list[Path]:
    """The folder if it is a run, else the runs inside and in the sweeps below, `seed-2` before `seed-10`; with
    `depth=1` only those directly inside."""

    def place(run: Path) -> list[list[str]]:
        names = run.relative_to(folder).parts
        return [[part.zfill(12) for part in re.findall(r"\d+|\D+", name)] for name in names]

    return sorted(run_folders(folder, depth), key=place)


def sweep_table(histories: Sequence[History]) -> list[list[str]]:
    """A header, and a row per combination of settings: differences, runs, mean score with interval, all scores."""
    settings = [dict(_leaves(history.settings)) for history in histories]
    keys = dict.fromkeys(key for one in settings for key in one)
    keys = [key for key in keys if any(one.get(key) != settings[0].get(key) for one in settings)]
    keys = [key for key in keys if not _follows_from_choice(key, keys, settings)]
    groups: dict[str, list[History]] = {}
    for history, values in zip(histories, settings, strict=True):
        said = " ".join(f"{key.removesuffix('.name')}={values.get(key)}" for key in keys)
        groups.setdefault(said or "all runs", []).append(history)
    return [["settings", "runs", "held-out score (95 % over seeds)", "each run"], *map(_row, groups, groups.values())]


def _row(label: str, histories: Sequence[History]) -> list[str]:
    """Runs of one seed are one measurement, repeated: only the first counts in mean and interval. Pruned runs count
    as far as they came."""
    scores = [last_score(history) for history in histories]
    of_seed: dict[Any, float] = {}
    for history, score in zip(histories, scores, strict=True):
        of_seed.setdefault(history.setting("seed"), score)
    runs = (
        str(len(scores))
        if len(of_seed) == len(scores)
        else f"{len(scores)} with {len(of_seed)} different seed{'s' * (len(of_seed) > 1)}"
    )
    share = str(histories[0].setting("evaluation.headline")).endswith("accuracy")
    each = ", ".join(map(_score_text, histories, scores))
    return [label, runs, mean_score([*of_seed.values()], is_share=share), each]


def _score_text(history: History, score: float) -> str:
    ended = "failed" if history.error else "pruned" if history.is_pruned else ""
    return f"{_text(score)} ({ended} at step {history.step})" if ended else _text(score)


def _follows_from_choice(key: str, keys: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether runs differ in `algorithm.clip_high` only as their `algorithm.name` does, whose default it is."""
    choice = f"{key.partition('.')[0]}.name"
    if key == choice or choice not in keys:
        return False
    values: dict[Any, list[Any]] = {}
    for one in settings:
        values.setdefault(one.get(choice), []).append(one.get(key))
    return all(value == of[0] for of in values.values() for value in of)


def last_score(history: History) -> float:
    """The last held-out headline score of a run; NaN without one."""
    name = headline_of(history.settings)
    return next((row[name] for row in reversed(history.rows) if math.isfinite(row.get(name, math.nan))), math.nan)


def mean_score(scores: Sequence[float], *, is_share: bool) -> str:
    """`0.512 (0.401 to 0.623)`: mean over runs and Student's t interval, omitted for a single run; that of a share ends
    at 0 and 1."""
    finite = [score for score in scores if math.isfinite(score)]
    if len(finite) < 2:
        return _text(finite[0] if finite else math.nan)
    from scipy.stats import t

    half = float(t.ppf(0.975, len(finite) - 1)) * stdev(finite) / math.sqrt(len(finite))
    low, high = fmean(finite) - half, fmean(finite) + half
    low, high = (max(low, 0.0), min(high, 1.0)) if is_share else (low, high)
    return f"{fmean(finite):.3f} ({low:.3f} to {high:.3f})"


def _text(score: float) -> str:
    return f"{score:.3f}" if math.isfinite(score) else "-"


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if not prefix and (name in NOT_COMPARED or name == "tracker"):
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
