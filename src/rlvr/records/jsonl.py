"""JSON-lines files: `metrics.jsonl`, one line per step, and records."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, StrictFloat, TypeAdapter, ValidationError

from rlvr.errors import UserError
from rlvr.records.files import sync_file, write_atomically, writing

T = TypeVar("T")
Number = Annotated[int, Field(strict=True, gt=-(2**63), lt=2**63)] | StrictFloat | None
_ROW = TypeAdapter(dict[str, Number])


def metrics_line(step: int, metrics: Mapping[str, float]) -> str:
    """`metrics_line(3, {"reward/mean": 0.5, "loss/kl": nan})` is `{"step": 3, "loss/kl": null, "reward/mean": 0.5}`.

    Sorted names and shortest round-trip floats make equal numbers equal bytes. JSON has no NaN and no infinity: both
    are written as null, so that any tool can parse every line.
    """
    names = sorted(metrics.keys() - {"step"})
    numbers = {name: metrics[name] if type(metrics[name]) is int else float(metrics[name]) for name in names}
    values = {name: _plain(number) for name, number in numbers.items()}
    return json.dumps({"step": step} | values, allow_nan=False) + "\n"


class MetricsFile:
    """Appends to `metrics.jsonl` and cuts it back for a resume.

    Each line is written to the operating system at once, so a killed process loses at most part of the last line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        with writing(self.path), self.path.open("ab") as file:
            file.write(metrics_line(step, metrics).encode())

    def cut_back(self, step: int) -> None:
        """Drop the lines after `step` and an incomplete last line; atomic. `cut_back(-1)` drops everything."""
        if self.path.exists():
            kept = [line for row, line in _complete_lines(self.path) if int(row["step"]) <= step]
            write_atomically(self.path, b"".join(kept))

    def sync(self) -> None:
        """Wait until all lines are on the disk, before a checkpoint is written."""
        with writing(self.path):
            if self.path.exists():
                sync_file(self.path)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The lines of a metrics file; null becomes NaN, an incomplete last line is skipped. UserError: another line is not
    a JSON object with a step."""
    return [row for row, _ in _complete_lines(path)]


def _complete_lines(path: Path) -> Iterator[tuple[dict[str, float], bytes]]:
    """Each complete line, parsed and raw. Text after the last line feed, cut off by a kill, is skipped."""
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            yield metrics_row(line), line + b"\n"
        except ValueError as error:
            raise UserError(f"{path}, line {number}, is damaged ({error}): delete that line.") from error


def few(notes: list[str], limit: int = 5) -> list[str]:
    """The first sentences about damage, and the number of further ones."""
    more = len(notes) - limit
    return notes if more <= 0 else [*notes[:limit], f"{more:,} more lines or files are damaged and left out."]


def metrics_row(line: bytes) -> dict[str, float]:
    """One line of metrics.jsonl; null becomes NaN. ValueError if it is no object of numbers with an integer `step`."""
    row = from_line(_ROW, line)
    if not isinstance(row.get("step"), int):
        raise ValueError("it has no step")
    return {name: math.nan if value is None else value for name, value in row.items()}


def from_line(schema: TypeAdapter[T], line: str | bytes) -> T:
    """The record of a line. ValueError with a short reason: no JSON, or not such a record."""
    try:
        return schema.validate_python(json.loads(line))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"][:4]))
        raise ValueError(f"{place[:100]}: {first['msg'][:200]}".removeprefix(": ")) from None


def to_json(record: Any) -> str:
    """A record (dataclass) as one line without line end; non-finite numbers are null."""
    return json.dumps(_fields(record), ensure_ascii=False, default=_fields, allow_nan=False)


def to_line(record: Any) -> bytes:
    """One line of a file with its end. A lone surrogate in a decoded text must not break the file."""
    return (to_json(record) + "\n").encode("utf-8", errors="backslashreplace")


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(record, field.name)) for field in fields(record)}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and any(isinstance(item, float) and not math.isfinite(item) for item in value):
        return [_plain(item) for item in value]
    return value
