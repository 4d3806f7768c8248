"""What a benchmark measures: every model on every task, with every retriever where a task searches.

DIR/benchmark.json                         the plan, and which file has the records of which cell
DIR/records/<model>__<task>__<retriever>.jsonl
DIR/summary.md, summary.csv, summary.json  the same table three times; nothing in them depends on the clock
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlvr.config import Config
from rlvr.config.compose import load_task_config
from rlvr.errors import ConfigError, UserError
from rlvr.evaluation.collect import MAX_PLAN_BYTES, PLAN
from rlvr.lines import override_lines
from rlvr.retrieval.retriever import find_retriever
from rlvr.retrieval.settings import RetrievalSettings
from rlvr.tracking.files import write_atomically, writing

NONE = "-"
"""The retriever of a task that searches nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """`Plan(models=("runs/a", "openai:http://127.0.0.1:8000/v1#b"), tasks=("rpn", "musique"), retrievers=("bm25",))`

    A task is a configuration, a task, or the folder of a run, whose own task and settings are meant. None of
    `num_examples` and `samples_per_example`: what each task's configuration says. `changes` are overrides of every
    task's settings, as in `--set`.
    """

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    retrievers: tuple[str, ...] = ()
    num_examples: int | None = None
    samples_per_example: int | None = None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One measurement of a plan; `own_task` is the task's own name, e.g. `rpn` in the configuration `rpn_small`."""

    model: str
    task: str
    own_task: str
    retriever: str  # `-` where nothing is searched
    config: Config

    @property
    def file(self) -> str:
        """Where its records are, under the benchmark's folder."""
        return f"records/{_word(self.model)}__{_word(self.task)}__{_word(self.retriever)}.jsonl"

    @property
    def name(self) -> str:
        """`runs/a on musique with bm25`"""
        return f"{self.model} on {self.task}" + (f" with {self.retriever}" if self.retriever != NONE else "")


def _word(name: str) -> str:
    """A part of a file's name; what it cannot hold is told apart by a hash."""
    plain = re.sub(r"[^A-Za-z0-9.-]+|_{2,}", "_", name).strip("._")[-60:]
    if plain == name:
        return plain
    return f"{plain}-{hashlib.blake2b(name.encode(), digest_size=3).hexdigest()}" if name != NONE else NONE


def make_cells(plan: Plan) -> tuple[Cell, ...]:
    """The cells, task by task.

    Raises:
        ConfigError: there is no such task or retriever, a setting does not fit a task, or no task searches.
    """
    for retriever in plan.retrievers:
        find_retriever(retriever, RetrievalSettings())
    configs = {task: _config(plan, task, None) for task in plan.tasks}
    searching = [task for task, config in configs.items() if hasattr(config.task, "retriever")]
    if plan.retrievers and not searching:
        raise ConfigError(
            f"--retrievers {','.join(plan.retrievers)}: none of {', '.join(plan.tasks)} searches documents; leave this "
            "out, or add a task that does, e.g. musique."
        )
    found = []
    for task, config in configs.items():
        if task not in searching:
            variants = {NONE: config}
        elif not plan.retrievers:
            variants = {str(getattr(config.task, "retriever", NONE)): config}
        else:
            variants = {retriever: _config(plan, task, retriever) for retriever in plan.retrievers}
        found += [
            Cell(model=model, task=task, own_task=of_one.task.label, retriever=retriever, config=of_one)
            for retriever, of_one in variants.items()
            for model in plan.models
        ]
    return tuple(found)


def _config(plan: Plan, task: str, retriever: str | None) -> Config:
    """A task's settings, the same ones for every model."""
    counts = {"num_examples": plan.num_examples, "samples_per_example": plan.samples_per_example}
    lines = [f"evaluation.{name}={value}" for name, value in counts.items() if value is not None]
    if retriever is not None:
        lines += override_lines({"task.retriever": retriever})
    lines = [*plan.changes, *lines]
    return load_task_config(task, lines, option="--tasks")


# --------------------------------------------------------------------------------------------------------- the folder


def join(folder: Path, asked: Plan) -> Plan:
    """The plan of a folder with what is asked now added to it; just what is asked if the folder has none.

    Models, tasks and retrievers can be added, and both counts can grow: what is measured already stays valid.

    Raises:
        ConfigError: another setting, a smaller count, or nothing to measure.
        UserError: the plan of the folder is damaged.
    """
    known = read_plan(folder)
    if known is None:
        plan = asked
        if not plan.models or not plan.tasks:
            missing = "--models" if not plan.models else "--tasks"
            raise ConfigError(f"{missing}: is needed, as {folder} holds no benchmark to go on with.")
    else:
        plan = _joined(folder, known, asked)
    return _with_retrievers(plan)


def _joined(folder: Path, known: Plan, asked: Plan) -> Plan:
    if asked.changes and set(asked.changes) != set(known.changes):
        before = " ".join(f"--set {line}" for line in known.changes) or "without --set"
        raise ConfigError(
            f"--set {asked.changes[0]}: {folder} holds a benchmark made {before}, and its numbers could not be "
            "compared; choose another --output-dir."
        )
    plan = replace(
        known,
        models=_union(known.models, asked.models),
        tasks=_union(known.tasks, asked.tasks),
        retrievers=_union(known.retrievers, asked.retrievers),
        num_examples=known.num_examples if asked.num_examples is None else asked.num_examples,
        samples_per_example=(
            known.samples_per_example if asked.samples_per_example is None else asked.samples_per_example
        ),
    )
    for task in known.tasks:
        before, now = _config(known, task, None).evaluation, _config(plan, task, None).evaluation
        for count in ("num_examples", "samples_per_example"):
            if _as_number(getattr(now, count)) < _as_number(getattr(before, count)):
                raise ConfigError(
                    f"--{count.replace('_', '-')} {getattr(now, count)}: {folder} holds a benchmark with "
                    f"{getattr(before, count)}, which can grow but not shrink; choose another --output-dir."
                )
    return plan


def _as_number(count: int | str) -> float:
    return math.inf if isinstance(count, str) else count


def _union(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*first, *second]))


def _with_retrievers(plan: Plan) -> Plan:
    """With the tasks' own retrievers spelled out, so that adding one later adds to them."""
    own = [cell.retriever for cell in make_cells(plan) if cell.retriever != NONE]
    return replace(plan, retrievers=plan.retrievers or _union(own, ()))


def read_plan(folder: Path) -> Plan | None:
    """The plan of a benchmark's folder, None if it has none. UserError if it cannot be read."""
    path = folder / PLAN
    if not path.exists():
        return None
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(MAX_PLAN_BYTES))
        return Plan(
            models=_texts(data["models"]),
            tasks=_texts(data["tasks"]),
            retrievers=_texts(data["retrievers"]),
            num_examples=_count(data["num_examples"]),
            samples_per_example=_count(data["samples_per_example"]),
            changes=_texts(data["set"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged: delete it and give --models and --tasks again (the records stay), or choose another "
            "--output-dir."
        ) from error


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError("no list of texts")
    return tuple(value)


def _count(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or value < 0):
        raise TypeError("no count")
    return value


def write_plan(folder: Path, plan: Plan, cells: Iterable[Cell]) -> None:
    """Write DIR/benchmark.json. UserError if it cannot be written."""
    data = {
        "models": plan.models,
        "tasks": plan.tasks,
        "retrievers": plan.retrievers,
        "num_examples": plan.num_examples,
        "samples_per_example": plan.samples_per_example,
        "set": plan.changes,
        "cells": [
            {"file": c.file, "model": c.model, "task": c.task, "own_task": c.own_task, "retriever": c.retriever}
            for c in cells
        ],
    }
    with writing(folder):
        (folder / "records").mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PLAN, json.dumps(data, indent=1).encode())


def by_model(cells: Sequence[Cell]) -> Iterator[tuple[str, list[Cell]]]:
    """The cells of each model together, so that it is loaded once."""
    for model in dict.fromkeys(cell.model for cell in cells):
        yield model, [cell for cell in cells if cell.model == model]
