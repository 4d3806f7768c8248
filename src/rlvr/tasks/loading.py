"""From rows to problems: which are used, which are left out and why, and which are held out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlvr.data.problems import Problem, hash_rank, is_held_out
from rlvr.data.rows import DataError, Row, noting_removals
from rlvr.data.sources import ListSource, Source
from rlvr.errors import ConfigError
from rlvr.printable import ascii_text, printable
from rlvr.tasks.golds import NUM_AT_LOADING, UNREAD, GoldReader

NUM_NAMED = 3
"""Rows with a fault that are named; all are counted."""

NO_GOLD = "have no gold answer"
"""Reason for excluding a row."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Loaded problems, notes about them, and the vocabulary if the text has a small one."""

    source: Source
    notes: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] | None = None
    golds: GoldReader | None = None  # for problems that were not looked at when they were loaded


@dataclass(frozen=True, kw_only=True)
class ParsedRows:
    """The problems of some rows, and the places of excluded rows by reason."""

    problems: tuple[Problem, ...]
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    changed: Mapping[str, Sequence[str]] = field(default_factory=dict)  # places of rows, by what their texts have lost

    def notes(self, kind: str) -> list[str]:
        """`3 training rows have no gold answer: left out (train.jsonl, line 17; train.jsonl, line 20; and 1 more)`"""
        return [
            f"{len(places):,} {kind} rows {why} ({_first(places)})"
            for why, places in (
                *((f"{why}: left out", places) for why, places in self.left_out.items()),
                *((f"have {what}", places) for what, places in self.changed.items()),
            )
        ]


def _first(places: Sequence[str]) -> str:
    more = len(places) - NUM_NAMED
    return "; ".join((*places[:NUM_NAMED], *((f"and {more:,} more",) if more > 0 else ())))


def parse_rows(
    rows: Iterable[Row], parse: Callable[[Row], Problem | str], golds: GoldReader | None = None
) -> ParsedRows:
    """The problems of the rows in order, without repeated questions, and without golds that cannot be read, as far as
    they are looked at here.

    DataError for an id of two questions, and for rows that cannot be used: it names the first ones and counts all.
    """
    problems: dict[str, tuple[Problem, str]] = {}
    unsure = list[Problem]()
    left_out: dict[str, list[str]] = {}
    changed: dict[str, list[str]] = {}
    wrong: list[tuple[str, str]] = []
    with noting_removals() as removed:
        for row in rows:
            try:
                problem = parse(row)
            except DataError as error:
                wrong.append((row.place, str(error)))
                continue
            for what in dict.fromkeys(removed):
                changed.setdefault(what, []).append(row.place)
            removed.clear()
            if isinstance(problem, str):
                left_out.setdefault(problem, []).append(row.place)
            elif why := _repeats(problems, problem, row.place):
                left_out.setdefault(why, []).append(row.place)
            elif golds and len(unsure) < NUM_AT_LOADING and not golds.is_surely_read(problem.answer):
                unsure.append(problem)
                golds.ask(problem.answer)
    if wrong:
        raise DataError(_named(wrong))
    for problem in golds.unread(unsure) if golds else ():
        place = problems.pop(problem.id)[1]
        left_out.setdefault(UNREAD, []).append(f"{place}: {ascii_text(problem.answer[:60])!r}")
    return ParsedRows(problems=tuple(problem for problem, _ in problems.values()), left_out=left_out, changed=changed)


def _repeats(found: dict[str, tuple[Problem, str]], problem: Problem, place: str) -> str:
    """Why a problem is left out beside those found before; empty for a new one, which is put there."""
    first, before = found.setdefault(problem.id, (problem, place))
    if first is problem:
        return ""
    if first.key != problem.key:
        name = ascii_text(problem.id[:80])
        raise DataError(f"{place}: the id {name!r} was given before, at {before}: ids must differ.")
    answers = ((one.answer, one.metadata.get("aliases")) for one in (first, problem))
    return "repeat an earlier question" + ("" if next(answers) == next(answers) else " with another answer")


def _named(wrong: Sequence[tuple[str, str]]) -> str:
    """What is wrong with the first rows, and how many there are: places and sentences."""
    sentences = " ".join(says for _, says in wrong[:NUM_NAMED])
    if len(wrong) == 1:
        return sentences
    following = f", the next at {wrong[NUM_NAMED][0]}" if len(wrong) > NUM_NAMED else ""
    return f"{sentences} In all {len(wrong):,} rows cannot be used{following}."


def by_hash(part: ParsedRows, share: float, place: str) -> tuple[ParsedRows, ParsedRows]:
    """Split a part by the hash of the question: training, held out; at least one problem each.

    ConfigError for fewer than two different questions.
    """
    keys = {problem.key for problem in part.problems}
    if len(keys) < 2:
        lost = "".join(f"; {note}" for note in part.notes("training"))
        raise ConfigError(
            f"{place} has {len(keys)} different questions with an answer: 2 are needed, one to hold out{lost}."
        )
    held_out = {key for key in keys if is_held_out(key, share)}
    if not held_out or held_out == keys:
        held_out = {min(keys, key=hash_rank)}
    train = tuple(problem for problem in part.problems if problem.key not in held_out)
    rest = tuple(problem for problem in part.problems if problem.key in held_out)
    return replace(part, problems=train), ParsedRows(problems=rest)


def make_data(
    parts: tuple[ParsedRows | None, ParsedRows],
    *,
    where: str,
    max_train: int | None,
    golds: GoldReader | None = None,
    **order: Any,
) -> Data:
    """The task's data from a training and a held-out part, which is never trained on; notes account for every row.

    All training examples may also be held out, which is no error for evaluation. Without a training part only the other
    one was read. `order` belongs to `ListSource`. DataError if a part is empty.
    """
    train, held_out = parts
    keys = {problem.key for problem in held_out.problems}
    kept = [problem for problem in train.problems if problem.key not in keys] if train else []
    place, notes = printable(where, keep=""), list[str]()
    for kind, part in (("training", train), ("held-out", held_out)):
        notes += part.notes(kind) if part else []
        if part and not part.problems:
            raise DataError(f"{place}: no {kind} row can be used; {'; '.join(part.notes(kind))}.")
    if train is not None:
        notes += overlap(len(train.problems) - len(kept), len(train.problems), "held out")
    kept = kept[:max_train]
    training = f"{len(kept):,} training and " if train else ""
    sizes = f"{training}{len(held_out.problems):,} held-out examples from {place}"
    return Data(source=ListSource(kept, held_out.problems, **order), notes=(sizes, *notes), golds=golds)


def overlap(num: int, total: int, what: str) -> tuple[str, ...]:
    """`3 of 7,473 training examples are also held out: left out`"""
    return (f"{num:,} of {total:,} training examples are also {what}: left out",) if num else ()


# ------------------------------------------------------------------------------------------------ from rows to problems
