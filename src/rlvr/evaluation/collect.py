"""Finding the records of evaluations in files and folders; what cannot be used is named."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlvr.config.messages import nearest
from rlvr.errors import UserError
from rlvr.tracking.evaluations import EvaluationRecord, read_records

PLAN = "benchmark.json"
"""In the folder of a benchmark: what is measured, and which file has the records of it."""

MAX_PLAN_BYTES = 10 << 20
MAX_PROBLEMS = 3
"""Damaged lines of one file that are told one by one."""

_OTHERS = frozenset({"metrics.jsonl"})  # of runs: no records, and no surprise


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What a benchmark calls the model and the task of a file; `own_task` is what the task calls itself."""

    model: str
    task: str
    own_task: str

    def call(self, record: EvaluationRecord) -> EvaluationRecord:
        """`rpn_small` for the task `rpn` of the configuration `rpn_small`; `mix/gsm8k` for a set of several."""
        task = self.task if record.task == self.own_task else f"{self.task}/{record.task}"
        return replace(record, model=self.model, task=task)


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """Records in the order of their files, the files they came from, and a sentence for whatever was left out."""

    records: tuple[EvaluationRecord, ...]
    files: tuple[Path, ...]
    notes: tuple[str, ...]


def collect(paths: Sequence[Path], *, only: Container[Path] | None = None, tokens: bool = True) -> Collected:
    """All records of files, and of the `*.jsonl` and `*.jsonl.partial` inside folders.

    A benchmark's folder gives its records in the order of its plan, with the names that the plan has for model and
    task. `only`: resolved paths of the files to read. `tokens=False` leaves out what is told token by token,
    which takes most of the memory.

    Raises:
        UserError: no such file or folder, or there is no record in any of them.
    """
    records: list[EvaluationRecord] = []
    used: list[Path] = []
    notes: list[str] = []
    for file, planned in dict(_files(paths, notes)).items():
        if only is not None and file.resolve() not in only:
            continue
        found, problems = read_records(file, tokens=tokens)
        notes += _told(file, found, problems)
        if found:
            used.append(file)
            if file.suffix == ".partial":
                notes.append(f"{file} is of an evaluation that has not ended: what ends early is in it first.")
        records += [record if planned is None else planned.call(record) for record in found]
    if not records:
        folder = next((path for path in paths if path.is_dir()), paths[0].parent)
        raise UserError(
            f"{', '.join(map(str, paths))}: no record of an evaluation"
            + (f" ({notes[0].rstrip('.')})" if notes else "")
            + f"; write some with `rlvr eval MODEL --output {folder}/NAME.jsonl`."
        )
    return Collected(records=tuple(records), files=tuple(used), notes=tuple(notes))


def _files(paths: Sequence[Path], notes: list[str]) -> Iterator[tuple[Path, Planned | None]]:
    """Each file, with what a plan says of it."""
    for path in paths:
        if path.is_file():
            yield path, None
        elif path.is_dir():
            plans = sorted(_visible(path, PLAN))
            planned = [pair for plan in plans for pair in _of_plan(plan, notes)]
            yield from planned
            known = {file for file, _ in planned}
            found = sorted([*_visible(path, "*.jsonl"), *_visible(path, "*.jsonl.partial")])
            yield from ((file, None) for file in found if file not in known and file.name not in _OTHERS)
        else:
            parent = path.parent
            near = nearest(path.name, [one.name for one in parent.iterdir()]) if parent.is_dir() else None
            raise UserError(
                f"there is no file or folder {path}" + (f"; did you mean {parent / near}?" if near else ".")
            )


def _visible(folder: Path, pattern: str) -> Iterator[Path]:
    """Files that fit, but none in hidden folders."""
    for file in folder.rglob(pattern):
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts):
            yield file


def _of_plan(plan: Path, notes: list[str]) -> Iterator[tuple[Path, Planned]]:
    """The files of a benchmark that are there, finished or begun."""
    try:
        with plan.open("rb") as file:
            cells = json.loads(file.read(MAX_PLAN_BYTES))["cells"]
        names = ("model", "task", "own_task")
        named = [(str(cell["file"]), Planned(**{name: str(cell[name]) for name in names})) for cell in cells]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        notes.append(f"{plan} is damaged: the records beside it are used under the names they have.")
        return
    for name, planned in named:
        file = plan.parent / name
        for one in (file, file.with_name(f"{file.name}.partial")):
            if one.is_file() and one.resolve().is_relative_to(plan.parent.resolve()):
                yield one, planned


def _told(file: Path, found: Sequence[EvaluationRecord], problems: Sequence[str]) -> list[str]:
    if problems and not found:
        return [f"{file} holds no record of an evaluation and is left out."]
    told = [f"{problem}." for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        told.append(f"{file}: {len(problems) - MAX_PROBLEMS:,} more lines are damaged and left out.")
    return told
