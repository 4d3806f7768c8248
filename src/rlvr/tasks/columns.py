"""Data sets that are known only by the names of their columns: any JSON file, any data set of the Hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from rlvr.registry import register
from rlvr.rewards.numbers import parse_answer
from rlvr.rows import MAX_FIELD_CHARS, DataError, Row, check_file, clean, number_text, read_file
from rlvr.settings import Text, setting
from rlvr.tasks.dataset import Data
from rlvr.tasks.problems import Problem, fingerprint
from rlvr.tasks.settings import ColumnSettings, HeldOutShare, SplitSettings, TaskContext
from rlvr.tasks.splits import Part, by_hash, make_data, parse_rows

EVAL_SHARE = "share of the rows, chosen by hash, that is never trained on"


@register("task", "jsonl")
class Jsonl(ColumnSettings):
    """A file of JSON lines (or a JSON list, either also as .gz) with a question and an answer a row."""

    prompt: ClassVar[str] = "math_reasoning"
    reward = "numeric"
    path: Text = setting(description="the file to train on: .jsonl or .json, either also .gz")
    eval_path: Text | None = setting(None, "the held-out file; null: eval_share of the rows of path")
    eval_share: HeldOutShare = setting(0.1, EVAL_SHARE, only_if="eval_path is None")

    @property
    def origin(self) -> str:
        return self.path

    def check_found(self, key: str) -> None:
        for path in filter(None, (self.path, self.eval_path)):
            check_file(Path(path).expanduser())

    def load(self, context: TaskContext) -> Data:
        """One file, cut by hash, or one to train on and another to hold out."""
        train, *held_out = [list(read_file(Path(path).expanduser())) for path in (self.path, self.eval_path) if path]
        return _data(self, self.eval_share, train, held_out[0] if held_out else None, context.seed)


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
        return _data(self, self.eval_share, self.rows("train_split"), held_out, context.seed)


def _data(settings: ColumnSettings, eval_share: float, train: list[Row], held_out: list[Row] | None, seed: int) -> Data:
    part, where = _part(settings, train), settings.origin
    cut = by_hash(part, eval_share, where) if held_out is None else (part, _part(settings, held_out))
    return make_data(cut, where=where, seed=seed, max_train=settings.max_train_examples)


def _part(settings: ColumnSettings, rows: list[Row]) -> Part:
    return parse_rows(rows, lambda row: parse(row, settings), ids_are_given=settings.id_field is not None)


def parse(row: Row, settings: ColumnSettings) -> Problem | None:
    """The problem of a row, the row's other fields in its metadata; None where the answer is null or blank.

    DataError if the metric could not judge it.
    """
    question = row.text(settings.question_field)
    golds = answers(row, settings.answer_field, settings.metric)
    if not golds:
        return None
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
        metadata={**others, **({"aliases": golds[1:]} if golds[1:] else {})},
    )


def answers(row: Row, field: str, metric: str) -> tuple[str, ...]:
    """The accepted answers of a row, as text; none where the field is null or blank."""
    value = row.get(field)
    values = value if isinstance(value, list) else [value]
    golds = tuple(text for one in values if one is not None and (text := _answer(row, field, one)))
    if len(golds) > 1 and metric != "text":
        raise DataError(
            f"{row.place}: field {field!r} has {len(golds)} accepted answers, which task.metric={metric} cannot judge: "
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
