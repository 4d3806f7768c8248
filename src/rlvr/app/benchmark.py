"""Every model on every task with every retriever: measured once, kept, and summed up in one table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlvr.app.benchmark_plan import NONE, Cell, Plan, by_model, join, make_cells, write_plan
from rlvr.app.evaluation import evaluate_into, origin_of
from rlvr.app.inference import Inference, Loaded, open_inference, open_model, run_of, weights_of
from rlvr.config.compose import load_config
from rlvr.engines.openai import PREFIX, open_endpoint
from rlvr.errors import UserError
from rlvr.evaluation.analysis import Analysis, analyze
from rlvr.evaluation.analysis import Cell as FoundCell
from rlvr.evaluation.collect import collect
from rlvr.evaluation.evaluate import Progress
from rlvr.evaluation.tables import differences, plain, summary_rows, table
from rlvr.models.export import check_weights
from rlvr.models.hub import locate
from rlvr.models.settings import PretrainedModel
from rlvr.tracking.evaluations import read_records
from rlvr.tracking.files import write_atomically

Show = Callable[[str], None]
"""Called with a line for the user."""

Bar = Callable[[str], AbstractContextManager[Progress]]
"""Shows the progress of one cell, called by its name."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What was measured, and the cells that failed."""

    cells: tuple[Cell, ...]
    analysis: Analysis | None  # None: every cell failed
    failed: tuple[Cell, ...]

    def table(self, *, markdown: bool = False) -> str:
        """A row a cell in the order of the plan, and a sentence for each difference; all columns in Markdown."""
        measured = () if self.analysis is None else self.analysis.cells
        head, rows = summary_rows(measured, full=markdown)
        placed = [(self._place(cell)[-1], row) for cell, row in zip(measured, rows, strict=True)]
        blank = ["-"] * (len(head) - 4)
        placed += [(self.cells.index(c), (c.model, c.task, c.retriever, "failed", *blank)) for c in self.failed]
        text = table(head, [row for _, row in sorted(placed, key=lambda one: one[0])], markdown=markdown)
        if self.analysis is None or not self.analysis.comparisons:
            return text
        return f"{text}\n{differences(self.analysis.comparisons, markdown=markdown)}"

    def lines(self) -> list[dict[str, Any]]:
        """A dictionary a cell or comparison, and `"kind": "failed"`; without anything of the clock."""
        lines = [] if self.analysis is None else plain(self.analysis, clock=False)
        failed = [{"kind": "failed", "model": c.model, "task": c.task, "retriever": c.retriever} for c in self.failed]
        return lines + failed

    def _place(self, found: FoundCell) -> tuple[bool, bool, int]:
        """The best fit of the plan's cells, its number last. A task of several sets gives several cells for one of the
        plan, and only some of them may search."""
        fitting = [
            (cell.task != found.task, cell.retriever != (found.retriever or NONE), number)
            for number, cell in enumerate(self.cells)
            if cell.model == found.model and f"{found.task}/".startswith(f"{cell.task}/")
        ]
        return min(fitting)


def benchmark(folder: Path, asked: Plan, *, show: Show, bar: Bar) -> Benchmark:
    """Measure what `folder` lacks of its plan and of what is asked now, and write the summary.

    A model is loaded once. Killed at any moment, the next call goes on with the episode that was lost. A cell that
    fails does not stop the others.

    Raises:
        UserError: before anything is measured: an unknown model, task, retriever or setting; see `join`.
    """
    plan = join(folder, replace(asked, models=tuple(map(_plain_name, asked.models))))
    cells = make_cells(plan)
    for model in plan.models:
        check_model(model)
    write_plan(folder, plan, cells)
    failed: list[Cell] = []
    number = 0
    for model, of_model in by_model(cells):
        for cell, failure in _measure_model(folder, model, of_model, show, bar, (number, len(cells))):
            if failure is not None:
                failed.append(cell)
                show(f"failed: {cell.name}: {failure}")
        number += len(of_model)
    return _summarize(folder, cells, failed, show)


def _plain_name(model: str) -> str:
    """`runs/a` for `runs/a/`: one model, one name."""
    return model if model.startswith(PREFIX) else model.rstrip("/") or model


def check_model(model: str) -> None:
    """Whether it is there and whole, as far as can be seen without loading it; an endpoint has to answer.

    Raises:
        UserError: it is not.
    """
    if model.startswith(PREFIX):
        open_endpoint(model)
        return
    source = weights_of(Path(model), run_of(Path(model)))
    locate(source)
    if Path(source).is_dir():
        check_weights(Path(source), sorted(Path(source).glob("*.safetensors")))


# ------------------------------------------------------------------------------------------------------------ measuring


def _measure_model(
    folder: Path, model: str, cells: Sequence[Cell], show: Show, bar: Bar, counted: tuple[int, int]
) -> Iterator[tuple[Cell, str | None]]:
    """Each cell with the reason why it failed, None if it did not. The weights go with the iterator."""
    before, total = counted
    told: set[str] = set()

    def show_once(line: str) -> None:
        if line not in told:
            told.add(line)
            show(line)

    with _trying() as problem, open_model(model, _kept(model)) as loaded:
        for number, cell in enumerate(cells, start=before + 1):
            show(f"[{number}/{total}] {cell.name}")
            with _trying() as failure:
                _measure(folder / cell.file, loaded, cell, show_once, bar)
            yield cell, failure.text
        return
    for cell in cells:
        yield cell, problem.text


@dataclass(kw_only=True)
class _Failure:
    text: str | None = None


@contextmanager
def _trying() -> Iterator[_Failure]:
    """Keep what goes wrong inside as a sentence: models, data, services and endpoints fail in ways of their own, and
    hours of other cells must not be lost with one."""
    failure = _Failure()
    try:
        yield failure
    except UserError as error:
        failure.text = str(error)
    except Exception as error:
        failure.text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def _kept(model: str) -> PretrainedModel | None:
    """How the weights under an adapter are kept: as the model's own run kept them."""
    root = None if model.startswith(PREFIX) else run_of(Path(model))
    if root is None:
        return None
    settings = load_config([], config_name="config", config_dir=str(root)).model
    return settings if isinstance(settings, PretrainedModel) else None


def _measure(path: Path, loaded: Loaded, cell: Cell, show: Show, bar: Bar) -> None:
    with open_inference(loaded, cell.config) as inference:
        for note in inference.notes:
            show(note)
        _check_records(path, inference, show)
        with bar(cell.name) as on_progress:
            evaluate_into(inference, path, on_progress=on_progress, on_note=show)


def _check_records(path: Path, inference: Inference, show: Show) -> None:
    """Put a file aside that holds no record at all. UserError if its records are of other weights or settings."""
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


# -------------------------------------------------------------------------------------------------------------- summary


def _summarize(folder: Path, cells: tuple[Cell, ...], failed: Sequence[Cell], show: Show) -> Benchmark:
    """Write summary.md, summary.csv and summary.json; the numbers are those of the cells that did not fail."""
    done = {(folder / cell.file).resolve() for cell in cells if cell not in failed}
    analysis = analyze(collect([folder], only=done, tokens=False).records) if done else None
    for note in () if analysis is None else analysis.notes:
        show(note)
    found = Benchmark(cells=cells, analysis=analysis, failed=tuple(failed))
    texts = {
        "summary.md": found.table(markdown=True),
        "summary.csv": _csv(analysis),
        "summary.json": json.dumps(found.lines(), indent=1) + "\n",
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode("utf-8", errors="backslashreplace"))
    return found


def _csv(analysis: Analysis | None) -> str:
    """A line a cell; scores with their interval, shares and means under the names of docs/metrics.md."""
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
