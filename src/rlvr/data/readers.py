"""Reads splits: local files directly, local repositories and the Hub through the `datasets` library."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.data.rows import ENDINGS, DataError, Row, read_file
from rlvr.errors import ConfigError, UserError
from rlvr.printable import ascii_text

if TYPE_CHECKING:
    from datasets import Dataset

HUB_ID = re.compile(r"(?!.*(--|\.\.))[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
SAVED = ("state.json", "dataset_dict.json")
"""Signs of a folder that `save_to_disk` of `datasets` wrote: one data set, or several by split."""
TIMEOUT_S = 5.0
"""Time limit for the Hub's answer about a data set."""


def split_names(key: str, splits: str) -> list[str]:
    """`train+dev` -> `["train", "dev"]`. ConfigError for an empty or unsafe name."""
    names = splits.split("+")
    for name in names:
        if not re.fullmatch(r"[\w][\w.-]*", name):
            raise ConfigError(f"{key}={ascii_text(splits)}: {ascii_text(name)!r} names no split; join names with +.")
    return names


@dataclass(frozen=True)
class Split:
    """A split of a local folder or of a data set of the Hub.

    `path` is a folder with `<split>.jsonl` or another of `ENDINGS`; a folder with a repository in the Hub's format; or
    a Hub id (an earlier download is read if the Hub cannot be reached). `subset` is the configuration of a repository,
    None for its only one; `key` is the setting that names the path, for errors.
    """

    path: str
    name: str
    subset: str | None = None
    key: str = "task.path"

    def rows(self, fields: Collection[str] = (), most: int | None = None) -> list[Row]:
        """The split's first rows (all if `most` is None), with at least these fields (all if empty).

        ConfigError if it is missing, DataError if it is damaged, UserError if the Hub cannot be reached or refuses.
        """
        folder, shown = Path(self.path).expanduser(), ascii_text(self.path)
        if folder.is_dir():
            file = self._file(folder)
            if file is not None:
                return list(islice(read_file(file), most))
            with quiet(), tempfile.TemporaryDirectory() as cache:
                saved = _saved(folder, self.name) if is_saved(folder) else self._load(str(folder), cache)
                return self._rows(saved, str(folder), fields, most)
        if folder.exists():
            raise ConfigError(f"{self.key}={shown} is a file: name its folder, or read it with task=jsonl.")
        if not HUB_ID.fullmatch(self.path):
            raise ConfigError(f"{self.key}={shown}: there is no such folder, and it is no Hub id (owner/name).")
        with quiet():
            unreachable = self._ask()
            saved = self._cached(unreachable) if unreachable else self._load(self.path)
            return self._rows(saved, self.path, fields, most)

    @property
    def _remedy(self) -> str:
        return f"set {self.key} to a folder that has the files, or RLVR_DATA to the folder around it"

    def _file(self, folder: Path) -> Path | None:
        """The split's file; None if the folder is a copy of a data set of the Hub."""
        for ending in ENDINGS:
            if (file := folder / f"{self.name}{ending}").is_file():
                return file
        if is_saved(folder):
            return None
        # signs of a copy: a card, Parquet files, or a loading script (refused later)
        if any(any(folder.glob(sign)) for sign in ("README.md", f"{folder.name}.py", "*.parquet", "*/*.parquet")):
            return None
        names = ", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) or "nothing"
        raise ConfigError(
            f"{ascii_text(self.path)} has no {self.name}.jsonl, .json, .csv (or one with .gz) or .parquet, only "
            f"{ascii_text(names)}: name another split, or another folder as {self.key}."
        )

    def _rows(self, dataset: Dataset, source: str, fields: Collection[str], most: int | None) -> list[Row]:
        from rlvr.data.arrow import plain_data

        if fields and set(fields) <= set(dataset.column_names):
            dataset = dataset.select_columns(list(fields))
        place = f"{ascii_text(source)}, split {self.name}"
        if len(dataset) == 0:
            raise DataError(f"{place}: is empty, it has no row.")
        rows = dataset.select(range(min(most or len(dataset), len(dataset)))).to_list()
        plain = plain_data(dataset.features.arrow_schema)
        return [Row(f"{place}, row {number}", plain(row), fills_nulls=True) for number, row in enumerate(rows, start=1)]

    def _ask(self) -> str | None:
        """None if the Hub has the data set and grants access, else the reason why it could not be asked.

        `load_dataset` would retry several times, with pauses, before it reports a missing network.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        try:
            HfApi().dataset_info(self.path, timeout=TIMEOUT_S)
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status in (401, 403):
                raise self._refused() from None
            if status == 404:
                raise ConfigError(
                    f"{self.key}={self.path}: there is no such folder, and the Hub has no such data set (or it is "
                    "private and the token may not read it)."
                ) from None
            return f"it answers {status}"
        except Exception as error:  # network errors; their classes depend on the library's version
            return f"{type(error).__name__}: {_first_line(error)}"
        return None

    def _refused(self) -> UserError:
        return UserError(
            f"the Hub refuses access to the data set {self.path} with this token (or without one): check the name, "
            f"accept its conditions at https://huggingface.co/datasets/{self.path} if it has any, log in (hf auth "
            f"login, or HF_TOKEN) with an account that may read it, or {self._remedy}."
        )

    def _cached(self, reason: str) -> Dataset:
        from datasets.packaged_modules.cache.cache import Cache

        name = self.path.rpartition("/")[2]
        try:
            builder = Cache(repo_id=self.path, dataset_name=name, config_name=self.subset, version="auto", hash="auto")
        except ValueError:
            raise UserError(
                f"{self.key}={self.path} is no local folder, was not downloaded before, and the Hub cannot be reached "
                f"({reason}): {self._remedy}, or connect to the network."
            ) from None
        return self._call(lambda: builder.as_dataset(split=self.name))

    def _load(self, path: str, cache_dir: str | None = None) -> Dataset:
        from datasets import load_dataset

        return self._call(lambda: load_dataset(path, self.subset, split=self.name, cache_dir=cache_dir))

    def _call(self, load: Callable[[], Any]) -> Dataset:
        try:
            return load()
        except Exception as error:  # datasets raises many kinds of errors
            text, where = _first_line(error), f"{ascii_text(self.path)}, split {self.name}"
            if "gated dataset" in text:
                raise self._refused() from None
            if "onfig" in text:
                raise ConfigError(f"{where}: has no configuration {self.subset or 'null'} ({text}).") from None
            kind = ConfigError if "split" in text.lower() else DataError
            raise kind(f"{where}: cannot be loaded ({type(error).__name__}: {text}); {self._remedy}.") from None


def is_saved(path: str | Path) -> bool:
    """Whether `save_to_disk` of `datasets` wrote this folder."""
    return any((Path(path).expanduser() / sign).is_file() for sign in SAVED)


def _saved(folder: Path, split: str) -> Dataset:
    """What `save_to_disk` wrote, of its split if it has several.

    ConfigError for an unknown split, DataError for a damaged folder.
    """
    from datasets import Dataset, load_from_disk

    shown = ascii_text(str(folder))
    try:
        saved = load_from_disk(str(folder))
    except Exception as error:
        raise DataError(f"{shown}: cannot be loaded ({type(error).__name__}: {_first_line(error)}).") from None
    if isinstance(saved, Dataset):
        return saved
    if split not in saved:
        known = ", ".join(map(str, saved))
        raise ConfigError(f"{shown} has the splits {ascii_text(known)}: name one of them, with task=hub.")
    return saved[split]


def _first_line(error: Exception) -> str:
    text = " ".join(str(error).split()).partition(" Example of usage")[0] or "no message"
    return ascii_text(text[:200].rstrip("."))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Disable the progress bars and log lines of `datasets`; restored afterwards."""
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
