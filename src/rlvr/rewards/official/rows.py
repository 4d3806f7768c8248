"""Validates and scores a row of `rlvr score`: `{"vid", "task", "prediction", "golds"}`."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, Field, PlainValidator, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from rlvr.errors import UserError
from rlvr.rewards.official import finqa, gsm8k, hotpotqa, musique

Metric = bool | int | float | str

DIGITS = 6


class RowError(UserError):
    """A row cannot be scored. The message names the field; the caller adds file and line."""


def score_row(task: Any, prediction: Any, golds: Any) -> dict[str, Metric]:
    """The official metrics of one prediction, floats rounded to 6 digits. Validates all arguments.

    RowError for an unknown task (see TASKS), or a field of the wrong type.
    """
    if not isinstance(task, str) or task not in TASKS:
        raise RowError(f"there is no task {str(task)!r:.60}; use one of {', '.join(TASKS)}.")
    asked, wanted, scorer = TASKS[task]
    try:
        metrics = scorer(_read("prediction", asked, prediction), _read("golds", wanted, golds))
    except ValueError as error:
        raise RowError(f"{error}.") from error
    return {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in metrics.items()}


_adapter = cache(TypeAdapter[Any])
_WORDS = {"missing": "there is no such field", "too_long": "give one, this task knows no aliases"}


def _read(name: str, kind: Any, value: Any) -> Any:
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as found:
        error = found.errors(include_url=False)[0]
        place = name + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
        shown = "" if error["type"] == "missing" else f"={error['input']!r:.40}"
        raise RowError(f"{place}{shown}: {_WORDS.get(error['type'], error['msg'])}.") from None


def _only(what: str, read: Callable[[Any], Any]) -> PlainValidator:
    """Validator that applies `read`, with an error that asks for `what`."""

    def validate(value: Any) -> Any:
        try:
            return read(value)
        except (TypeError, ValueError, OverflowError):
            raise PydanticCustomError("row", "give {what}", {"what": what}) from None

    return PlainValidator(validate)


def _instance(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise TypeError
    return value


def _number_or_text(value: Any) -> float | str:
    if isinstance(value, bool):
        raise TypeError
    return _instance(value, int, float, str)


Text = Annotated[str, _only("a text", lambda value: _instance(value, str))]
Id = Annotated[str, PlainValidator(str)]
Flag = Annotated[bool, _only("true or false", (False, True).index)]
Index = Annotated[int, _only("the whole number of a paragraph", int)]  # also "3", as in the official scorer
Fact = Annotated[
    tuple[Any, ...],
    _only(
        "[title, sentence index]",
        lambda value: tuple(_instance(part, str, int, float) for part in _instance(value, list)),
    ),
]
Result = Annotated[Any, _only("a number, or 'yes' or 'no'", _number_or_text)]
OneGold = Annotated[list[Text], Field(min_length=1, max_length=1)]  # for tasks without aliases


class _FinqaGold(BaseModel):
    program: Text
    exe_ans: Result
    table: list[list[Text]]


class _MusiqueRow(BaseModel):
    id: Id
    predicted_answer: Text
    predicted_support_idxs: list[Index]
    predicted_answerable: Flag


class _Paragraph(BaseModel):
    idx: Any
    is_supporting: Any


class _MusiqueGold(BaseModel):
    id: Id
    answer: Text
    answer_aliases: list[Text]
    answerable: Flag
    paragraphs: list[_Paragraph]


class _HotpotqaFile(BaseModel):
    answer: dict[Text, Text]
    sp: dict[Text, list[Fact]]


class _HotpotqaGold(BaseModel):
    id: Id = Field(alias="_id")
    answer: Text
    facts: list[Fact] = Field(alias="supporting_facts")


def _musique_file(rows: list[_MusiqueRow], golds: list[_MusiqueGold]) -> dict[str, float]:
    predictions = []
    for row in rows:
        answers, support = [row.predicted_answer], row.predicted_support_idxs
        predictions.append(
            musique.Question(id=row.id, answers=answers, support=support, is_answerable=row.predicted_answerable)
        )
    wanted = []
    for index, gold in enumerate(golds):
        supporting = [one.idx for one in gold.paragraphs if one.is_supporting]
        support = _read(f"golds[{index}].paragraphs.idx", list[Index], supporting)
        answers = [gold.answer, *gold.answer_aliases]
        wanted.append(musique.Question(id=gold.id, answers=answers, support=support, is_answerable=gold.answerable))
    return musique.file_scores(predictions, wanted)


TASKS: Mapping[str, tuple[Any, Any, Callable[[Any, Any], Mapping[str, Metric]]]] = {
    "gsm8k": (
        Text,
        OneGold,
        lambda text, golds: {"extracted": gsm8k.extract(text), "correct": gsm8k.is_correct(text, golds[0])},
    ),
    "finqa_program": (list[Text], _FinqaGold, lambda tokens, gold: finqa.score(tokens, **vars(gold))),
    "musique_answer": (Text, Annotated[list[Text], Field(min_length=1)], musique.answer_scores),
    "musique_support": (list[Index], list[Index], musique.support_scores),
    "musique_file": (list[_MusiqueRow], list[_MusiqueGold], _musique_file),
    "hotpotqa_answer": (Text, OneGold, lambda text, golds: hotpotqa.answer_scores(text, golds[0])),
    "hotpotqa_support": (list[Fact], list[Fact], hotpotqa.support_scores),
    "hotpotqa_file": (
        _HotpotqaFile,
        Annotated[list[_HotpotqaGold], Field(min_length=1)],
        lambda file, golds: hotpotqa.file_scores(file.answer, file.sp, [hotpotqa.Gold(**vars(gold)) for gold in golds]),
    ),
}
"""Task -> type of a prediction, type of the golds, scorer."""

FILE_TASKS = ("musique_file", "hotpotqa_file")  # a row of these is a whole prediction file with its gold file
