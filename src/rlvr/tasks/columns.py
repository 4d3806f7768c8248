"""Data sets described by column names: any JSON file, any data set of the Hub."""

import re
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any, ClassVar

from pydantic import PlainValidator

from rlvr import registry
from rlvr.data.conversations import is_conversation, read_prompt, read_tools
from rlvr.data.problems import OURS, Problem, fingerprint
from rlvr.data.readers import Split, is_saved
from rlvr.data.rows import (
    ENDINGS,
    DataError,
    FilledText,
    Row,
    ascii_text,
    cell,
    check_file,
    clean,
    number_text,
    read_file,
    with_kind,
)
from rlvr.errors import ConfigError, UserError
from rlvr.registry import register
from rlvr.rewards.numbers import parse_gold
from rlvr.run_view import RunView
from rlvr.settings import Text, setting
from rlvr.tasks.base import TaskContext
from rlvr.tasks.gsm8k import CALCULATION
from rlvr.tasks.layouts import INPUT, INSTRUCTION, NUM_READ, TARGET, gold_of, input_of, layout_of
from rlvr.tasks.loading import NO_GOLD, Data
from rlvr.tasks.settings import HeldOutShare, MetricSettings, RowSettings, SplitSettings
from rlvr.types import Message

SPLIT = re.compile(r"(test|dev|val|valid|validation|eval)[.-]", re.IGNORECASE)
EVAL_SHARE = "share of the rows, chosen by hash, that is never trained on"


class ColumnSettings(MetricSettings, RowSettings):
    prompt: ClassVar[str] = "math_reasoning"
    reward = "numeric"
    question_field: Text = setting(
        "question", "field with the question: a text, or chat messages, then the whole prompt"
    )
    answer_field: Text | None = setting(
        "answer", "field with the gold answer: text, a number, or a list of accepted texts; null: there are no answers"
    )
    context_fields: tuple[Text, ...] = setting(
        (), "other fields that prompts show: texts before the question, choices (a list) as lettered lines after it"
    )
    id_field: Text | None = setting(None, "field with the row's unique id; null: a hash of the question")

    @classmethod
    def recognize(cls, given: Mapping[str, Any]) -> Mapping[str, str | None]:
        """Columns under other names than ours, and the prompt, reward and metric that go with them."""
        layout = layout_of(cls._first_rows(given), given.get("question_field"), given.get("answer_field"))
        if layout is None:
            return {}
        settings: dict[str, str | None] = {"question_field": layout.question, "answer_field": layout.answer}
        if layout.has_whole_prompts:
            settings["prompt"] = "given"
        settings |= {"metric": "reward"} if layout.answer is None else {"reward": layout.kind, "metric": layout.kind}
        return {key: value for key, value in settings.items() if key not in given}

    @classmethod
    @abstractmethod
    def _first_rows(cls, given: Mapping[str, Any]) -> list[Row]:
        """Rows that show the columns; none if the settings given name no data that can be read now."""

    def check_run(self, run: RunView) -> None:
        super().check_run(run)
        if self.answer_field is not None:
            return
        reading = [name for name, part in run.reward.parts.items() if part.reads_answer]
        if reading or registry.find("metric", str(self.metric)).reads_gold:
            what = f"reward.parts.{reading[0]}" if reading else f"task.metric={self.metric}"
            rows = self._first_rows(self.model_dump())
            for row in rows:
                if is_conversation(row, self.question_field):
                    read_prompt(row, self.question_field)  # the answer may be its last message
            there = {name for row in rows for name in row.fields}
            raise ConfigError(
                f"task.answer_field=null: {ascii_text(self.origin)} has no column known to hold answers, and {what} "
                f"compares with one; name the column (there are {ascii_text(', '.join(sorted(there)))}), or choose a "
                "reward that needs none, e.g. reward=custom reward.parts.custom.function=module:function, with "
                "task.metric=reward."
            )

    def parse(self, row: Row) -> Problem | str:
        """The problem of a row; other fields become metadata. DataError if the metric could not grade it."""
        messages: tuple[Message, ...] = ()
        if is_conversation(row, self.question_field):
            messages = read_prompt(row, self.question_field, self.answer_field)
            question = "\n".join(message.content for message in messages)
        else:
            question = row.read(FilledText, self.question_field, "task.question_field")
            before, after = self._context(row)
            asked = (*before, question, input_of(row, self.question_field, self.answer_field), *after)
            question = "\n\n".join(filter(None, asked))
        golds, working = ((), "") if self.answer_field is None else answers(row, self.answer_field, self.metric)
        if not golds and self.answer_field is not None:
            return NO_GOLD
        key = fingerprint(question)
        return Problem(
            id=self._id(row, key),
            key=key,
            question=question,
            messages=messages,
            tools=read_tools(row) if messages else (),
            answer=golds[0] if golds else "",
            solution=working,
            metadata=self._others(row) | self._as_given(row, golds) | _about(golds, messages),
            row=row.fields,
        )

    def _context(self, row: Row) -> tuple[list[str], list[str]]:
        """The texts and the lists of `context_fields`, as prompts show them."""
        values = [row.read(_SHOWN, field, "task.context_fields") for field in self.context_fields]
        return [text for text in values if isinstance(text, str)], ["\n".join(c) for c in values if isinstance(c, list)]

    def _as_given(self, row: Row, golds: Sequence[str]) -> dict[str, Any]:
        """The answer as verl's functions get it, if it is not the text that was read."""
        if not golds or self.answer_field is None:
            return {}
        of_search_r1 = self.answer_field.endswith(f"ground_truth{TARGET}")
        given = row.get(self.answer_field.removesuffix(TARGET) if of_search_r1 else self.answer_field)
        return {} if given == golds[0] else {"gold_as_given": given}

    def load(self, context: TaskContext, **order: Any) -> Data:
        """As its base; notes columns that were recognized, or named by the user."""
        data = super().load(context, **order)
        unseen = self._unseen(islice(data.source.some(1), 1))
        if unseen:
            told = f"prompts do not show {ascii_text(', '.join(unseen))}: task.context_fields=[...] adds columns"
            data = replace(data, notes=(*data.notes, told))
        if (self.question_field, self.answer_field) == ("question", "answer"):
            return data
        golds = f"answers in {self.answer_field!r} (task.metric={self.metric})"
        if self.answer_field is None:
            golds = "no answers: accuracy is the share of completions with a reward above 0"
        return replace(data, notes=(*data.notes, f"prompts in {self.question_field!r}, {golds}"))

    def _unseen(self, problems: Iterable[Problem]) -> list[str]:
        """Columns of a row that its prompt does not show, where it is written here."""
        shown = (self.question_field, self.answer_field, self.id_field, self.demonstration_field, *self.context_fields)
        known = {"answer", *(name.partition(".")[0].lower() for name in shown if name)}
        rows = (problem.row for problem in problems if not problem.messages and self.question_field.lower() != "prompt")
        with_input = {INPUT} if self.question_field.lower() == INSTRUCTION else set[str]()
        return [name for row in rows for name in row if name.lower() not in known | with_input]

    def _id(self, row: Row, key: bytes) -> str:
        if self.id_field is None:
            return f"{self.name}/{key.hex()}"
        given = row.get(self.id_field, "task.id_field")
        if isinstance(given, bool) or not isinstance(given, str | int):
            raise row.wrong(self.id_field, given, "must be a text or a whole number")
        return row.read(FilledText, self.id_field) if isinstance(given, str) else str(given)

    def _others(self, row: Row) -> dict[str, Any]:
        """The fields that parts read as metadata; also the answer's, where one may know it by its own name."""
        used = {self.question_field, self.id_field, self.demonstration_field, "answer", *OURS}
        return {name: value for name, value in row.fields.items() if name not in used}

    def parser(self, key: str, seed: int) -> Callable[[Row], Problem | str]:
        """DataError if no row has the answer's field: a wrong name, not a missing answer."""
        field = self.answer_field
        is_known = cache(lambda: field is None or self.has_field(key, field))

        def parse(row: Row) -> Problem | str:
            if field is not None and field not in row and not is_known():
                row.get(field, "task.answer_field")
            return self.parse(row)

        return parse


def _about(golds: Sequence[str], messages: Sequence[Message]) -> dict[str, Any]:
    """What metrics and rewards must know of an example besides its row."""
    found: dict[str, Any] = {"aliases": tuple(golds[1:])} if golds[1:] else {}
    return found | ({} if golds else {"has_answer": False}) | ({"has_messages": True} if messages else {})


@register("task", "jsonl")
class Jsonl(ColumnSettings):
    """A file with a question and an answer per row: JSON lines, a JSON list, CSV (each also as .gz) or Parquet."""

    train_key: ClassVar[str] = "path"
    eval_key: ClassVar[str] = "eval_path"
    path: Text = setting(
        description="training file: .jsonl, .json, .csv (each also .gz) or .parquet; or a folder of such files, or of "
        "save_to_disk"
    )
    eval_path: Text | None = setting(None, "the held-out file or folder; null: eval_share of the rows of path")
    eval_share: HeldOutShare = setting(0.1, EVAL_SHARE, only_if="eval_path is None")

    @classmethod
    def _first_rows(cls, given: Mapping[str, Any]) -> list[Row]:
        path = given.get("path")
        if not isinstance(path, str):
            return []
        with suppress(UserError):
            return list(islice(cls(path=path).rows("path"), NUM_READ))
        return []

    @property
    def origin(self) -> str:
        return self.path

    def check_found(self, key: str) -> None:
        for path in filter(None, (self.path, self.eval_path)):
            for file in () if is_saved(path) else self._files(path):
                check_file(file)

    def rows(self, key: str) -> Iterator[Row]:
        path = getattr(self, key)
        if is_saved(path):
            return iter(Split(path, "", key=f"task.{key}").rows())
        return chain.from_iterable(map(read_file, self._files(path)))

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

    @classmethod
    def _first_rows(cls, given: Mapping[str, Any]) -> list[Row]:
        path, subset, split = given.get("path"), given.get("subset"), str(given.get("train_split", "train"))
        if not isinstance(path, str):
            return []
        with suppress(UserError):
            return Split(path, split.partition("+")[0], subset).rows(most=NUM_READ)
        return []

    eval_split: Text | None = setting(None, "held-out split; null: eval_share of the rows of train_split")
    eval_share: HeldOutShare = setting(0.1, EVAL_SHARE, only_if="eval_split is None")


def _accepted(value: Any) -> tuple[str, ...]:
    texts = []
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, bool) or not isinstance(text, str | int | float | None):
            which = f" (there is {with_kind(text)})" if isinstance(value, list) else ""
            raise ValueError(f"must be a text, a number or a list of them{which}")
        if isinstance(text, int | float) and not abs(text) <= sys.float_info.max:
            raise ValueError("must be a finite number")
        texts.append(number_text(text) if isinstance(text, float) else cell("" if text is None else str(text)))
    return tuple(filter(None, texts))


def _shown(value: Any) -> str | list[str]:
    """A text as it is; choices as lines: of a list, of labels with texts, or of `{"label": [...], "text": [...]}`."""
    if isinstance(value, Mapping):
        columns = [column for column in value.values() if isinstance(column, list)]
        labels, texts = columns if len(columns) == 2 == len(value) else (list(value), list(value.values()))
        labels, texts = (texts, labels) if "label" in list(value)[1:2] else (labels, texts)
    elif isinstance(value, list):
        labels, texts = [ascii_uppercase[place % 26] for place in range(len(value))], value
    else:
        return "" if value is None else clean(str(value))
    if len(labels) != len(texts) or any(isinstance(text, list | Mapping) for text in (*labels, *texts)):
        raise ValueError("must be a text, or choices: a list of texts or labels with texts")
    return [f"{label}. {clean(str(text))}" for label, text in zip(labels, texts, strict=True)]


_SHOWN = Annotated[Any, PlainValidator(_shown)]
_ACCEPTED = Annotated[Any, PlainValidator(_accepted)]


def _of_boolean(row: Row, field: str, answer: bool, metric: str) -> tuple[str, ...]:
    words = ("yes", "true") if answer else ("no", "false")
    if metric == "numeric":
        return words[:1]
    if metric != "text":
        quoted = " or ".join(f'"{word}"' for word in words)
        raise row.wrong(
            field, answer, f"must be the word that a completion is to say, {quoted}, or needs task.metric=text"
        )
    asked = " ".join(value for value in row.fields.values() if isinstance(value, str)).lower()
    return words[::-1] if "true or false" in asked else words


def answers(row: Row, field: str, metric: str) -> tuple[tuple[str, ...], str]:
    r"""The accepted answers of a row, none if the field is missing, null or blank; and the working that leads there.

    `48/2 = <<48/2=24>>24\n#### 24` and `... so \boxed{24}` are worked, for the metrics numeric and math. A boolean is
    yes or no, for the metric text also true or false, as the question asks.
    """
    if field in row and isinstance(value := row.get(field), bool):
        return _of_boolean(row, field, value, metric), ""
    golds = row.read(_ACCEPTED, field) if field in row else ()
    working = ""
    if len(golds) == 1 and metric in ("numeric", "math"):
        gold, working = gold_of(golds[0])
        golds, working = tuple(filter(None, [gold])), clean(CALCULATION.sub("", working))
    if len(golds) > 1 and metric not in ("text", "reward"):
        raise DataError(
            f"{row.place}: field {field!r} has {len(golds)} accepted answers, which task.metric={metric} cannot grade: "
            "use task.metric=text."
        )
    if metric == "numeric" and golds and parse_gold(golds[0]) is None:
        value = (
            "must be a number, yes or no for task.metric=numeric (others: math, text, exact, each with its reward=, "
            "e.g. task.metric=text reward=text)"
        )
        raise row.wrong(field, golds[0], value)
    return golds, working
