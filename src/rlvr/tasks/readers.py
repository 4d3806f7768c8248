"""Local files and folders with data: `.jsonl` and `.json`, either also as `.gz`; anything else is asked of `datasets`.

A file that is damaged is an error that names the place: half a data set is never trained on. JSON is not read through
Arrow, which wants one type in each column: FinQA's answers are numbers and `yes`.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

from rlvr.errors import ConfigError
from rlvr.tasks.rows import DataError, Row, ascii_text, shown

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)


def split_names(key: str, splits: str) -> list[str]:
    """`train+dev` -> `["train", "dev"]`. ConfigError for an empty, repeated or unsafe name."""
    names = splits.split("+")
    for name in names:
        if not re.fullmatch(r"[\w][\w.-]*", name):
            raise ConfigError(f"{key}={ascii_text(splits)}: {ascii_text(name)!r} names no split; join names with +.")
    if len(set(names)) != len(names):
        raise ConfigError(f"{key}={splits} names a split twice: name each one once.")
    return names


def read_split(path: str, split: str, *, subset: str | None = None, fields: Collection[str] = ()) -> list[Row]:
    """The rows of a split of a local folder or of a data set of the Hub.

    Args:
        path: a folder with `<split>.jsonl`, `.json` or either with `.gz`; a folder with a repository in the Hub's
            format; or a Hub id.
        split: its name.
        subset: the configuration of a repository; None for its only one.
        fields: the fields that are needed, all if empty; others may be missing from the rows.

    Raises:
        ConfigError: there is no such folder, file, subset or split.
        DataError: the data is damaged, or the Hub does not give it.
    """
    from rlvr.tasks.repositories import hub_rows, repository_rows

    folder = Path(path).expanduser()
    if folder.is_dir():
        file = _split_file(folder, split)
        if file is not None:
            return list(read_file(file))
        if _is_repository(folder):
            return repository_rows(folder, subset, split, fields)
        raise ConfigError(
            f"{_shown(folder)} has no {split}.jsonl or {split}.json (or either with .gz), only {_contents(folder)}: "
            "name another split, or another folder as task.path."
        )
    if folder.exists():
        raise ConfigError(
            f"task.path={_shown(folder)} is a file: name its folder, or read it with task=jsonl task.path=FILE."
        )
    if not HUB_ID.fullmatch(path) or path.startswith("."):
        raise ConfigError(f"task.path={ascii_text(path)}: there is no such folder, and it is no Hub id (owner/name).")
    return hub_rows(path, subset, split, fields)


def read_file(path: Path) -> Iterator[Row]:
    """The rows of a file: one JSON object a line, or one JSON list of objects; at least one.

    Raises:
        ConfigError: there is no such file, or its name does not say what it is.
        DataError: it is empty or damaged, or something else than objects is in it; names the row.
    """
    check_file(path)
    name, place = ascii_text(str(path)), ascii_text(str(path))
    if not path.name.endswith(ENDINGS):
        raise ConfigError(f"{name}: data files end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}; rename it.")
    is_empty = True
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            if path.name.removesuffix(".gz").endswith(".json"):
                rows = _parse(data, place) if (data := file.read()).strip() else []
                if not isinstance(rows, list):
                    raise DataError(f"{place}: must be a JSON list of objects, but is {shown(rows)}.")
                numbered = ((f"{name}, row {number}", fields) for number, fields in enumerate(rows, start=1))
            else:
                lines = ((f"{name}, line {number}", line) for number, line in enumerate(file, start=1))
                numbered = ((place, _parse(line, place)) for place, line in lines if line.strip())
            for place, fields in numbered:
                is_empty = False
                if not isinstance(fields, dict):
                    raise DataError(f"{place}: a row must be a JSON object, but is {shown(fields)}.")
                yield Row(place, fields)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{place}: the file is damaged from here on ({ascii_text(str(error))}); get it again."
        ) from None
    if is_empty:
        raise DataError(f"{name} is empty: it has no row.")


def check_file(path: Path) -> None:
    """ConfigError if there is no such file."""
    if not path.is_file():
        raise ConfigError(f"there is no file {_shown(path)}: name one that exists.")


def _split_file(folder: Path, split: str) -> Path | None:
    found = [file for ending in ENDINGS if (file := folder / f"{split}{ending}").is_file()]
    if len(found) > 1:
        raise ConfigError(f"{_shown(folder)} has both {found[0].name} and {found[1].name}: keep one of them.")
    return found[0] if found else None


def _is_repository(folder: Path) -> bool:
    """A copy of a Hub data set: a card, Parquet files, or a loading script (which will be refused)."""
    signs = ("README.md", f"{folder.name}.py", "*.parquet", "*/*.parquet")
    return any(next(folder.glob(sign), None) is not None for sign in signs)


def _contents(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return ascii_text(", ".join(names[:10]) + (", ..." if len(names) > 10 else "")) if names else "nothing"


def _parse(data: bytes, place: str) -> object:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: byte {error.start + 1} is not UTF-8; convert the file to it.") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: this is not JSON ({ascii_text(str(error))}); mend or remove it.") from None


def _shown(path: Path) -> str:
    return ascii_text(str(path))
