"""Rows of data files (`.jsonl`, `.json`, `.csv`, each also as `.gz`, and `.parquet`), with errors that name the place.

Rows are untrusted. A damaged file is an error: training never uses half a data set. JSON is not read through Arrow,
which wants one type per column: FinQA's answers are numbers and `yes`.
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import AfterValidator, TypeAdapter, ValidationError

from rlvr.errors import ConfigError, UserError
from rlvr.printable import ascii_text, cut

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".csv.gz", ".parquet")
MAX_FIELD_CHARS = 2_000_000
SHOWN_CHARS = 60

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline
_SURROGATE = re.compile("[\ud800-\udfff]")  # lone surrogates: no tokenizer can encode them
_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_MARK = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # also a tab or a newline: most texts need no closer look
_ESCAPES = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_LOST = re.compile(
    # `"\frac{1}{2}"` with one backslash in a JSON file is a form feed and `rac{1}{2}`. Commands are lower case, the
    # first letters of a page are not; of tabs and line ends those are meant that leave no word
    r"[\b\f\t\n\r](?:(?<=[\b\f])(?=[a-z])"
    r"|(?<=\t)(?=(?:ext[a-z]*|[td]?frac|ilde|binom)\s*\{|(?:imes|heta|riangle|herefore)(?![a-z]))"
    r"|(?<=\n)(?=(?:eq|abla|otin)(?![A-Za-z.]))|(?<=\r)(?=ight|angle|ho(?![a-z])|floor|ceil)"
    r"|(?<=\A\t)(?=au(?![a-z]))|(?<=\A\n)(?=[ue]\s*\Z))"
)


class DataError(UserError):
    """Unusable data: the message names the file, the row, the field and its value."""


def harmless(text: str) -> str:
    """Remove control characters (except tab and newline) and lone surrogates.

    ValueError for more than `MAX_FIELD_CHARS` characters.
    """
    if len(text) > MAX_FIELD_CHARS:
        raise ValueError(f"must have {MAX_FIELD_CHARS:,} characters at most, not {len(text):,}")
    if _ODD.search(text) is None:
        return text
    return _SURROGATE.sub("\ufffd", _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def clean(text: str) -> str:
    """As `harmless`, without surrounding whitespace."""
    return harmless(text).strip()


_noted: ContextVar[list[str] | None] = ContextVar("noted", default=None)


@contextmanager
def noting_removals() -> Iterator[list[str]]:
    """What `whole_text` has removed within the block, names of `REMOVED`; the caller clears the list."""
    token = _noted.set(removed := [])
    try:
        yield removed
    finally:
        _noted.reset(token)


def whole_text(text: str) -> str:
    """`harmless` for a text of a row; see `noting_removals`.

    ValueError for what JSON makes of a LaTeX command with one backslash, `"\\frac"`: its beginning is lost.
    """
    if len(text) <= MAX_FIELD_CHARS and _MARK.search(text) is None:
        return text
    if (lost := _LOST.search(text)) is not None:
        rest = re.match("[A-Za-z]*", text[lost.end() :])
        command = f"\\{_ESCAPES[lost[0]]}{rest[0] if rest else ''}"
        raise ValueError(
            f"must have two backslashes before {command[1:]} (JSON reads {command} as a control character)"
        )
    if _ODD.search(text) is not None and (noted := _noted.get()) is not None:
        unbroken = text.replace("\r", "")
        noted += [what for what, odd in REMOVED.items() if odd.search(unbroken)]
    return harmless(text)


def cell(text: str) -> str:
    """As `whole_text`, without surrounding whitespace."""
    return whole_text(text).strip()


def _filled(text: str) -> str:
    if not text:
        raise ValueError("must be a text that is not blank")
    return text


REMOVED = {
    "control characters, which were removed": _CONTROL,
    "half characters (broken \\u escapes), replaced by U+FFFD": _SURROGATE,
}
"""What is removed from texts, and where it stands."""
Verbatim = Annotated[str, AfterValidator(whole_text)]
"""A text field as it stands, without what `harmless` removes."""
Cell = Annotated[str, AfterValidator(cell)]
"""A cleaned text field; may be blank."""
FilledText = Annotated[Cell, AfterValidator(_filled)]


@dataclass(frozen=True, slots=True)
class Row:
    """`Row("train.jsonl.gz, line 17", {"question": "How many ...?", "answer": "... #### 18"})`"""

    place: str
    fields: Mapping[str, Any]
    name: str = ""  # split and number, `train/17`
    fills_nulls: bool = False  # Arrow: null may mean that another row has the field

    def __contains__(self, field: str) -> bool:
        try:
            self.get(field)
        except DataError:
            return False
        return True

    def get(self, field: str, setting: str = "") -> Any:
        """The field; `qa.question` is field `question` of field `qa`, which may also be a text of JSON. In a list a
        name is a number, `messages.-1.content`.

        DataError if it is missing; names the `setting` that chooses the field.
        """
        if field in self.fields:
            return self.fields[field]
        value: Any = self.fields
        names = field.split(".")
        for depth, name in enumerate(names):
            if isinstance(value, str) and value.startswith(("{", "[")):
                with suppress(ValueError, RecursionError):
                    value = json.loads(value)
            if isinstance(value, list) and re.fullmatch(r"-?\d{1,9}", name) and -len(value) <= int(name) < len(value):
                value = value[int(name)]
                continue
            if not isinstance(value, Mapping) or name not in value:
                inside = value if isinstance(value, Mapping) else None
                raise self._missing(field, setting, ".".join(names[:depth]), inside)
            value = value[name]
        return value

    def read(self, shape: Any, field: str | None = None, setting: str = "") -> Any:
        """The row, or one field, as a pydantic type: `row.read(FilledText, "question")`.

        DataError for the first wrong field; names the `setting` that chooses a missing one.
        """
        try:
            return _adapter(shape).validate_python(self.fields if field is None else self.get(field, setting))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(map(str, ((field,) if field else ()) + first["loc"]))
            if first["type"] == "missing":
                raise self._missing(name) from None
            said = first["msg"].removeprefix("Value error, ").replace("Input should", "must")
            said = said.replace("Extra inputs are not permitted", "must not be there")
            raise self.wrong(name, first["input"], said) from None

    def wrong(self, field: str, value: object, said: str) -> DataError:
        """The error for a wrong field: `said` starts with "must"."""
        return DataError(f"{self.place}: field {ascii_text(field)!r} {said}, but is {with_kind(value)}.")

    def _missing(
        self, field: str, setting: str = "", parent: str = "", inside: Mapping[str, Any] | None = None
    ) -> DataError:
        """`inside`: the fields of the field `parent`, where the missing one was looked for; None: the row's."""
        where = f"in {ascii_text(parent)!r} " if parent and inside else ""
        there = cut(ascii_text(", ".join(map(repr, inside or self.fields)) or "no field at all"), 200)
        remedy = f" (name the right one: {setting}=...)" if setting and self.fields else ""
        return DataError(f"{self.place}: field {field!r} is missing; {where}there are {there}{remedy}.")


_adapter = cache(TypeAdapter)


def check_file(path: Path) -> None:
    """ConfigError if the file is missing or has an unknown ending."""
    if not path.is_file():
        raise ConfigError(f"there is no file {ascii_text(str(path))}: name one that exists.")
    if not path.name.endswith(ENDINGS):
        endings = f"{', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"
        raise ConfigError(f"{ascii_text(str(path))}: data files end in {endings}; rename or convert it.")


def read_file(path: Path) -> Iterator[Row]:
    """The rows of a file; at least one.

        .jsonl      one JSON object per line
        .json       one JSON list of objects, or an object with one such list, `{"data": [...]}`
        .csv        field names in the first line; values are text
        .parquet    a table

    Raises:
        ConfigError: see `check_file`.
        DataError: the file is empty, damaged, or has rows that are not objects; names the row.
    """
    check_file(path)
    name = place = ascii_text(str(path))
    is_empty = True
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            for place, fields in _placed(cast("Any", file), path.name.removesuffix(".gz"), name):
                is_empty = False
                if not isinstance(fields, dict):
                    raise DataError(f"{place}: a row must be a JSON object, but is {with_kind(fields)}.")
                yield Row(place, fields, fills_nulls=path.suffix == ".parquet")
    except UnicodeDecodeError as error:
        raise _not_utf8(place, error) from None
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:  # Arrow's are ValueErrors
        raise DataError(
            f"{place}: the file is damaged from here on ({ascii_text(str(error))}); get it again."
        ) from None
    if is_empty:
        raise DataError(f"{name} is empty: it has no row.")


def _placed(file: Any, kind: str, name: str) -> Iterator[tuple[str, object]]:
    if kind.endswith(".jsonl"):
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"{name}, line {number}", _parsed(line, f"{name}, line {number}")
        return
    if kind.endswith(".csv"):
        csv.field_size_limit(MAX_FIELD_CHARS)
        with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            reader = csv.DictReader(text, strict=True)
            for fields in reader:
                place = f"{name}, line {reader.line_num}"
                if None in fields or None in fields.values():
                    raise DataError(f"{place}: has not {len(reader.fieldnames or ())} fields, as the first line has.")
                yield place, fields
        return
    if kind.endswith(".json"):
        rows = _parsed(data, name) if (data := file.read()).strip() else []
        if isinstance(rows, dict):
            name, rows = _list_inside(rows, name)
        if not isinstance(rows, list):
            raise DataError(f"{name}: must be a JSON list of objects, but is {with_kind(rows)}.")
    else:
        import pyarrow.parquet

        from rlvr.data.arrow import plain_data

        table = pyarrow.parquet.ParquetFile(file)
        plain = plain_data(table.schema_arrow)
        rows = (plain(row) for batch in table.iter_batches() for row in batch.to_pylist())
    yield from ((f"{name}, row {number}", fields) for number, fields in enumerate(rows, start=1))


def _list_inside(whole: dict[str, Any], name: str) -> tuple[str, Any]:
    """The rows of `{"data": [...], "version": ...}`, and their place; the object itself if it has not one list."""
    lists = {key: value for key, value in whole.items() if isinstance(value, list)}
    key = "data" if "data" in lists else next(iter(lists), "")
    if not lists or (key != "data" and len(lists) > 1):
        return name, whole
    return f"{name}, {ascii_text(key[:SHOWN_CHARS])}", lists[key]


def _not_utf8(place: str, error: UnicodeDecodeError) -> DataError:
    byte = error.object[error.start]
    likely = "UTF-16" if byte >= 0xFE else "LATIN1"  # UTF-16 begins with fe ff or ff fe
    return DataError(
        f"{place}: this is not UTF-8 (byte 0x{byte:02x}); convert the file, e.g. iconv -f {likely} -t UTF-8."
    )


def _parsed(data: bytes, place: str) -> object:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _not_utf8(place, error) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: this is not JSON ({ascii_text(str(error))}); correct or remove it.") from None


def number_text(value: float) -> str:
    """An exact decimal without exponent: 94.0 -> `94`, 1e-05 -> `0.00001`."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def with_kind(value: object) -> str:
    """A value for a message: its type and start, in printable ASCII, so that it cannot control a terminal."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"the text {cut(ascii(value[: SHOWN_CHARS + 1]), SHOWN_CHARS)}"
    if isinstance(value, Mapping):
        return f"an object with the fields {cut(ascii_text(', '.join(map(repr, list(value)[:20]))), 200)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    kind = {bool: "boolean", int: "number", float: "number"}.get(type(value), type(value).__name__)
    try:
        return f"the {kind} {cut(ascii(value), SHOWN_CHARS)}"
    except Exception:  # a number of thousands of digits, or a user's own class
        return f"a {kind} that cannot be shown"
