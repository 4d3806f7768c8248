"""One row of `rlvr score`, checked and scored: `{"vid", "task", "prediction", "golds"}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlvr.errors import UserError
from rlvr.rewards.official import finqa, gsm8k, hotpotqa, musique

Metric = bool | int | float | str

DIGITS = 6


class RowError(UserError):
    """A row cannot be scored. The message names the field, not the file and the line."""


def score_row(task: Any, prediction: Any, golds: Any) -> dict[str, Metric]:
    """The official metrics of one prediction, floats rounded to 6 digits.

    Args:
        task: a key of TASKS; unchecked, like the others.
        prediction: text, list of indices, facts or tokens, or a whole file, as the task asks.
        golds: text, list, object or list of objects.

    Raises:
        RowError: unknown task, or a field of the wrong type.
    """
    if not isinstance(task, str) or task not in TASKS:
        raise RowError(f"there is no task {str(task)!r:.60}; use one of {', '.join(TASKS)}.")
    try:
        metrics = TASKS[task](prediction, golds)
    except ValueError as error:
        raise RowError(f"{error}.") from error
    return {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in metrics.items()}


def _gsm8k(prediction: Any, golds: Any) -> dict[str, Metric]:
    text, gold = _text(prediction, "prediction"), _only(golds)
    return {"extracted": gsm8k.extract(text), "correct": gsm8k.is_correct(text, gold)}


def _finqa_program(prediction: Any, golds: Any) -> dict[str, Metric]:
    tokens = _texts(prediction, "prediction")
    gold = _mapping(golds, "golds", ("program", "exe_ans", "table"))
    answer = gold["exe_ans"]
    if isinstance(answer, bool) or not isinstance(answer, int | float | str):
        raise RowError(f"golds.exe_ans is {_kind(answer)}; give a number, or 'yes' or 'no'.")
    table = [_texts(row, f"golds.table[{index}]") for index, row in enumerate(_list(gold["table"], "golds.table"))]
    return finqa.score(tokens, _text(gold["program"], "golds.program"), answer, table)


def _musique_answer(prediction: Any, golds: Any) -> dict[str, Metric]:
    text, answers = _text(prediction, "prediction"), _texts(golds, "golds")
    if not answers:
        raise RowError("golds is empty; give the answer and its aliases.")
    return {**musique.answer_scores(text, answers)}


def _musique_support(prediction: Any, golds: Any) -> dict[str, Metric]:
    return {**musique.support_scores(_indices(prediction, "prediction"), _indices(golds, "golds"))}


def _musique_file(prediction: Any, golds: Any) -> dict[str, Metric]:
    predictions = [
        _musique_prediction(row, f"prediction[{index}]") for index, row in enumerate(_list(prediction, "prediction"))
    ]
    rows = [_musique_gold(row, f"golds[{index}]") for index, row in enumerate(_list(golds, "golds"))]
    return {**musique.file_scores(predictions, rows)}


def _musique_prediction(row: Any, name: str) -> musique.Prediction:
    row = _mapping(row, name, ("id", "predicted_answer", "predicted_support_idxs", "predicted_answerable"))
    return musique.Prediction(
        id=str(row["id"]),
        answer=_text(row["predicted_answer"], f"{name}.predicted_answer"),
        support=_indices(row["predicted_support_idxs"], f"{name}.predicted_support_idxs"),
        is_answerable=_flag(row["predicted_answerable"], f"{name}.predicted_answerable"),
    )


def _musique_gold(row: Any, name: str) -> musique.Gold:
    row = _mapping(row, name, ("id", "answer", "answer_aliases", "answerable", "paragraphs"))
    paragraphs = [
        _mapping(paragraph, f"{name}.paragraphs[{index}]", ("idx", "is_supporting"))
        for index, paragraph in enumerate(_list(row["paragraphs"], f"{name}.paragraphs"))
    ]
    supporting = [paragraph["idx"] for paragraph in paragraphs if paragraph["is_supporting"]]
    return musique.Gold(
        id=str(row["id"]),
        answers=[
            _text(row["answer"], f"{name}.answer"),
            *_texts(row["answer_aliases"], f"{name}.answer_aliases"),
        ],
        support=_indices(supporting, f"{name}.paragraphs.idx"),
        is_answerable=_flag(row["answerable"], f"{name}.answerable"),
    )


def _hotpotqa_answer(prediction: Any, golds: Any) -> dict[str, Metric]:
    return {**hotpotqa.answer_scores(_text(prediction, "prediction"), _only(golds))}


def _hotpotqa_support(prediction: Any, golds: Any) -> dict[str, Metric]:
    return {**hotpotqa.support_scores(_facts(prediction, "prediction"), _facts(golds, "golds"))}


def _hotpotqa_file(prediction: Any, golds: Any) -> dict[str, Metric]:
    both = _mapping(prediction, "prediction", ("answer", "sp"))
    answers = _mapping(both["answer"], "prediction.answer")
    facts = _mapping(both["sp"], "prediction.sp")
    rows = [_hotpotqa_gold(row, f"golds[{index}]") for index, row in enumerate(_list(golds, "golds"))]
    if not rows:
        raise RowError("golds is empty; give the questions of the file.")
    return {
        **hotpotqa.file_scores(
            {key: _text(value, f"prediction.answer.{key}") for key, value in answers.items()},
            {key: _facts(value, f"prediction.sp.{key}") for key, value in facts.items()},
            rows,
        )
    }


def _hotpotqa_gold(row: Any, name: str) -> hotpotqa.Gold:
    row = _mapping(row, name, ("_id", "answer", "supporting_facts"))
    return hotpotqa.Gold(
        id=str(row["_id"]),
        answer=_text(row["answer"], f"{name}.answer"),
        facts=_facts(row["supporting_facts"], f"{name}.supporting_facts"),
    )


TASKS: Mapping[str, Callable[[Any, Any], dict[str, Metric]]] = {
    "gsm8k": _gsm8k,
    "finqa_program": _finqa_program,
    "musique_answer": _musique_answer,
    "musique_support": _musique_support,
    "musique_file": _musique_file,
    "hotpotqa_answer": _hotpotqa_answer,
    "hotpotqa_support": _hotpotqa_support,
    "hotpotqa_file": _hotpotqa_file,
}
"""Task to scorer."""

FILE_TASKS = ("musique_file", "hotpotqa_file")
"""A row of these is a whole prediction file with its gold file."""


def _kind(value: Any) -> str:
    """What a JSON value is, in words."""
    names = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RowError(f"{name} is {_kind(value)}; give a text.")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise RowError(f"{name} is {_kind(value)}; give a list.")
    return value


def _texts(value: Any, name: str) -> list[str]:
    return [_text(item, f"{name}[{index}]") for index, item in enumerate(_list(value, name))]


def _only(golds: Any) -> str:
    """The one gold of tasks that know no aliases."""
    texts = _texts(golds, "golds")
    if len(texts) != 1:
        raise RowError(f"golds has {len(texts)} entries; this task has one gold, without aliases.")
    return texts[0]


def _mapping(value: Any, name: str, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RowError(f"{name} is {_kind(value)}; give an object.")
    for key in keys:
        if key not in value:
            raise RowError(f"{name} has no field {key!r}; add it.")
    return value


def _flag(value: Any, name: str) -> bool | int:
    if not isinstance(value, bool) and value not in (0, 1):
        raise RowError(f"{name} is {_kind(value)}; give true or false.")
    return value


def _indices(value: Any, name: str) -> list[int]:
    """Paragraph indices; the official scorer takes everything that `int` takes, such as "3"."""
    found = []
    for index, item in enumerate(_list(value, name)):
        try:
            found.append(int(item))
        except (TypeError, ValueError, OverflowError) as error:
            raise RowError(f"{name}[{index}] is {item!r:.40}; give the whole number of a paragraph.") from error
    return found


def _facts(value: Any, name: str) -> list[hotpotqa.Fact]:
    found = []
    for index, item in enumerate(_list(value, name)):
        parts = _list(item, f"{name}[{index}]")
        if not all(isinstance(part, str | int | float) for part in parts):
            raise RowError(f"{name}[{index}] is not [title, sentence index]; give a text and a number.")
        found.append(tuple(parts))
    return found
