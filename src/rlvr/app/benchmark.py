"""Every model on every task with every retriever: measured once, kept, and summed up in one table."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from rlvr.app.benchmark_plan import NONE, Cell, Plan, join, make_cells, write_plan
from rlvr.app.evaluation import evaluate_into, origin_of
from rlvr.app.inference import Inference, Loaded, open_inference, open_model
from rlvr.app.sources import own_config, weights_of
from rlvr.engines.openai import PREFIX, open_endpoint
from rlvr.errors import UserError
from rlvr.evaluation.analysis import Analysis, analyze
from rlvr.evaluation.analysis import Cell as FoundCell
from rlvr.evaluation.collect import collect
from rlvr.evaluation.evaluate import Progress
from rlvr.evaluation.tables import differences, plain, summary_rows, table
from rlvr.models.export import check_weights
from rlvr.models.hub import locate
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
    names = (model if model.startswith(PREFIX) else model.rstrip("/") or model for model in asked.models)
    models = tuple(dict.fromkeys(names))  # `runs/a` and `runs/a/` are one
    plan = join(folder, asked.model_copy(update={"models": models}))
    cells = make_cells(plan)
    for model in plan.models:
        check_model(model)
    write_plan(folder, plan, cells)
    failed: list[Cell] = []
    in_order = enumerate(sorted(cells, key=lambda cell: plan.models.index(cell.model)), start=1)
    for model, group in groupby(in_order, key=lambda numbered: numbered[1].model):
        of_model = {f"[{number}/{len(cells)}] {cell.name}": cell for number, cell in group}
        failed += _measure_model(folder, model, of_model, show, bar)
    return _summarize(folder, cells, failed, show)


def check_model(model: str) -> None:
    """Whether it is there and whole, as far as can be seen without loading it; an endpoint has to answer.

    Raises:
        UserError: it is not.
    """
    if model.startswith(PREFIX):
        open_endpoint(model)
        return
    source = weights_of(model)
    locate(source)
    if Path(source).is_dir():
        check_weights(Path(source), sorted(Path(source).glob("*.safetensors")))


def _measure_model(folder: Path, model: str, cells: Mapping[str, Cell], show: Show, bar: Bar) -> list[Cell]:
    """Measure the cells, by what is shown of each; those that failed. The weights go at the end of the call."""
    failed: list[Cell] = []

    @contextmanager
    def survived(*lost: Cell) -> Iterator[None]:
        """Models, data, services and endpoints fail in many ways, and hours of other cells must not be lost."""
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


def _measure(path: Path, loaded: Loaded, cell: Cell, show: Show, bar: Bar) -> None:
    with open_inference(loaded, cell.config, reads="held_out") as inference:
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


def _summarize(folder: Path, cells: tuple[Cell, ...], failed: Sequence[Cell], show: Show) -> Benchmark:
    """Write summary.md, summary.csv and summary.json; the numbers are those of the cells that did not fail."""
    done = {(folder / cell.file).resolve() for cell in cells if cell not in failed}
    analysis = analyze(collect([folder], only=done, tokens=False).records) if done else None
    for note in analysis.notes if analysis else ():
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
