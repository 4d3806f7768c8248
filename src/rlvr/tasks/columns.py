"""Data sets described by column names: any JSON file, any data set of the Hub."""

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import PlainValidator

from rlvr.data.problems import Problem, fingerprint
from rlvr.data.rows import (
    ENDINGS,
    Cell,
    DataError,
    FilledText,
    Row,
    ascii_text,
    check_file,
    clean,
    number_text,
    read_file,
)
from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.rewards.numbers import parse_answer
from rlvr.settings import Text, setting
from rlvr.tasks.dataset import NO_GOLD
from rlvr.tasks.gsm8k import CALCULATION
from rlvr.tasks.settings import HeldOutShare, MetricSettings, RowSettings, SplitSettings

SPLIT = re.compile(r"(test|dev|val|valid|validation|eval)[.-]", re.IGNORECASE)
EVAL_SHARE = "share of the rows, chosen by hash, that is never trained on"


class ColumnSettings(MetricSettings, RowSettings):
    prompt: ClassVar[str] = "math_reasoning"
    reward = "numeric"
    question_field: Text = setting("question", "field with the question")
    answer_field: Text = setting("answer", "field with the gold answer: text, a number, or a list of accepted texts")
    id_field: Text | None = setting(None, "field with the row's unique id; null: a hash of the question")

    def parse(self, row: Row) -> Problem | str:
        """The problem of a row; other fields become metadata. DataError if the metric could not grade it."""
        question = row.read(FilledText, self.question_field, "task.question_field")
        working, row = self._worked(row)
        golds = answers(row, self.answer_field, self.metric)
        if not golds:
            return NO_GOLD
        key = fingerprint(question)
        name = f"{self.name}/{key.hex()}"
        if self.id_field is not None:
            given = row.get(self.id_field, "task.id_field")
            if isinstance(given, bool) or not isinstance(given, str | int):
                raise row.wrong(self.id_field, given, "must be a text or a whole number")
            name = row.read(FilledText, self.id_field) if isinstance(given, str) else str(given)
        used = {
            self.question_field,
            self.answer_field,
            self.id_field,
            self.demonstration_field,
            "aliases",
            "tags",
            "task",
        }
        others = {name: value for name, value in row.fields.items() if name not in used}  # available to rewards
        aliases = {"aliases": golds[1:]} if golds[1:] else {}
        return Problem(
            id=name, key=key, question=question, answer=golds[0], solution=working, metadata={**others, **aliases}
        )

    def parser(self, key: str, seed: int) -> Callable[[Row], Problem | str]:
        """DataError if no row has the answer's field: a wrong name, not a missing answer."""
        is_known = cache(lambda: self.has_field(key, self.answer_field))

        def parse(row: Row) -> Problem | str:
            if self.answer_field not in row and not is_known():
                row.get(self.answer_field, "task.answer_field")
            return self.parse(row)

        return parse

    def _worked(self, row: Row) -> tuple[str, Row]:
        r"""The working of a GSM8K-like answer, `48/2 = <<48/2=24>>24\n#### 24`, and the row with the gold alone."""
        text = row.fields.get(self.answer_field)
        if self.metric not in ("numeric", "math") or not isinstance(text, str) or "####" not in text:
            return "", row
        working, _, gold = row.read(Cell, self.answer_field).rpartition("####")
        return clean(CALCULATION.sub("", working)), Row(row.place, {**row.fields, self.answer_field: gold})


@register("task", "jsonl")
class Jsonl(ColumnSettings):
    """A file with a question and an answer per row: JSON lines, a JSON list, CSV (each also as .gz) or Parquet."""

    train_key: ClassVar[str] = "path"
    eval_key: ClassVar[str] = "eval_path"
    path: Text = setting(
        description="training file: .jsonl, .json, .csv (each also .gz) or .parquet; or a folder of such files"
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

    def rows(self, key: str) -> Iterator[Row]:
        return chain.from_iterable(map(read_file, self._files(getattr(self, key))))

    def _files(self, path: str) -> list[Path]:
        """The file, or a folder's files by name. ConfigError for none, or for names of held-out splits."""
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
    """Any data set of the Hub (or a local folder) with a question and an answer per row."""

    eval_split: Text | None = setting(None, "held-out split; null: eval_share of the rows of train_split")
    eval_share: HeldOutShare = setting(0.1, EVAL_SHARE, only_if="eval_split is None")


def _accepted(value: Any) -> tuple[str, ...]:
    texts = []
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, bool) or not isinstance(one, str | int | float | None):
            raise ValueError("must be a text, a number or a list of them")
        if isinstance(one, int | float) and not abs(one) <= sys.float_info.max:
            raise ValueError("must be a finite number")
        texts.append(number_text(one) if isinstance(one, float) else clean("" if one is None else str(one)))
    return tuple(filter(None, texts))


def answers(row: Row, field: str, metric: str) -> tuple[str, ...]:
    """The accepted answers of a row; empty if the field is missing, null or blank."""
    golds = row.read(Annotated[Any, PlainValidator(_accepted)], field) if field in row else ()
    if len(golds) > 1 and metric != "text":
        raise DataError(
            f"{row.place}: field {field!r} has {len(golds)} accepted answers, which task.metric={metric} cannot grade: "
            "use task.metric=text."
        )
    if metric == "numeric" and golds and parse_answer(golds[0]) is None:
        said = "must be a number, yes or no for task.metric=numeric (others: math, text, exact)"
        raise row.wrong(field, golds[0], said)
    return golds
