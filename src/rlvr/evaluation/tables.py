"""An analysis as terminal text, Markdown, and plain data."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from io import StringIO
from typing import Any

from pydantic_core import to_jsonable_python

from rlvr.evaluation.analysis import Analysis, Cell, Cost
from rlvr.evaluation.compare import Comparison
from rlvr.evaluation.intervals import Interval
from rlvr.printable import printable
from rlvr.records.graded import EvaluationRecord

TableRow = tuple[str, ...]
MAX_SHOWN = 300  # characters of a prompt or completion shown of an example
WIDTH = 100
LONGEST_SCORE, LONGEST_WORD = len("100.0% (96.3 to 100.0)"), 12
"""Number columns up to these widths are not folded."""

COLUMNS = 3  # cells per terminal table


def percent(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return f"{interval.value:.1%} ({interval.low * 100:.1f} to {interval.high * 100:.1f})"


def number(name: str, value: float | None) -> str:
    """A share in percent, a count without decimals, other numbers with two."""
    if value is None or not math.isfinite(value):
        return "-"
    if name.endswith("_share") or name == "valid_steps":
        return f"{value:.1%}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.2f}"


def readable(name: str) -> str:
    """`pass_at_4` as `pass@4`, `3_operators` as `3 operators`."""
    name = re.sub(r"_at_(\d+)$", r"@\1", name)
    return re.sub(r"\b1_(operator|hop)s\b", r"1 \1", name).replace("_", " ")


def score_name(name: str) -> str:
    """`accuracy_3_operators` as `accuracy, 3 operators`, others as `readable`."""
    kind = name.removeprefix("accuracy_")
    return readable(name) if kind == name else f"accuracy, {readable(kind)}"


def score_rows(cells: Sequence[Cell]) -> list[TableRow]:
    """A row per score: its name, and its value with interval for each cell."""
    counts = ("examples", *(f"{cell.num_examples:,}" for cell in cells))
    names = _names(*(cell.scores for cell in cells))
    return [counts, *((readable(n), *(percent(c.scores.get(n)) for c in cells)) for n in names if "part_" not in n)]


def _names(*mappings: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _kind_rows(cells: Sequence[Cell]) -> list[TableRow]:
    kinds = [{kind.tag: kind.accuracy for kind in cell.kinds} for cell in cells]
    tags = sorted(_names(*kinds), key=_natural)
    return [(readable(tag), *(percent(accuracy.get(tag)) for accuracy in kinds)) for tag in tags]


def _natural(tag: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", tag) if part)


def _number_rows(cells: Sequence[Cell]) -> list[TableRow]:
    """A row per other number: failure shares, reward parts, verifier facts."""
    names = _names(*(cell.numbers for cell in cells))
    rows = [(readable(name), *(number(name, cell.numbers.get(name)) for cell in cells)) for name in names]
    for name in _names(*(cell.scores for cell in cells)):
        if "part_" in name:
            found = [cell.scores.get(name) for cell in cells]
            rows.append((readable(name), *("-" if one is None else f"{one.value:.2f}" for one in found)))
    return rows


def summary_rows(cells: Sequence[Cell], *, full: bool = True) -> tuple[TableRow, list[TableRow]]:
    """The table of a benchmark: header, and a row per cell. `full=False`: columns that fit a terminal."""
    sampled = [name for name in _names(*(cell.scores for cell in cells)) if "part_" not in name and name != "accuracy"]
    scores = ["accuracy", *(name for name in sampled if full or name == "sampled_accuracy")]
    shares = ("invalid_share", "truncated_share", "error_share") if full else ()
    more = ("completion tokens",) if full else ()
    short = () if full else [name for name in sampled if name == "answer_f1"]  # Markdown has the interval
    head = ("model", "task", "retriever", "examples", *map(readable, [*scores, *short, *shares]), *more)
    return head, [
        (
            f"{cell.model} {cell.variant}".rstrip(),
            cell.task,
            cell.retriever or "-",
            f"{cell.num_examples:,}",
            *(percent(cell.scores.get(name)) for name in scores),
            *(percent(cell.scores.get(name)).partition(" ")[0] for name in short),
            *(number(name, cell.numbers.get(name)) for name in shares),
            *(number(name, cell.cost.completion_tokens) for name in more),
        )
        for cell in cells
    ]


def report(analysis: Analysis, *, markdown: bool = False, examples: bool = True) -> str:
    """Tables, differences and examples: lines of at most `WIDTH` characters, or Markdown."""
    parts = []
    for task, split in analysis.tasks:
        cells = analysis.of_task(task, split)
        title = f"{task}, {'held-out examples' if split == 'test' else f'split {split}'}"
        parts.append(f"{'## ' if markdown else ''}{title}\n")
        width = len(cells) if markdown else COLUMNS
        parts += [_of_cells(cells[start : start + width], markdown) for start in range(0, len(cells), width)]
        compared = [one for one in analysis.comparisons if (one.task, one.split) == (task, split)]
        if compared:
            parts.append(f"{'### ' if markdown else ''}Differences\n")
            parts.append(differences(compared, markdown=markdown))
        if examples:
            parts += [_examples(cell, markdown) for cell in cells if cell.best or cell.worst]
            parts += [_disagreeing(one, markdown) for one in compared if one.disagreeing]
    return "\n".join(parts)


def _of_cells(cells: Sequence[Cell], markdown: bool) -> str:
    costs = [field.name for field in fields(Cost)]
    blocks = {
        "scores": score_rows(cells),
        "by kind": _kind_rows(cells),
        "what else": _number_rows(cells),
        "cost an episode": [(readable(n), *(number(n, getattr(c.cost, n)) for c in cells)) for n in costs],
    }
    names = [cell.name for cell in cells]
    return "\n".join(table((title, *names), rows, markdown=markdown) for title, rows in blocks.items() if rows)


def table(head: TableRow, rows: Sequence[TableRow], *, markdown: bool) -> str:
    """Aligned columns under their headers; long words are folded only for terminals."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.MARKDOWN if markdown else box.SIMPLE_HEAD, show_edge=markdown, pad_edge=markdown)
    for index, texts in enumerate(zip(head, *rows, strict=True)):
        longest = max(map(len, texts))
        is_number = index > 0 and longest <= (LONGEST_SCORE if any("%" in text for text in texts) else LONGEST_WORD)
        justify = "right" if index else "left"
        drawn.add_column(Text(_safe(texts[0], markdown)), overflow="fold", justify=justify, no_wrap=is_number)
    for row in rows:
        drawn.add_row(*(Text(_safe(text, markdown)) for text in row))
    out = StringIO()
    Console(file=out, width=100_000 if markdown else WIDTH, color_system=None, legacy_windows=False).print(drawn)
    lines = [line.rstrip() for line in out.getvalue().split("\n")]
    return "\n".join(line for line in lines if line) + "\n"


def differences(comparisons: Sequence[Comparison], *, markdown: bool = False) -> str:
    lines = [f"- {_safe(one.sentence, markdown)}" for one in comparisons]
    return "\n".join(lines if markdown else map(_wrapped, lines)) + "\n"


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _examples(cell: Cell, markdown: bool) -> str:
    lines = []
    for title, records in (("Best", cell.best), ("Worst", cell.worst)):
        if records:
            lines += ["", f"{'### ' if markdown else ''}{title} of {_safe(cell.name, markdown)}", ""]
            lines += [line for record in records for line in _example(record, [("said", record)], markdown)]
    return "\n".join(lines[1:]) + "\n"


def _disagreeing(one: Comparison, markdown: bool) -> str:
    counts = f"{len(one.only_first):,} that only {one.first} gets right, {len(one.only_second):,} only {one.second}"
    lines = [f"{'### ' if markdown else ''}Where they disagree: {_safe(counts, markdown)}", ""]
    for first, second in one.disagreeing:
        lines += _example(first, [(one.first, first), (one.second, second)], markdown)
    return "\n".join(lines) + "\n"


def _example(record: EvaluationRecord, said: Sequence[tuple[str, EvaluationRecord]], markdown: bool) -> list[str]:
    lines = [f"{record.example_id}: {_tail(record.prompt)}", f"  gold: {_tail(record.expected)}"]
    for name, one in said:
        grade = "right" if one.correct else "no answer" if one.answer is None else "wrong"
        last = one.turns[-1].completion if one.turns else ""
        lines.append(f"  {name} ({grade}, {one.num_completion_tokens:,} tokens, {one.stop_reason}): {_tail(last)}")
    shown = [_safe(line, False) for line in lines]
    return [f"    {line}" for line in shown] if markdown else [_wrapped(line) for line in shown]


def _tail(text: str) -> str:
    """The end of the text, where the answer is, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_SHOWN else f"...{line[-MAX_SHOWN:]}"


def _safe(text: str, markdown: bool) -> str:
    """Without control characters; for Markdown without markup."""
    plain = printable(text, keep="")
    return re.sub(r"([\\|<>`*\[\]])", r"\\\1", plain) if markdown else plain


def plain(analysis: Analysis, *, clock: bool = True) -> list[dict[str, Any]]:
    """A JSON object per cell (`"kind": "cell"`) and per comparison; `clock=False` omits seconds.

    Records are given by their examples' ids, NaN is null.
    """
    entries = []
    for cell in analysis.cells:
        ids = {name: [record.example_id for record in getattr(cell, name)] for name in ("best", "worst")}
        entries.append({"kind": "cell", **to_jsonable_python(replace(cell, **ids), inf_nan_mode="null")})
        if not clock:
            del entries[-1]["cost"]["seconds"]
    for record in analysis.comparisons:
        line = {"kind": "comparison", **to_jsonable_python(replace(record, disagreeing=()), inf_nan_mode="null")}
        del line["disagreeing"]
        entries.append(line | {"is_real": record.is_real, "sentence": record.sentence})
    return entries
