"""Rows of data files (`.jsonl`, `.json`, `.csv`, each also as `.gz`, and `.parquet`), and what is wrong with them.

Nothing in a row is trusted. A file that is damaged is an error that names the place: half a data set is never trained
on. JSON is not read through Arrow, which wants one type in each column: FinQA's answers are numbers and `yes`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from rlvr.errors import ConfigError, UserError

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".csv.gz", ".parquet")
MAX_FIELD_CHARS = 2_000_000
SHOWN_CHARS = 60

_MISSING = object()
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline
_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which no tokenizer can encode


class DataError(UserError):
    """Data that cannot be used: the sentence names the file, the row, the field and what is there."""


@dataclass(frozen=True, slots=True)
class Row:
    """`Row("train.jsonl.gz, line 17", {"question": "How many ...?", "answer": "... #### 18"})`"""

    place: str
    fields: Mapping[str, Any]

    def __contains__(self, field: str) -> bool:
        return self._find(field) is not _MISSING

    def get(self, field: str) -> Any:
        """The field; `qa.question` is field `question` of field `qa`. DataError if there is none."""
        found = self._find(field)
        if found is _MISSING:
            there = ", ".join(repr(key) for key in self.fields) if self.fields else "no field at all"
            raise DataError(f"{self.place}: field {field!r} is missing; there are {_cut(ascii_text(there), 200)}.")
        return found

    def _find(self, field: str) -> Any:
        if field in self.fields:
            return self.fields[field]
        found: Any = self.fields
        for name in field.split("."):
            if not isinstance(found, Mapping) or name not in found:
                return _MISSING
            found = found[name]
        return found

    def text(self, field: str) -> str:
        """A field with text, cleaned and not blank. DataError if it is anything else."""
        value = self.get(field)
        if not isinstance(value, str):
            raise self.wrong(field, value, "a text")
        if len(value) > MAX_FIELD_CHARS:
            raise DataError(f"{self.place}: field {field!r} has {len(value):,} characters, above {MAX_FIELD_CHARS:,}.")
        text = clean(value)
        if not text:
            raise self.wrong(field, value, "a text that is not blank")
        return text

    def wrong(self, field: str, value: object, wanted: str) -> DataError:
        """The error for a field that is not what it should be."""
        return DataError(f"{self.place}: field {field!r} must be {wanted}, but is {shown(value)}.")


def check_file(path: Path) -> None:
    """ConfigError if there is no such file, or its name does not say what it is."""
    if not path.is_file():
        raise ConfigError(f"there is no file {ascii_text(str(path))}: name one that exists.")
    if not path.name.endswith(ENDINGS):
        endings = f"{', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"
        raise ConfigError(f"{ascii_text(str(path))}: data files end in {endings}; rename or convert it.")


def read_file(path: Path) -> Iterator[Row]:
    """The rows of a file; at least one.

        .jsonl      one JSON object a line
        .json       one JSON list of objects
        .csv        the first line has the names of the fields; values are text
        .parquet    a table

    Raises:
        ConfigError: see `check_file`.
        DataError: it is empty or damaged, or something else than objects is in it; names the row.
    """
    check_file(path)
    name = place = ascii_text(str(path))
    is_empty = True
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            for place, fields in _READERS[path.name.removesuffix(".gz").rpartition(".")[2]](file, name):
                is_empty = False
                if not isinstance(fields, dict):
                    raise DataError(f"{place}: a row must be a JSON object, but is {shown(fields)}.")
                yield Row(place, fields)
    except DataError:
        raise
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:  # Arrow's are ValueErrors
        raise DataError(
            f"{place}: the file is damaged from here on ({ascii_text(str(error))}); get it again."
        ) from None
    if is_empty:
        raise DataError(f"{name} is empty: it has no row.")


Placed = Iterator[tuple[str, object]]
"""Rows, each behind its place."""


def _json_lines(file: io.BufferedIOBase, name: str) -> Placed:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield f"{name}, line {number}", _parsed(line, f"{name}, line {number}")


def _json_list(file: io.BufferedIOBase, name: str) -> Placed:
    rows = _parsed(data, name) if (data := file.read()).strip() else []
    if not isinstance(rows, list):
        raise DataError(f"{name}: must be a JSON list of objects, but is {shown(rows)}.")
    return ((f"{name}, row {number}", fields) for number, fields in enumerate(rows, start=1))


def _csv_lines(file: io.BufferedIOBase, name: str) -> Placed:
    csv.field_size_limit(MAX_FIELD_CHARS)
    text = io.TextIOWrapper(cast("Any", file), encoding="utf-8-sig", newline="")
    try:
        reader = csv.DictReader(text, strict=True)
        for fields in reader:
            place = f"{name}, line {reader.line_num}"
            if None in fields or None in fields.values():
                raise DataError(f"{place}: has not {len(reader.fieldnames or ())} fields, as the first line has.")
            yield place, fields
    finally:
        text.detach()  # the file stays open


def _table(file: io.BufferedIOBase, name: str) -> Placed:
    import pyarrow.parquet

    batches = pyarrow.parquet.ParquetFile(file).iter_batches()
    rows = (row for batch in batches for row in batch.to_pylist())
    return ((f"{name}, row {number}", fields) for number, fields in enumerate(rows, start=1))


_READERS = {"jsonl": _json_lines, "json": _json_list, "csv": _csv_lines, "parquet": _table}


def _parsed(data: bytes, place: str) -> object:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: byte {error.start + 1} is not UTF-8; convert the file to it.") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: this is not JSON ({ascii_text(str(error))}); correct or remove it.") from None


def clean(text: str) -> str:
    """Without control characters (tab and newline stay), halves of characters, and whitespace at both ends."""
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))).strip()


def number_text(value: float) -> str:
    """An exact decimal without exponent: 94.0 -> `94`, 1e-05 -> `0.00001`."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def shown(value: object) -> str:
    """A value for a sentence: its type and its beginning, in plain ASCII, so that it can do nothing to a terminal."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"the text {_cut(ascii(value[: SHOWN_CHARS + 1]), SHOWN_CHARS)}"
    if isinstance(value, Mapping):
        return f"an object with the fields {_cut(ascii_text(', '.join(map(repr, list(value)[:20]))), 200)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    kind = {bool: "the boolean", int: "the number", float: "the number"}.get(type(value), f"a {type(value).__name__}:")
    return f"{kind} {_cut(ascii(value), SHOWN_CHARS)}"


def ascii_text(text: str) -> str:
    """The text with everything but printable ASCII escaped."""
    return text.encode("ascii", "backslashreplace").decode("ascii") if text.isprintable() else ascii(text)[1:-1]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "..."
