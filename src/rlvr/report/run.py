"""The report of one or more runs."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlvr.errors import UserError
from rlvr.records.checks import KINDS, read_checks
from rlvr.records.history import History, headline_of, read_history
from rlvr.report.curves import meanings, sections, series
from rlvr.report.health import health
from rlvr.report.page import Page, PageLimits, Report, pack, write_report
from rlvr.report.rollouts import PackedRollouts, pack_rollouts, rollout_files, token_texts
from rlvr.report.sweep import runs_of, sweep_table
from rlvr.trust import chain


def write_run_report(folders: Sequence[Path], output: Path | None = None, limits: PageLimits | None = None) -> Report:
    """Write the report of runs, finished or not; by default `report.html` in the first folder. A folder of runs, such
    as a sweep's, stands for all of them, also in the sweeps below. UserError for a folder without a run, or if the page
    cannot be written."""
    folders_of = {folder: runs_of(folder) for folder in folders}
    for folder, inside in folders_of.items():
        if not inside:
            raise UserError(f"{folder} is no run folder: it has no config.yaml, metrics.jsonl or rollouts/.")
    runs = [run for inside in folders_of.values() for run in inside]
    is_sweep = any(inside != [folder] for folder, inside in folders_of.items())
    return write_report(run_page(runs, limits or PageLimits(), is_sweep=is_sweep), folders[0], output)


def run_page(folders: Sequence[Path], limits: PageLimits, *, is_sweep: bool = False) -> Page:
    """Read run folders (running, finished or damaged) into one page; a sweep's page has a table of scores."""
    histories = [read_history(folder) for folder in folders]
    rollouts = _rollouts(folders, limits)
    notes = [note for history in histories for note in history.notes] + rollouts.notes
    chunks = dict(rollouts.chunks)
    for run, ids in sorted(rollouts.ids.items()):
        texts, note = token_texts(folders[run], ids)
        chunks[f"tokens-{run}"] = pack(texts)
        notes += [note] if note else []
    if rollouts.kept < rollouts.total:
        notes.append(
            f"{rollouts.total - rollouts.kept:,} of {rollouts.total:,} recorded episodes are left out; the "
            f"{rollouts.kept:,} in this page are a sample over all steps (--max-episodes, --max-mb)."
        )
    saved = [_checks(folder, notes) for folder in folders]
    rows = [history.rows for history in histories]
    names = [history.name for history in histories]  # with their parents if two are equal
    labels = [one.name if names.count(one.name) == 1 else str(one.folder) for one in histories]
    notes += [f"{label} failed: {one.error}" for label, one in zip(labels, histories, strict=True) if one.error]
    main = {
        "kind": "run",
        "title": " and ".join(labels) if len(labels) < 4 else f"{labels[0]} and {len(labels) - 1} more",
        "facts": _facts(histories),
        "notes": notes,
        "runs": [
            {
                "name": label,
                **series(history.rows),
                "health": health(history.rows, history.penalties),
                "checks": checks,
                "settings": history.text,
            }
            for label, history, checks in zip(labels, histories, saved, strict=True)
        ],
        "sections": sections(rows),
        "metrics": meanings(name for history in rows for row in history for name in row),
        "episodes": rollouts.kept,
        "sweep": sweep_table(histories) if is_sweep else None,
    }
    title = f"rlvr: {main['title']}"
    return Page(title=title, main=main, chunks=chunks, kept=rollouts.kept, total=rollouts.total, notes=notes)


def _checks(folder: Path, notes: list[str]) -> dict[str, list[dict[str, Any]]]:
    """What commands found about the run, by command, and its diagnosis; damaged files are noted."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    with suppress(UserError):  # too few steps
        by_kind["diagnose"] = [vars(check) for check in chain.checks(chain.diagnosed(folder))]
    for kind in KINDS:
        try:
            if checks := read_checks(folder, kind):
                by_kind[kind] = [vars(check) for check in checks]
        except ValueError as error:
            notes.append(str(error))
    return by_kind


def _rollouts(folders: Sequence[Path], limits: PageLimits) -> PackedRollouts:
    """As many episodes as both limits allow; repacked with fewer if too large."""
    files = [file for run, folder in enumerate(folders) for file in rollout_files(folder / "rollouts", run)]
    budget = limits.max_packed_bytes
    packed = pack_rollouts(files, limits.max_episodes)
    while packed.size > budget and packed.kept > 1:
        packed = pack_rollouts(files, max(1, int(packed.kept * 0.95 * budget / packed.size)))
    return packed


def _facts(histories: Sequence[History]) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    for history in histories:
        if len(histories) > 1:
            facts.append(("run", history.name))
        task, max_steps = history.setting("task.name"), history.setting("trainer.max_steps")
        model = history.setting("model.name_or_path") or history.setting("model.name")
        known = {"task": task, "model": model, "algorithm": history.setting("algorithm.name")}
        facts += [(name, str(value)) for name, value in known.items() if value is not None]
        of = f" of {max_steps}" if isinstance(max_steps, int) else ""
        unfinished = isinstance(max_steps, int) and history.step < max_steps
        ended = "failed" if history.error else "pruned" if history.is_pruned else "not finished"
        facts.append(("step", f"{history.step}{of}{f', {ended}' if unfinished or history.error else ''}"))
        facts += _scores(history, headline_of(history.settings))
    return facts


def _scores(history: History, name: str) -> list[tuple[str, str]]:
    rows = [row for row in history.rows if math.isfinite(row.get(name, math.nan))]
    if not rows:
        return []
    low, high = rows[-1].get(f"{name}_low"), rows[-1].get(f"{name}_high")
    interval = "" if low is None or high is None else f" (95 % interval {low:.3f} to {high:.3f})"
    label = "held-out " + name.rpartition("/")[2].replace("_", " ")
    return [(label, f"{rows[0][name]:.3f} \u2192 {rows[-1][name]:.3f}{interval}")]
