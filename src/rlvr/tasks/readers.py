"""Splits of local folders with data files; of local repositories and of the Hub through the `datasets` library."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.errors import ConfigError, UserError
from rlvr.rows import ENDINGS, DataError, Row, ascii_text, read_file

if TYPE_CHECKING:
    from datasets import Dataset

HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
TIMEOUT_S = 5.0
"""How long the Hub may take to say whether it has a data set."""
REMEDY = "set task.path to a folder that has the files, or RLVR_DATA to the folder around it"


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
            format; or a Hub id, of which an earlier download is read where the Hub cannot be reached.
        split: its name.
        subset: the configuration of a repository; None for its only one.
        fields: the fields that are needed, all if empty; others may be missing from the rows.

    Raises:
        ConfigError: there is no such folder, file, data set, subset or split.
        DataError: the data is damaged.
        UserError: the Hub cannot be reached and nothing was downloaded before, or it refuses access.
    """
    folder, shown = Path(path).expanduser(), ascii_text(path)
    if folder.is_dir():
        files = [file for ending in ENDINGS if (file := folder / f"{split}{ending}").is_file()]
        if len(files) > 1:
            raise ConfigError(f"{shown} has both {files[0].name} and {files[1].name}: keep one of them.")
        if files:
            return list(read_file(files[0]))
        # a copy of a Hub data set: a card, Parquet files, or a loading script (which will be refused)
        signs = ("README.md", f"{folder.name}.py", "*.parquet", "*/*.parquet")
        if not any(next(folder.glob(sign), None) is not None for sign in signs):
            found = sorted(entry.name for entry in folder.iterdir())
            names = ", ".join([*found[:10], *(["..."] if len(found) > 10 else [])]) or "nothing"
            raise ConfigError(
                f"{shown} has no {split}.jsonl or {split}.json (or either with .gz), only {ascii_text(names)}: name "
                "another split, or another folder as task.path."
            )
        with _quiet(), tempfile.TemporaryDirectory() as cache:
            return _rows(_load(str(folder), subset, split, cache), str(folder), split, fields)
    if folder.exists():
        raise ConfigError(f"task.path={shown} is a file: name its folder, or read it with task=jsonl task.path=FILE.")
    if not HUB_ID.fullmatch(path) or path.startswith("."):
        raise ConfigError(f"task.path={shown}: there is no such folder, and it is no Hub id (owner/name).")
    with _quiet():
        unreachable = _ask(path)
        found = _cached(path, subset, split, unreachable) if unreachable else _load(path, subset, split)
        return _rows(found, path, split, fields)


def _rows(dataset: Dataset, source: str, split: str, fields: Collection[str]) -> list[Row]:
    if fields and set(fields) <= set(dataset.column_names):
        dataset = dataset.select_columns(list(fields))
    place = f"{ascii_text(source)}, split {split}"
    if len(dataset) == 0:
        raise DataError(f"{place}: is empty, it has no row.")
    return [Row(f"{place}, row {number}", row) for number, row in enumerate(dataset.to_list(), start=1)]


def _ask(path: str) -> str | None:
    """None if the Hub has the data set and lets us read it, else why it could not be asked.

    `load_dataset` would ask several times, with pauses, before it says that there is no network.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        HfApi().dataset_info(path, timeout=TIMEOUT_S)
    except HFValidationError:
        raise ConfigError(f"task.path={path}: there is no such folder, and it is no Hub id (owner/name).") from None
    except OfflineModeIsEnabled:
        return "HF_HUB_OFFLINE is set"
    except HfHubHTTPError as error:
        status = error.response.status_code
        if isinstance(error, GatedRepoError) or status in (401, 403):
            raise _refused(path) from None
        if isinstance(error, RepositoryNotFoundError):
            raise ConfigError(
                f"task.path={path}: there is no such folder, and the Hub has no such data set (or it is private and "
                "the token may not read it)."
            ) from None
        return f"it answers {status}"
    except Exception as error:  # of the network; which classes it has depends on the version of the library
        return f"{type(error).__name__}: {_first_line(error)}"
    return None


def _refused(path: str) -> UserError:
    return UserError(
        f"the Hub refuses access to the data set {path} with this token (or without one): check the name, accept its "
        f"conditions at https://huggingface.co/datasets/{path} if it has any, log in (hf auth login, or HF_TOKEN) as "
        f"somebody who may read it, or {REMEDY}."
    )


def _cached(path: str, subset: str | None, split: str, reason: str) -> Dataset:
    """What an earlier run downloaded."""
    from datasets.packaged_modules.cache.cache import Cache

    name = path.rpartition("/")[2]
    try:
        builder = Cache(repo_id=path, dataset_name=name, config_name=subset, version="auto", hash="auto")
    except ValueError:
        raise UserError(
            f"task.path={path} is no local folder, was not downloaded before, and the Hub cannot be reached "
            f"({reason}): {REMEDY}, or connect to the network."
        ) from None
    return _call(path, subset, split, lambda: builder.as_dataset(split=split))


def _load(path: str, subset: str | None, split: str, cache_dir: str | None = None) -> Dataset:
    from datasets import load_dataset

    return _call(path, subset, split, lambda: load_dataset(path, subset, split=split, cache_dir=cache_dir))


def _call(path: str, subset: str | None, split: str, load: Callable[[], Any]) -> Dataset:
    """The data set that `load` gives, its errors as sentences."""
    try:
        return load()
    except Exception as error:  # a foreign library with errors of many kinds
        text, path = _first_line(error), ascii_text(path)
        if "gated dataset" in text:
            raise _refused(path) from None
        if "scripts are no longer supported" in text:
            raise DataError(
                f"{path} is loaded by a program, which is not run: download its data files and set task.path to their "
                "folder."
            ) from None
        if "Config name is missing" in text:
            text = text.partition(" Example of usage")[0]
            raise ConfigError(f"task.subset=null: {path} has several configurations ({text}).") from None
        if "BuilderConfig" in text:
            raise ConfigError(f"task.subset={subset or 'null'}: {path} has no such configuration ({text}).") from None
        if isinstance(error, ValueError | KeyError) and "split" in text.lower():
            raise ConfigError(f"split {split}: {path} has no such split ({text}).") from None
        raise DataError(
            f"{path}, split {split}: cannot be loaded ({type(error).__name__}: {text}); {REMEDY}."
        ) from None


def _first_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no message"
    return ascii_text(text[:200].rstrip("."))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars and log lines, which are as they were afterwards."""
    import datasets
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    bars, hub_bars = datasets.is_progress_bar_enabled(), not are_progress_bars_disabled()
    verbosity = datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    disable_progress_bars()
    datasets.logging.set_verbosity_error()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if bars:
            datasets.enable_progress_bars()
        if hub_bars:
            enable_progress_bars()
