"""Data sets that are known only by the names of their columns: any JSON file, any data set of the Hub."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.rewards.numbers import parse_answer
from rlvr.tasks.dataset import Data
from rlvr.tasks.problems import Problem, fingerprint
from rlvr.tasks.readers import read_file, read_split, split_names
from rlvr.tasks.rows import MAX_FIELD_CHARS, DataError, Row, clean, number_text
from rlvr.tasks.splits import Part, by_hash, joined, make_data, parse_rows

if TYPE_CHECKING:
    from rlvr.config.schema import HubTask, JsonlTask

    Settings = HubTask | JsonlTask


def load_jsonl(settings: JsonlTask, seed: int) -> Data:
    """One file, cut by hash, or one to train on and another to hold out."""
    train = _part(settings, list(read_file(Path(settings.path).expanduser())))
    if settings.eval_path is None:
        return _cut(settings, train, seed)
    held_out = _part(settings, list(read_file(Path(settings.eval_path).expanduser())))
    return make_data(train, held_out, where=settings.path, seed=seed, max_train=settings.max_train_examples)


def load_hub(settings: HubTask, seed: int) -> Data:
    """One split (or several, joined), cut by hash, or splits to train on and others to hold out."""
    train = _part(settings, _rows(settings, "train_split", settings.train_split))
    if settings.eval_split is None:
        return _cut(settings, train, seed)
    held_out = _part(settings, _rows(settings, "eval_split", settings.eval_split))
    return make_data(train, held_out, where=settings.path, seed=seed, max_train=settings.max_train_examples)


def _rows(settings: HubTask, key: str, splits: str) -> list[Row]:
    wanted = [settings.question_field, settings.answer_field]
    wanted += [settings.id_field] if settings.id_field else []
    names = split_names(f"task.{key}", splits)
    return joined([read_split(settings.path, name, subset=settings.subset, fields=wanted) for name in names])


def _cut(settings: Settings, part: Part, seed: int) -> Data:
    train, held_out = by_hash(part, settings.eval_share, settings.path)
    return make_data(train, held_out, where=settings.path, seed=seed, max_train=settings.max_train_examples)


def _part(settings: Settings, rows: list[Row]) -> Part:
    return parse_rows(rows, lambda row: parse(row, settings), ids_are_given=settings.id_field is not None)


def parse(row: Row, settings: Settings) -> Problem | None:
    """The problem of a row; None where the answer is null or blank. DataError if the metric could not judge it."""
    question = row.text(settings.question_field)
    golds = answers(row, settings.answer_field, settings.metric)
    if not golds:
        return None
    key = fingerprint(question)
    return Problem(
        id=f"{settings.name}/{key.hex()}" if settings.id_field is None else _id(row, settings.id_field),
        key=key,
        question=question,
        answer=golds[0],
        metadata={"aliases": golds[1:]} if golds[1:] else {},
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
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise row.wrong(field, value, "a text, a number or a list of them")
    return number_text(value) if isinstance(value, float) else str(value)


def _id(row: Row, field: str) -> str:
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, str | int) or not clean(str(value)):
        raise row.wrong(field, value, "a text or a whole number")
    return clean(str(value))
