"""What a benchmark measures: every model on every task, with every retriever where a task searches.

DIR/benchmark.json                         the plan, and which file has the records of which cell
DIR/records/<model>__<task>__<retriever>.jsonl
DIR/summary.md, summary.csv, summary.json  the same table three times; nothing in them depends on the clock
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from rlvr.config import Config
from rlvr.config.compose import load_task_config
from rlvr.errors import ConfigError, UserError
from rlvr.evaluation.collect import MAX_PLAN_BYTES, PLAN
from rlvr.lines import override_lines
from rlvr.retrieval.retriever import find_retriever
from rlvr.retrieval.settings import RetrievalSettings
from rlvr.settings import NonNegativeInt
from rlvr.tracking.files import write_atomically, writing

NONE = "-"
"""The retriever of a task that searches nothing."""


class Plan(BaseModel):
    """`Plan(models=("runs/a", "openai:http://127.0.0.1:8000/v1#b"), tasks=("rpn", "musique"), retrievers=("bm25",))`

    A task is a configuration, a task, or the folder of a run, whose own task and settings are meant. None of
    `num_examples` and `samples_per_example`: what each task's configuration says. `changes` are overrides of every
    task's settings, as in `--set`; `config_dir` is where configurations and modules are found beside ours.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    retrievers: tuple[str, ...] = ()
    num_examples: NonNegativeInt | None = None
    samples_per_example: NonNegativeInt | None = None
    changes: tuple[str, ...] = Field(default=(), validation_alias="set", serialization_alias="set")
    config_dir: str | None = Field(default=None, exclude=True)


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
        variants = {str(getattr(config.task, "retriever", NONE)): config}
        if task in searching and plan.retrievers:
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
    return load_task_config(task, [*plan.changes, *lines], config_dir=plan.config_dir, option="--tasks")


def join(folder: Path, asked: Plan) -> Plan:
    """The plan of a folder with what is asked now added to it; just what is asked if the folder has none. The tasks'
    own retrievers are spelled out, so that adding one later adds to them.

    Models, tasks and retrievers can be added, and both counts can grow: what is measured already stays valid.

    Raises:
        ConfigError: another setting, a smaller count, or nothing to measure.
        UserError: the plan of the folder is damaged.
    """
    known = read_plan(folder)
    if known is None and not (asked.models and asked.tasks):
        missing = "--tasks" if asked.models else "--models"
        raise ConfigError(f"{missing}: is needed, as {folder} holds no benchmark to go on with.")
    plan = asked if known is None else _joined(folder, known, asked)
    own = dict.fromkeys(cell.retriever for cell in make_cells(plan) if cell.retriever != NONE)
    return plan.model_copy(update={"retrievers": plan.retrievers or tuple(own)})


def _joined(folder: Path, known: Plan, asked: Plan) -> Plan:
    if asked.changes and set(asked.changes) != set(known.changes):
        before = " ".join(f"--set {line}" for line in known.changes) or "without --set"
        raise ConfigError(
            f"--set {asked.changes[0]}: {folder} holds a benchmark made {before}, and its numbers could not be "
            "compared; choose another --output-dir."
        )
    lists = ("models", "tasks", "retrievers")
    more = {name: tuple(dict.fromkeys([*getattr(known, name), *getattr(asked, name)])) for name in lists}
    counts = asked.model_dump(include={"num_examples", "samples_per_example"}, exclude_none=True)
    known = known.model_copy(update={"config_dir": asked.config_dir})
    plan = known.model_copy(update=more | counts)
    for task in known.tasks:
        before, now = _config(known, task, None).evaluation, _config(plan, task, None).evaluation
        for count in ("num_examples", "samples_per_example"):
            old, new = getattr(before, count), getattr(now, count)  # of num_examples also "all"
            if new != old and not isinstance(new, str) and (isinstance(old, str) or new < old):
                raise ConfigError(
                    f"--{count.replace('_', '-')} {new}: {folder} holds a benchmark with {old}, which can grow but not "
                    "shrink; choose another --output-dir."
                )
    return plan


def read_plan(folder: Path) -> Plan | None:
    """The plan of a benchmark's folder, None if it has none. UserError if it cannot be read."""
    path = folder / PLAN
    if not path.exists():
        return None
    try:
        with path.open("rb") as file:
            return Plan.model_validate_json(file.read(MAX_PLAN_BYTES), strict=True)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is damaged: delete it and give --models and --tasks again (the records stay), or choose another "
            "--output-dir."
        ) from error


def write_plan(folder: Path, plan: Plan, cells: Iterable[Cell]) -> None:
    """Write DIR/benchmark.json. UserError if it cannot be written."""
    names = ("file", "model", "task", "own_task", "retriever")
    data = plan.model_dump(by_alias=True) | {"cells": [{name: getattr(c, name) for name in names} for c in cells]}
    with writing(folder):
        (folder / "records").mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PLAN, json.dumps(data, indent=1).encode())
