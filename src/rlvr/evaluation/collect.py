"""Finds evaluation records in files and folders, and notes unusable ones."""

import json
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlvr.errors import UserError
from rlvr.records.graded import EvaluationRecord, read_records
from rlvr.records.jsonl import few

PLAN = "benchmark.json"  # in a benchmark's folder: its cells and their record files
MAX_PLAN_BYTES = 10 << 20
MAX_PROBLEMS = 3  # damaged lines named per file; more are counted


Names = tuple[str, str, str]  # a benchmark's names for the model and task of a file, and the task's own name


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """Records in file order, the files, and a sentence for everything excluded."""

    records: tuple[EvaluationRecord, ...]
    files: tuple[Path, ...]
    notes: tuple[str, ...]


def collect(paths: Sequence[Path], *, only: Container[Path] | None = None, tokens: bool = True) -> Collected:
    """All records of files, and of `*.jsonl` and `*.jsonl.partial` inside folders. UserError if there are none.

    Records of a benchmark's folder are in the order of its plan, with the plan's names for model and task. `only`:
    resolved paths of the files to read. `tokens=False` drops token ids and logprobs, which take most of the memory.
    """
    records: list[EvaluationRecord] = []
    used: list[Path] = []
    notes: list[str] = []
    for file, names in dict(_files(paths, notes)).items():
        if only is not None and file.resolve() not in only:
            continue
        read, problems = read_records(file, tokens=tokens)
        if not read:
            problems = [f"{file} holds no record of an evaluation and is left out"]
        notes += few([f"{problem}." for problem in problems], MAX_PROBLEMS)
        if read:
            used.append(file)
            if file.suffix == ".partial":
                notes.append(f"{file} is of an unfinished evaluation: short episodes are over-represented.")
        if names is not None:  # `rpn_small` for task `rpn`; `mix/gsm8k` for one set of several
            model, task, own = names
            read = [replace(r, model=model, task=task if r.task == own else f"{task}/{r.task}") for r in read]
        records += read
    if not records:
        reason = f" ({notes[0].rstrip('.')})" if notes else ""
        raise UserError(
            f"{', '.join(map(str, paths))}: no record of an evaluation{reason}; write some with `rlvr eval MODEL "
            "--output FILE.jsonl`; runs are compared by `rlvr report`."
        )
    return Collected(records=tuple(records), files=tuple(used), notes=tuple(notes))


def _files(paths: Sequence[Path], notes: list[str]) -> Iterator[tuple[Path, Names | None]]:
    """Each file with its names in a plan."""
    for path in paths:
        if path.is_file():
            yield path, None
        elif path.is_dir():
            planned = [pair for plan in _visible(path, PLAN) for pair in _of_plan(plan, notes)]
            yield from planned
            known = {file for file, _ in planned}
            found = sorted([*_visible(path, "*.jsonl"), *_visible(path, "*.jsonl.partial")])
            # e.g. metrics.jsonl of a run
            yield from ((file, None) for file in found if file not in known and file.name != "metrics.jsonl")
        else:
            raise UserError(f"there is no file or folder {path}.")


def _visible(folder: Path, pattern: str) -> list[Path]:
    """The matching files outside hidden folders."""
    files = (file for file in folder.rglob(pattern) if file.is_file())
    return sorted(file for file in files if not any(p.startswith(".") for p in file.relative_to(folder).parts))


def _of_plan(plan: Path, notes: list[str]) -> Iterator[tuple[Path, Names]]:
    """The existing record files of a benchmark, complete or partial."""
    try:
        with plan.open("rb") as file:
            cells = json.loads(file.read(MAX_PLAN_BYTES))["cells"]
        named = [(*(str(cell[key]) for key in ("file", "model", "task", "own_task")),) for cell in cells]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        notes.append(f"{plan} is damaged: the records beside it are used under the names they have.")
        return
    for name, model, task, own_task in named:
        for one in (plan.parent / name, plan.parent / f"{name}.partial"):
            if one.is_file() and one.resolve().is_relative_to(plan.parent.resolve()):
                yield one, (model, task, own_task)
