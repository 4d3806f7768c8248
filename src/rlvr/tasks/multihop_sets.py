"""Sets of questions over several documents: what the settings name, rows of any shape, the question of a row.

    train_sets: bdsaglam/musique,answerable,train[:256];my/folder,,train;more.jsonl.gz

Of each set: a Hub id with its configuration and a split; a folder and a split (with or without an empty name between
them); one file; or `made`, see `rlvr.tasks.made_rows`. Each may be a slice of its first rows, or of rows in the middle.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rlvr.errors import ConfigError
from rlvr.retrieval.base import Document
from rlvr.rows import ENDINGS, MAX_FIELD_CHARS, DataError, Row, ascii_text, clean, read_file
from rlvr.tasks import made_rows
from rlvr.tasks.problems import Problem, fingerprint
from rlvr.tasks.readers import Split

_SLICE = re.compile(r"(.+?)(?:\[(\d*):(\d*)\])?")


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedSet:
    """`bdsaglam/musique,answerable,train[:256]`; `split` is None for a file."""

    path: str
    subset: str | None
    split: str | None
    start: int
    stop: int | None


def read_sets(key: str, sets: str, fields: Collection[str]) -> Iterator[Row]:
    """The rows of all sets, in order.

    Args:
        key: of the setting, for errors: `task.train_sets`.
        sets: its value.
        fields: columns that are needed, of a data set of the Hub.

    Raises:
        ConfigError: a set is written wrongly, or there is no such folder, file, configuration or split.
        DataError: the data is damaged.
    """
    for one in named_sets(key, sets):
        yield from _rows(key, one, fields)


def named_sets(key: str, sets: str) -> list[NamedSet]:
    """The sets that a setting names, at least one. ConfigError if one is written wrongly."""
    return [_named_set(key, one.strip()) for one in sets.split(";")]


def _named_set(key: str, text: str) -> NamedSet:
    form = "write path,name,split (or a file), several joined with ;"
    path, *rest = [part.strip() for part in text.split(",")]
    if not path or len(rest) > 2:
        raise ConfigError(f"{key}: {ascii_text(text) or 'an empty text'!r} names no set; {form}.")
    sliced = _SLICE.fullmatch(rest[-1] if rest else path)
    assert sliced is not None
    name, start, stop = sliced.groups()
    if "[" in name or (start == "" and stop == ""):
        raise ConfigError(f"{key}: {ascii_text(text)!r} has no slice like train[:256] or train[100:200]; {form}.")
    limits = {"start": int(start or 0), "stop": int(stop) if stop else None}
    if limits["stop"] is not None and limits["stop"] <= limits["start"]:
        raise ConfigError(f"{key}: the slice of {ascii_text(text)!r} is empty; write train[:256] or train[100:200].")
    if not rest:
        return NamedSet(path=name, subset=None, split=None, **limits)
    return NamedSet(path=path, subset=(rest[0] or None) if len(rest) == 2 else None, split=name, **limits)


def _rows(key: str, one: NamedSet, fields: Collection[str]) -> Sequence[Row]:
    if one.split is not None:
        rows = Split(one.path, one.split, one.subset, key, f"the name in {key}").rows(fields)
    elif one.path == made_rows.NAME:
        rows = made_rows.made_rows()
    elif one.path.endswith(ENDINGS):
        rows = list(read_file(Path(one.path).expanduser()))
    else:
        raise ConfigError(f"{key}: {ascii_text(one.path)!r} names no split and is no file; write path,name,split.")
    if one.start >= len(rows):
        raise ConfigError(
            f"{key}: {ascii_text(one.path)} has {len(rows):,} rows, and the slice begins at {one.start:,}."
        )
    return rows[one.start : one.stop]


# ------------------------------------------------------------------------------------------------ fields of any shape


def structure(row: Row, name: str) -> Any:
    """A field that is a list or an object, or JSON that says one: Parquet copies have such texts."""
    value = row.get(name)
    if isinstance(value, str):
        if len(value) > MAX_FIELD_CHARS:
            raise DataError(f"{row.place}: field {name!r} has {len(value):,} characters, above {MAX_FIELD_CHARS:,}.")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise row.wrong(name, value, "a list, or a text with JSON") from None
    return value


def records(row: Row, name: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """A field with a table, as tuples in the order of `columns`. Read from any of

        [{"title": "A", "sent_id": 0}, ...]      {"title": ["A", ...], "sent_id": [0, ...]}      [["A", 0], ...]

    What else is in an object or at the end of a list is ignored. DataError for any other shape.
    """
    value = structure(row, name)
    if isinstance(value, Mapping):
        table = [value.get(column) for column in columns]
        if not all(isinstance(cells, list) and len(cells) == len(table[0]) for cells in table):  # type: ignore[arg-type]
            raise row.wrong(name, value, f"an object with lists {', '.join(columns)} of one length")
        return list(zip(*table, strict=True))  # type: ignore[arg-type]
    if not isinstance(value, list):
        raise row.wrong(name, value, "a list")
    found: list[tuple[Any, ...]] = []
    for place, item in enumerate(value):
        if isinstance(item, Mapping) and set(columns) <= set(item):
            found.append(tuple(item[column] for column in columns))
        elif isinstance(item, list | tuple) and len(item) >= len(columns):  # some copies append more
            found.append(tuple(item[: len(columns)]))
        else:
            raise row.wrong(f"{name}[{place}]", item, f"an object with {', '.join(columns)}")
    return found


def cell(row: Row, name: str, value: Any) -> str:
    """A text inside a field, cleaned; it may be blank. DataError for anything else."""
    if not isinstance(value, str):
        raise row.wrong(name, value, "a text")
    if len(value) > MAX_FIELD_CHARS:
        raise DataError(f"{row.place}: field {name!r} has {len(value):,} characters, above {MAX_FIELD_CHARS:,}.")
    return clean(value)


def aliases(row: Row, name: str) -> tuple[str, ...]:
    """Texts of a list that may be missing or null, without blank ones."""
    value = structure(row, name) if row.fields.get(name) is not None else []
    if not isinstance(value, list):
        raise row.wrong(name, value, "a list of texts")
    return tuple(text for place, item in enumerate(value) if (text := cell(row, f"{name}[{place}]", item)))


def gold(row: Row, name: str) -> str | None:
    """The answer; None where it is null or blank."""
    value = row.get(name)
    return None if value is None else cell(row, name, value) or None


# ------------------------------------------------------------------------------------------------------ the question


def to_problem(
    row: Row, golds: tuple[str, ...], documents: tuple[Document, ...], hops: int, kind: str | None = None, **about: Any
) -> Problem:
    """The problem of a row; its metadata is what an episode needs.

    Args:
        row: has the id and the question.
        golds: the answer, then its aliases.
        documents: what can be searched, in order; with a corpus the supporting passages only.
        hops: how many documents have to be combined.
        kind: what the data set calls the sort of question, if it does.
        about: `support` is {document id: what it supports}, `num_support` how many different things have to be
            supported, and `wanted`, with a corpus, is {`Library.key` of a passage: what it supports}.
    """
    text, (answer, *others) = row.text("question"), golds
    return Problem(
        id=row.text("_id" if "_id" in row.fields else "id"),
        key=fingerprint(text),
        question=text,
        answer=answer,
        metadata={"aliases": tuple(others), "documents": documents, "hops": hops, **about},
        tags=(f"{hops}_hops", *([kind] if kind else [])),
    )


def with_noise(problem: Problem, rate: float, seed: int) -> Problem:
    """Keeps each document that supports nothing with the chance `rate`, all that support something, and the order."""
    if rate >= 1:
        return problem
    rng = random.Random(seed)
    drawn = [(document, rng.random()) for document in problem.metadata["documents"]]
    support = problem.metadata["support"]
    kept = tuple(document for document, number in drawn if document.id in support or number < rate)
    return replace(problem, metadata={**problem.metadata, "documents": kept})


# ------------------------------------------------------------------------------------------------------------ corpus

Match = Literal["title", "title_and_text"]
"""What makes a passage of a corpus the supporting one: its title, or its title and text."""


class Library:
    """Passages that all questions share, by id; two may have one title. Read once at the start, then read-only.

    Of an external service nothing is known before it is asked: `Library(None, ...)`.
    """

    def __init__(self, documents: Sequence[Document] | None, match: Match) -> None:
        self.is_known = documents is not None
        self._documents = documents or ()
        self._match: Match = match
        self._places: dict[str, int] = {}
        self._by_key: dict[int, list[int]] = {}  # by hash: texts would be in memory a second time
        for place, document in enumerate(self._documents):
            self._places[document.id] = place
            self._by_key.setdefault(hash(self.key(document)), []).append(place)

    def __len__(self) -> int:
        return len(self._documents)

    def key(self, document: Document) -> Hashable:
        """What has to be equal for a passage to be the supporting one."""
        title = clean(document.title)
        return title if self._match == "title" else (title, clean(document.text))

    def get(self, name: str) -> Document | None:
        """The passage with this id, if it is known."""
        place = self._places.get(name)
        return None if place is None else self._documents[place]

    def matching(self, wanted: Mapping[Hashable, str]) -> tuple[tuple[Document, ...], dict[str, str]]:
        """The passages with some keys and, by their ids, the values that `wanted` gives them.

        `{("Lyon", "Lyon is ..."): "3"}` -> `(Document(id="m17", ...),)` and `{"m17": "3"}`.
        """
        found: dict[str, Document] = {}
        support: dict[str, str] = {}
        for key, name in wanted.items():
            for place in self._by_key.get(hash(key), ()):
                document = self._documents[place]
                if self.key(document) == key:
                    found[document.id], support[document.id] = document, name
        return tuple(found.values()), support
