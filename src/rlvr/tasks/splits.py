"""From rows to training and held-out problems: ids once, nothing on both sides, everything left out counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlvr.errors import ConfigError
from rlvr.rows import DataError, Row, ascii_text
from rlvr.tasks.dataset import Data, overlap
from rlvr.tasks.problems import Problem, hash_rank, is_held_out
from rlvr.tasks.sources import ListSource

NO_GOLD = "have no gold answer"


@dataclass(frozen=True, kw_only=True)
class Part:
    """The problems of some rows, and the places of the rows that gave none, by the reason."""

    problems: tuple[Problem, ...]
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def notes(self, kind: str) -> list[str]:
        """`3 training rows have no gold answer: left out (first: train.jsonl, line 17)`"""
        return [
            f"{len(places):,} {kind} rows {why}: left out (first: {places[0]})" for why, places in self.left_out.items()
        ]


def parse_rows(rows: Iterable[Row], parse: Callable[[Row], Problem | str]) -> Part:
    """The problems of the rows in order, repeated questions left out. DataError for an id of two questions."""
    found: dict[str, tuple[Problem, str]] = {}
    left_out: dict[str, list[str]] = {}
    for row in rows:
        problem = parse(row)
        if isinstance(problem, Problem):
            first, place = found.setdefault(problem.id, (problem, row.place))
            if first is problem:
                continue
            if first.key != problem.key:
                name = ascii_text(problem.id[:80])
                raise DataError(f"{row.place}: the id {name!r} was given before, at {place}: ids must differ.")
            problem = "repeat an earlier question"
        left_out.setdefault(problem, []).append(row.place)
    return Part(problems=tuple(problem for problem, _ in found.values()), left_out=left_out)


def by_hash(part: Part, share: float, place: str) -> tuple[Part, Part]:
    """Cut a part in two by the hash of the question: training, held out; at least one problem each.

    ConfigError if there are fewer than two different questions.
    """
    keys = {problem.key for problem in part.problems}
    if len(keys) < 2:
        raise ConfigError(f"{place} has {len(keys)} different questions with an answer: 2 are needed, one to hold out.")
    held_out = {key for key in keys if is_held_out(key, share)}
    if not held_out or held_out == keys:
        held_out = {min(keys, key=hash_rank)}
    train = tuple(problem for problem in part.problems if problem.key not in held_out)
    rest = tuple(problem for problem in part.problems if problem.key in held_out)
    return replace(part, problems=train), Part(problems=rest)


def make_data(parts: tuple[Part | None, Part], *, where: str, max_train: int | None, **order: Any) -> Data:
    """The task's data of a training and a held-out part, which is never trained on; notes say what became of every row.

    All training examples may be held out, too: that is no error for those who only evaluate. Without a training part
    only the other one was read. `order` is that of `ListSource`. DataError if a part is empty.
    """
    train, held_out = parts
    keys = {problem.key for problem in held_out.problems}
    kept = [problem for problem in train.problems if problem.key not in keys] if train else []
    notes: list[str] = []
    for kind, part in (("training", train), ("held-out", held_out)):
        notes += part.notes(kind) if part else []
        if part and not part.problems:
            raise DataError(f"{ascii_text(where)}: no {kind} row can be used; {'; '.join(part.notes(kind))}.")
    if train is not None:
        notes += overlap(len(train.problems) - len(kept), len(train.problems), "held out")
    kept = kept[:max_train]
    training = f"{len(kept):,} training and " if train else ""
    sizes = f"{training}{len(held_out.problems):,} held-out examples from {ascii_text(where)}"
    return Data(source=ListSource(kept, held_out.problems, **order), notes=(sizes, *notes))
