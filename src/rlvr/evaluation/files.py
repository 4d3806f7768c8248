"""Judged completions as JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rlvr.errors import UserError
from rlvr.evaluation.summary import EvaluationRecord
from rlvr.tracking.files import write_atomically, writing


def to_json(record: EvaluationRecord) -> str:
    """One line without its end; an infinite or missing number is null."""
    return json.dumps(_fields(record), ensure_ascii=False, default=_fields)


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(record, field.name)) for field in fields(record)}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def check_writable(path: str) -> None:
    """Before hours of work: UserError if `write_jsonl` could not write there."""
    target = Path(path)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            raise UserError(f"Cannot write {path}: it is no ordinary file; choose another --output.")
        with TemporaryFile(dir=target.parent):
            pass


def write_jsonl(path: str, records: Iterable[EvaluationRecord]) -> None:
    """Write a file of JSON lines, whole or not at all.

    Raises:
        UserError: no space, or not writable.
    """
    target = Path(path).resolve()  # the file behind a link, not the link, is replaced
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    # a lone surrogate in a decoded text must not lose the file
    text = "".join(to_json(record) + "\n" for record in records)
    write_atomically(target, text.encode("utf-8", errors="backslashreplace"))
