"""What a caller holds in memory, by a name that a configuration can hold: rows as files, functions as import paths."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rlvr.errors import ConfigError
from rlvr.tracking.files import write_atomically, writing

Rows = Iterable[Mapping[str, Any]]
Data = Rows | str | Path
"""Rows with `question` and `answer`, or a file of them: `.jsonl` or `.json`, either also as `.gz`."""

FOLDER = Path("runs") / "data"


def data_file(data: Data | None, name: str) -> str | None:
    """The absolute path of the file with the rows, None for None.

    Rows in memory are written to `runs/data/`, into a file named by their content: a run can be resumed and repeated,
    and equal rows are one file.

    Raises:
        ConfigError: rows that are none, or that JSON cannot hold; `name` is the argument that they came by.
        UserError: the file cannot be written.
    """
    if data is None:
        return None
    if isinstance(data, str | Path):
        return str(Path(data).expanduser().absolute())
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise ConfigError(f"{name} is a {type(data).__name__}: give a list of rows, or the path of a file.")
    content = "".join(_line(row, f"{name}, row {number}") for number, row in enumerate(data, start=1)).encode()
    if not content:
        raise ConfigError(f"{name} has no rows: give some, each with a question and an answer.")
    path = (FOLDER / f"{hashlib.sha256(content).hexdigest()[:16]}.jsonl").absolute()
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        write_atomically(path, content)
    return str(path)


def _line(row: object, place: str) -> str:
    if not isinstance(row, Mapping):
        raise ConfigError(f"{place} is {row!r:.80}: it must be a mapping such as {{'question': ..., 'answer': ...}}.")
    try:
        return json.dumps(dict(row), allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{place} holds what JSON cannot ({error}): use texts, finite numbers and lists.") from None


def import_path(function: Callable[..., Any]) -> str:
    """`my_rewards:shorter`; what no import would find, such as a lambda, has a name of the same form."""
    module = getattr(function, "__module__", None) or "given"
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    words = [re.sub(r"[^A-Za-z0-9_.]", "_", text) for text in (module, name)]  # `outer.<locals>.x`: `outer._locals_.x`
    return ":".join(re.sub(r"^(?=[0-9.])", "_", text) for text in words)
