"""Measures every model on every task, with every retriever for search tasks; resumable, with one summary table.

DIR/benchmark.json                         the plan, and the record file of each cell
DIR/records/<model>__<task>__<retriever>.jsonl
DIR/summary.md, summary.csv, summary.json  the same table in three formats, independent of the clock
"""

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rlvr.config import Config
from rlvr.config.compose import load_task_config
from rlvr.engines.openai import open_endpoint
from rlvr.errors import ConfigError, UserError
from rlvr.evaluation.analysis import Analysis, Cell, analyze
from rlvr.evaluation.collect import MAX_PLAN_BYTES, PLAN, collect
from rlvr.evaluation.evaluate import Progress
from rlvr.evaluation.tables import differences, plain, summary_rows, table
from rlvr.lines import override_lines
from rlvr.models.export import check_weights
from rlvr.models.hub import locate
from rlvr.places import ENDPOINT
from rlvr.records.files import write_atomically, writing
from rlvr.records.graded import read_records
from rlvr.retrieval.retriever import find_retriever
from rlvr.retrieval.settings import RetrievalSettings
from rlvr.run.evaluate_sets import evaluate_into, origin_of
from rlvr.run.inference import Inference, Loaded, open_inference, open_model
from rlvr.run.sources import own_config, weights_of
from rlvr.settings import NonNegativeInt

NONE = "-"
"""The retriever of a task without search."""


class BenchmarkPlan(BaseModel):
    """`BenchmarkPlan(models=("runs/a", "openai:http://127.0.0.1/v1#b"), tasks=("rpn",), retrievers=("bm25",))`

    A task is a configuration, a task name, or a run folder (that run's task and settings). None for `num_examples` and
    `samples_per_example` means the value of each task's configuration. `changes` are overrides for every task, as in
    `--set`; `config_dir` is an additional folder of configurations and modules.
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
class Measurement:
    """One measurement of a plan; `own_task` is the task's name, e.g. `rpn` for the configuration `rpn_small`."""

    model: str
    task: str
    own_task: str
    retriever: str  # `-` without search
    config: Config

    @property
    def file(self) -> str:
        """Its record file, relative to the benchmark's folder."""
        return f"records/{_word(self.model)}__{_word(self.task)}__{_word(self.retriever)}.jsonl"

    @property
    def name(self) -> str:
        return f"{self.model} on {self.task}" + (f" with {self.retriever}" if self.retriever != NONE else "")


def _word(name: str) -> str:
    """A part of a file name; a hash distinguishes names with special characters."""
    plain = re.sub(r"[^A-Za-z0-9.-]+|_{2,}", "_", name).strip("._")[-60:]
    if plain == name:
        return plain
    return f"{plain}-{hashlib.blake2b(name.encode(), digest_size=3).hexdigest()}" if name != NONE else NONE


def make_cells(plan: BenchmarkPlan) -> tuple[Measurement, ...]:
    """The cells, task by task. ConfigError for a wrong name or setting."""
    for retriever in plan.retrievers:
        find_retriever(retriever, RetrievalSettings())
    configs = {task: _config(plan, task, None) for task in plan.tasks}
    searching = [task for task, config in configs.items() if hasattr(config.task, "retriever")]
    if plan.retrievers and not searching:
        raise ConfigError(
            f"--retrievers {','.join(plan.retrievers)}: none of {', '.join(plan.tasks)} searches documents; leave this "
            "out, or add a task that does, e.g. musique."
        )
    made = []
    for task, config in configs.items():
        variants = {str(getattr(config.task, "retriever", NONE)): config}
        if task in searching and plan.retrievers:
            variants = {retriever: _config(plan, task, retriever) for retriever in plan.retrievers}
        made += [
            Measurement(model=model, task=task, own_task=of_one.task.label, retriever=retriever, config=of_one)
            for retriever, of_one in variants.items()
            for model in plan.models
        ]
    return tuple(made)


def _config(plan: BenchmarkPlan, task: str, retriever: str | None) -> Config:
    """A task's settings, the same for every model."""
    counts = {"num_examples": plan.num_examples, "samples_per_example": plan.samples_per_example}
    lines = [f"evaluation.{name}={value}" for name, value in counts.items() if value is not None]
    if retriever is not None:
        lines += override_lines({"task.retriever": retriever})
    return load_task_config(task, [*plan.changes, *lines], config_dir=plan.config_dir, option="--tasks")


def join(folder: Path, asked: BenchmarkPlan) -> BenchmarkPlan:
    """The folder's plan extended by `asked`; `asked` alone for a new folder. The tasks' own retrievers are written out,
    so that later retrievers are added to them.

    Models, tasks and retrievers can be added, and both counts can grow: existing measurements stay valid. ConfigError
    for another setting, a smaller count, or an empty plan.
    """
    known = _read_plan(folder)
    if known is None and not (asked.models and asked.tasks):
        missing = "--tasks" if asked.models else "--models"
        raise ConfigError(f"{missing}: is needed, as {folder} holds no benchmark to go on with.")
    plan = asked if known is None else _joined(folder, known, asked)
    own = dict.fromkeys(cell.retriever for cell in make_cells(plan) if cell.retriever != NONE)
    return plan.model_copy(update={"retrievers": plan.retrievers or tuple(own)})


def _joined(folder: Path, known: BenchmarkPlan, asked: BenchmarkPlan) -> BenchmarkPlan:
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


def _read_plan(folder: Path) -> BenchmarkPlan | None:
    path = folder / PLAN
    if not path.exists():
        return None
    try:
        with path.open("rb") as file:
            return BenchmarkPlan.model_validate_json(file.read(MAX_PLAN_BYTES), strict=True)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is damaged: delete it and give --models and --tasks again (the records stay), or choose another "
            "--output-dir."
        ) from error


def write_plan(folder: Path, plan: BenchmarkPlan, cells: Iterable[Measurement]) -> None:
    names = ("file", "model", "task", "own_task", "retriever")
    data = plan.model_dump(by_alias=True) | {"cells": [{name: getattr(c, name) for name in names} for c in cells]}
    with writing(folder):
        (folder / "records").mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PLAN, json.dumps(data, indent=1).encode())


Show = Callable[[str], None]
"""Prints a line for the user."""

Bar = Callable[[str], AbstractContextManager[Progress]]
"""Shows the progress of the cell with this name."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    cells: tuple[Measurement, ...]
    analysis: Analysis | None  # None: every cell failed
    failed: tuple[Measurement, ...]

    def table(self, *, markdown: bool = False) -> str:
        """A row per cell in plan order, and a sentence per difference; all columns in Markdown."""
        measured = () if self.analysis is None else self.analysis.cells
        head, rows = summary_rows(measured, full=markdown)
        placed = [(self._place(cell), row) for cell, row in zip(measured, rows, strict=True)]
        blank = ["-"] * (len(head) - 4)
        placed += [(self.cells.index(c), (c.model, c.task, c.retriever, "failed", *blank)) for c in self.failed]
        text = table(head, [row for _, row in sorted(placed, key=lambda one: one[0])], markdown=markdown)
        if self.analysis is None or not self.analysis.comparisons:
            return text
        return f"{text}\n{differences(self.analysis.comparisons, markdown=markdown)}"

    def lines(self) -> list[dict[str, Any]]:
        """A dictionary per cell or comparison, and `"kind": "failed"`; independent of the clock."""
        lines = [] if self.analysis is None else plain(self.analysis, clock=False)
        failed = [{"kind": "failed", "model": c.model, "task": c.task, "retriever": c.retriever} for c in self.failed]
        return lines + failed

    def _place(self, analyzed: Cell) -> int:
        """Index of the best-matching plan cell. A task with several evaluation sets has several result cells per plan
        cell, and only some of them search."""
        fitting = [
            (cell.task != analyzed.task, cell.retriever != (analyzed.retriever or NONE), number)
            for number, cell in enumerate(self.cells)
            if cell.model == analyzed.model and f"{analyzed.task}/".startswith(f"{cell.task}/")
        ]
        return min(fitting)[-1]


def benchmark(folder: Path, asked: BenchmarkPlan, *, show: Show, bar: Bar) -> Benchmark:
    """Run the missing measurements of `folder`'s plan extended by `asked`, and write the summary.

    Each model is loaded once. After a kill, the next call continues with the interrupted episode. A failing cell does
    not stop the others. UserError for a wrong name or setting, before any measurement.
    """
    names = (model if model.startswith(ENDPOINT) else model.rstrip("/") or model for model in asked.models)
    models = tuple(dict.fromkeys(names))  # `runs/a` and `runs/a/` are the same
    plan = join(folder, asked.model_copy(update={"models": models}))
    cells = make_cells(plan)
    for model in plan.models:
        _check_model(model)
    write_plan(folder, plan, cells)
    failed: list[Measurement] = []
    in_order = enumerate(sorted(cells, key=lambda cell: plan.models.index(cell.model)), start=1)
    for model, group in groupby(in_order, key=lambda numbered: numbered[1].model):
        of_model = {f"[{number}/{len(cells)}] {cell.name}": cell for number, cell in group}
        failed += _measure_model(folder, model, of_model, show, bar)
    return _summarize(folder, cells, failed, show)


def _check_model(model: str) -> None:
    """UserError unless the model exists and looks complete without loading it; an endpoint must answer."""
    if model.startswith(ENDPOINT):
        open_endpoint(model)
        return
    source = Path(locate(weights_of(model)).name)
    if source.is_dir():
        check_weights(source, sorted(source.glob("*.safetensors")))


def _measure_model(
    folder: Path, model: str, cells: Mapping[str, Measurement], show: Show, bar: Bar
) -> list[Measurement]:
    """Measure the cells; returns those that failed. The weights are freed at the end of the call."""
    failed: list[Measurement] = []

    @contextmanager
    def survived(*lost: Measurement) -> Iterator[None]:
        """Report a failed cell and continue: hours of other cells must not be lost."""
        try:
            yield
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            for cell in lost:
                failed.append(cell)
                show(f"failed: {cell.name}: {error if isinstance(error, UserError) else said}")

    show_once = cache(show)
    with survived(*cells.values()):
        config = own_config(model)
        with open_model(model, config.model.pretrained if config else None) as loaded:
            for title, cell in cells.items():
                show(title)
                with survived(cell):
                    _measure(folder / cell.file, loaded, cell, show_once, bar)
    return failed


def _measure(path: Path, loaded: Loaded, cell: Measurement, show: Show, bar: Bar) -> None:
    with open_inference(loaded, cell.config, reads="held_out") as inference:
        for note in inference.notes:
            show(note)
        _check_records(path, inference, show)
        with bar(cell.name) as on_progress:
            evaluate_into(inference, path, on_progress=on_progress, on_note=show)


def _check_records(path: Path, inference: Inference, show: Show) -> None:
    """Set aside a file without any record. UserError if its records come from other weights or settings."""
    if not path.exists():
        return
    records, problems = read_records(path)
    if problems and not records:
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        show(f"{path} holds no record of an evaluation: it is now called {aside.name}, and all is measured again")
    settings = {origin_of(inference, task, "test").settings for task in inference.tasks.eval_sets}
    if any(record.settings not in settings for record in records):
        raise UserError(
            f"{path} was measured with other weights, data or settings than there are now (perhaps the model was "
            "trained on, or runs/latest is another run by now): name the model that was measured, or choose another "
            "--output-dir."
        )


def _summarize(folder: Path, cells: tuple[Measurement, ...], failed: Sequence[Measurement], show: Show) -> Benchmark:
    """Write summary.md, summary.csv and summary.json of the cells that did not fail."""
    done = {(folder / cell.file).resolve() for cell in cells if cell not in failed}
    analysis = analyze(collect([folder], only=done, tokens=False).records) if done else None
    for note in analysis.notes if analysis else ():
        show(note)
    result = Benchmark(cells=cells, analysis=analysis, failed=tuple(failed))
    texts = {
        "summary.md": result.table(markdown=True),
        "summary.csv": _csv(analysis),
        "summary.json": json.dumps(result.lines(), indent=1) + "\n",
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode("utf-8", errors="backslashreplace"))
    return result


def _csv(analysis: Analysis | None) -> str:
    """A line per cell; metric names as in docs/metrics.md, scores with their interval."""
    rows = []
    for cell in () if analysis is None else analysis.cells:
        row: dict[str, object] = {"model": cell.model, "task": cell.task, "retriever": cell.retriever or NONE}
        row |= {"split": cell.split, "settings": cell.settings, "num_examples": cell.num_examples}
        row |= {"samples_per_example": cell.samples_per_example}
        for name, score in cell.scores.items():
            row |= {name: score.value, f"{name}_low": score.low, f"{name}_high": score.high}
        rows.append(row | dict(cell.numbers))
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
