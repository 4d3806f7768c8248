"""From rows to training and held-out problems: ids once, nothing on both sides, everything left out counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rlvr.errors import ConfigError
from rlvr.rows import DataError, Row, ascii_text
from rlvr.tasks.dataset import Data, note_overlap
from rlvr.tasks.problems import Problem, hash_rank, is_held_out
from rlvr.tasks.sources import ListSource

Parse = Callable[[Row], Problem | None]
"""The problem of a row, None if it has no gold answer; DataError if it is not what it should be."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The problems of some rows, and how many rows gave none."""

    problems: tuple[Problem, ...]
    num_without_gold: int = 0
    num_repeated: int = 0


def parse_rows(rows: Iterable[Row], parse: Parse, *, ids_are_given: bool = True) -> Part:
    """The problems of the rows, in their order. DataError for an id that occurs twice.

    Where ids are not given but made from the question, a repeated question is left out and counted.
    """
    places: dict[str, str] = {}
    problems: list[Problem] = []
    num_without_gold = num_repeated = 0
    for row in rows:
        problem = parse(row)
        if problem is None:
            num_without_gold += 1
        elif problem.id not in places:
            places[problem.id] = row.place
            problems.append(problem)
        elif ids_are_given:
            name = ascii_text(problem.id[:80])
            raise DataError(f"{row.place}: the id {name!r} was given before, at {places[problem.id]}: ids must differ.")
        else:
            num_repeated += 1
    return Part(problems=tuple(problems), num_without_gold=num_without_gold, num_repeated=num_repeated)


def by_hash(part: Part, share: float, place: str) -> tuple[Part, Part]:
    """Cut a part in two by the hash of the question: training, held out; at least one problem each.

    ConfigError if there are fewer than two different questions.
    """
    keys = {problem.key for problem in part.problems}
    if len(keys) < 2:
        raise ConfigError(f"{place} has {len(keys)} different questions with an answer: 2 are needed, one to hold out.")
    held_out_keys = {key for key in keys if is_held_out(key, share)}
    if not held_out_keys or held_out_keys == keys:
        held_out_keys = {min(keys, key=hash_rank)}
    train = tuple(problem for problem in part.problems if problem.key not in held_out_keys)
    held_out = tuple(problem for problem in part.problems if problem.key in held_out_keys)
    return (
        Part(problems=train, num_without_gold=part.num_without_gold, num_repeated=part.num_repeated),
        Part(problems=held_out),
    )


def make_data(
    parts: tuple[Part, Part],
    *,
    where: str,
    max_train: int | None,
    **order: Any,
) -> Data:
    """The task's data of a training and a held-out part, which is never trained on; notes say what became of every row.

    All training examples may be held out, too: that is no error for those who only evaluate. `order` is that of
    `ListSource`: `seed`, `difficulty` and `stratum`. Raises DataError if one of the parts is empty.
    """
    train, held_out = parts
    keys = {problem.key for problem in held_out.problems}
    kept = [problem for problem in train.problems if problem.key not in keys]
    notes: list[str] = []
    for kind, part in zip(("training", "held-out"), parts, strict=True):
        if part.num_without_gold:
            notes.append(f"{part.num_without_gold:,} {kind} rows have no gold answer: left out")
        if part.num_repeated:
            notes.append(f"{part.num_repeated:,} {kind} rows repeat an earlier question: left out")
        if not part.problems:
            raise DataError(f"{ascii_text(where)}: none of the {kind} rows has a gold answer.")
    note_overlap(notes, len(train.problems) - len(kept), len(train.problems), "held out")
    if max_train is not None:
        kept = kept[:max_train]
    sizes = f"{len(kept):,} training and {len(held_out.problems):,} held-out examples from {ascii_text(where)}"
    return Data(source=ListSource(kept, held_out.problems, **order), notes=(sizes, *notes))
