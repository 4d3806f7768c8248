"""Data sets of the Hub, and local folders in its format, through the `datasets` library."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.errors import ConfigError, UserError
from rlvr.tasks.rows import DataError, Row, ascii_text

if TYPE_CHECKING:
    from datasets import Dataset

TIMEOUT_S = 5.0
"""How long the Hub may take to say whether it has a data set."""

REMEDY = "set task.path to a folder that has the files, or RLVR_DATA to the folder around it"


def repository_rows(folder: Path, subset: str | None, split: str, fields: Collection[str]) -> list[Row]:
    """The rows of a split of a local repository: data files, and a card that says which are what.

    Raises ConfigError for an unknown subset or split, DataError for data that `datasets` cannot read.
    """
    with _quiet(), tempfile.TemporaryDirectory() as cache:
        return _rows(_load(str(folder), subset, split, cache_dir=cache), str(folder), split, fields)


def hub_rows(path: str, subset: str | None, split: str, fields: Collection[str]) -> list[Row]:
    """The rows of a split of a data set of the Hub; where it cannot be reached, of the copy of an earlier download.

    Raises:
        UserError: the Hub cannot be reached and nothing was downloaded before, or it refuses access.
        ConfigError: there is no such data set, subset or split.
    """
    with _quiet():
        unreachable = _ask(path)
        dataset = _cached(path, subset, split, unreachable) if unreachable else _load(path, subset, split)
        return _rows(dataset, path, split, fields)


def _rows(dataset: Dataset, source: str, split: str, fields: Collection[str]) -> list[Row]:
    if fields and set(fields) <= set(dataset.column_names):
        dataset = dataset.select_columns(list(fields))
    if len(dataset) == 0:
        raise DataError(f"{ascii_text(source)}, split {split}: is empty, it has no row.")
    place = f"{ascii_text(source)}, split {split}, row"
    return [Row(f"{place} {number}", row) for number, row in enumerate(dataset.to_list(), start=1)]


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

    try:
        builder = Cache(
            repo_id=path, dataset_name=path.rpartition("/")[2], config_name=subset, version="auto", hash="auto"
        )
    except ValueError:
        raise UserError(
            f"task.path={path} is no local folder, was not downloaded before, and the Hub cannot be reached "
            f"({reason}): {REMEDY}, or connect to the network."
        ) from None
    return _call(path, subset, split, lambda: builder.as_dataset(split=split))


def _load(path: str, subset: str | None, split: str, cache_dir: str | None = None) -> Dataset:
    from datasets import load_dataset

    return _call(path, subset, split, lambda: load_dataset(path, subset, split=split, cache_dir=cache_dir))


def _call(path: str, subset: str | None, split: str, load: Any) -> Dataset:
    """The data set that `load` gives, its errors as sentences."""
    try:
        return load()
    except Exception as error:  # a foreign library with errors of many kinds
        raise _explained(ascii_text(path), subset, split, error) from None


def _explained(path: str, subset: str | None, split: str, error: Exception) -> UserError:
    text = _first_line(error)
    if "gated dataset" in text:
        return _refused(path)
    if "scripts are no longer supported" in text:
        return DataError(
            f"{path} is loaded by a program, which is not run: download its data files and set task.path to their "
            "folder."
        )
    if "Config name is missing" in text:
        text = text.partition(" Example of usage")[0]
        return ConfigError(f"task.subset=null: {path} has several configurations ({text}).")
    if "BuilderConfig" in text:
        return ConfigError(f"task.subset={subset or 'null'}: {path} has no such configuration ({text}).")
    if isinstance(error, ValueError | KeyError) and "split" in text.lower():
        return ConfigError(f"split {split}: {path} has no such split ({text}).")
    return DataError(f"{path}, split {split}: cannot be loaded ({type(error).__name__}: {text}); {REMEDY}.")


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
