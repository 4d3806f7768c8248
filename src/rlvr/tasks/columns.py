"""Data sets that are known only by the names of their columns: any JSON file, any data set of the Hub."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.rewards.numbers import parse_answer
from rlvr.rows import (
    ENDINGS,
    MAX_FIELD_CHARS,
    DataError,
    Row,
    ascii_text,
    check_file,
    clean,
    number_text,
    read_file,
)
from rlvr.settings import Text, setting
from rlvr.tasks.dataset import Data
from rlvr.tasks.gsm8k import CALCULATION
from rlvr.tasks.problems import Problem, fingerprint
from rlvr.tasks.settings import ColumnSettings, HeldOutShare, SplitSettings, TaskContext
from rlvr.tasks.splits import NO_GOLD, Part, by_hash, make_data, parse_rows

SPLIT = re.compile(r"(test|dev|val|valid|validation|eval)[.-]", re.IGNORECASE)
EVAL_SHARE = "share of the rows, chosen by hash, that is never trained on"


@register("task", "jsonl")
class Jsonl(ColumnSettings):
    """A file with a question and an answer a row: JSON lines, a JSON list, CSV (each also as .gz) or Parquet."""

    prompt: ClassVar[str] = "math_reasoning"
    reward = "numeric"
    path: Text = setting(
        description="the file to train on: .jsonl, .json, .csv (each also .gz) or .parquet; or a folder of such files"
    )
    eval_path: Text | None = setting(None, "the held-out file or folder; null: eval_share of the rows of path")
    eval_share: HeldOutShare = setting(0.1, EVAL_SHARE, only_if="eval_path is None")

    @property
    def origin(self) -> str:
        return self.path

    def check_found(self, key: str) -> None:
        for path in filter(None, (self.path, self.eval_path)):
            for file in self._files(path):
                check_file(file)

    def load(self, context: TaskContext) -> Data:
        """One file, cut by hash, or one to train on and another to hold out."""

        def rows(path: str) -> list[Row]:
            return [row for file in self._files(path) for row in read_file(file)]

        return _data(self, context, lambda: rows(self.path), rows(self.eval_path) if self.eval_path else None)

    def _files(self, path: str) -> list[Path]:
        """The file, or those of a folder by name. ConfigError if it has none, or some that are meant to be held out."""
        given = Path(path).expanduser()
        if not given.is_dir():
            return [given]
        held_out = None if self.eval_path is None else Path(self.eval_path).expanduser()
        files = [file for file in sorted(given.iterdir()) if file.name.endswith(ENDINGS)]
        files = [file for file in files if held_out is None or held_out == given or not file.samefile(held_out)]
        if not files:
            raise ConfigError(f"{ascii_text(path)} has no data file; data files end in {', '.join(ENDINGS)}.")
        splits = [file.name for file in files if SPLIT.match(file.name)]
        if held_out is None and len(files) > 1 and splits:
            raise ConfigError(
                f"{ascii_text(path)} has {ascii_text(splits[0])}, which would be trained on: name it as "
                f"task.eval_path, or read the splits with task=hub task.path={ascii_text(path)}."
            )
        return files


@register("task", "hub")
class Hub(ColumnSettings, SplitSettings):
    """Any data set of the Hub (or a local folder) with a question and an answer a row."""

    prompt: ClassVar[str] = "math_reasoning"
    reward = "numeric"
    eval_split: Text | None = setting(None, "held-out split; null: eval_share of the rows of train_split")
    eval_share: HeldOutShare = setting(0.1, EVAL_SHARE, only_if="eval_split is None")

    def load(self, context: TaskContext) -> Data:
        """One split (or several, joined), cut by hash, or splits to train on and others to hold out."""
        held_out = None if self.eval_split is None else self.rows("eval_split")
        return _data(self, context, lambda: self.rows("train_split"), held_out)


def _data(
    settings: Jsonl | Hub, context: TaskContext, training: Callable[[], list[Row]], held_out: list[Row] | None
) -> Data:
    """Without rows to hold out a share of the training ones is held out."""
    reads_all, where = context.reads == "all", settings.origin
    if held_out is None:
        train, test = by_hash(_part(settings, training()), settings.eval_share, where)
    else:
        train, test = _part(settings, training()) if reads_all else None, _part(settings, held_out)
    limit = settings.max_train_examples
    return make_data((train if reads_all else None, test), where=where, seed=context.seed, max_train=limit)


def _part(settings: ColumnSettings, rows: list[Row]) -> Part:
    if all(settings.answer_field not in row for row in rows):
        rows[0].get(settings.answer_field)  # its error: no row has such a field
    return parse_rows(rows, lambda row: parse(row, settings))


def parse(row: Row, settings: ColumnSettings) -> Problem | str:
    """The problem of a row, the row's other fields in its metadata; `NO_GOLD` where there is no answer.

    DataError if the metric could not grade it.
    """
    question = row.text(settings.question_field)
    working, row = _worked(row, settings)
    golds = answers(row, settings.answer_field, settings.metric)
    if not golds:
        return NO_GOLD
    key = fingerprint(question)
    name = f"{settings.name}/{key.hex()}"
    if settings.id_field is not None:
        given = row.get(settings.id_field)
        name = "" if isinstance(given, bool) or not isinstance(given, str | int) else clean(str(given))
        if not name:
            raise row.wrong(settings.id_field, given, "a text or a whole number")
    used = {settings.question_field, settings.answer_field, settings.id_field, "aliases", "tags", "task"}
    others = {name: value for name, value in row.fields.items() if name not in used}  # a reward may want them
    return Problem(
        id=name,
        key=key,
        question=question,
        answer=golds[0],
        solution=working,
        metadata={**others, **({"aliases": golds[1:]} if golds[1:] else {})},
    )


def _worked(row: Row, settings: ColumnSettings) -> tuple[str, Row]:
    r"""The working of an answer like GSM8K's, `48/2 = <<48/2=24>>24\n#### 24`, and the row with the gold alone."""
    text = row.fields.get(settings.answer_field)
    if settings.metric not in ("numeric", "math") or not isinstance(text, str) or "####" not in text:
        return "", row
    working, _, gold = text.rpartition("####")
    return clean(CALCULATION.sub("", working)), Row(row.place, {**row.fields, settings.answer_field: gold})


def answers(row: Row, field: str, metric: str) -> tuple[str, ...]:
    """The accepted answers of a row, as text; none where the field is missing, null or blank."""
    value = row.get(field) if field in row else None
    values = value if isinstance(value, list) else [value]
    golds = tuple(text for one in values if one is not None and (text := _answer(row, field, one)))
    if len(golds) > 1 and metric != "text":
        raise DataError(
            f"{row.place}: field {field!r} has {len(golds)} accepted answers, which task.metric={metric} cannot grade: "
            "use task.metric=text."
        )
    if metric == "numeric" and golds and parse_answer(golds[0]) is None:
        raise row.wrong(field, golds[0], "a number, yes or no for task.metric=numeric (others: math, text, exact)")
    return golds


def _answer(row: Row, field: str, value: Any) -> str:
    if isinstance(value, str):
        if len(value) > MAX_FIELD_CHARS:
            raise DataError(f"{row.place}: field {field!r} has {len(value):,} characters, above {MAX_FIELD_CHARS:,}.")
        return clean(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise row.wrong(field, value, "a text, a number or a list of them")
    return number_text(value) if isinstance(value, float) else str(value)
