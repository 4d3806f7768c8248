"""Where things are outside of a run: caches, models behind an address, and folders of runs."""

import os
from pathlib import Path
from shlex import quote

from rlvr.errors import UserError, nearest


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/rlvr`, or `~/.cache/rlvr`. UserError for a user without a home."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "rlvr"
    try:
        return Path.home() / ".cache" / "rlvr"
    except RuntimeError:  # HOME is not set, and the system does not know the user: containers
        raise UserError("this user has no home folder for caches: set XDG_CACHE_HOME to a folder.") from None


ENDPOINT = "openai:"
"""Starts the name of a model behind an endpoint: `openai:http://127.0.0.1:8000/v1#NAME`."""


def near(path: Path) -> str:
    """` (did you mean runs/latest?)`, if a sibling folder has a similar name."""
    folder = path.parent
    names = [one.name for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []
    found = nearest(path.name, names)
    return f" (did you mean {folder / found}?)" if found else ""


def check_one_run(path: Path) -> None:
    """UserError for a folder of runs, or of sweeps: it names one that was meant perhaps, the newest."""
    if not path.is_dir() or any((path / name).exists() for name in ("config.yaml", "config.json", "manifest.json")):
        return
    files = [*path.glob("*/metrics.jsonl"), *path.glob("*/*/metrics.jsonl")]
    runs = [file.parent for file in files if (file.parent / "config.yaml").is_file()]
    if not runs:
        return
    newest = max(runs, key=lambda run: (run.name == "latest", (run / "metrics.jsonl").stat().st_mtime))
    raise UserError(
        f"{path} is a folder of runs: name one of them, e.g. {newest}; `rlvr runs {quote(str(path))}` lists them."
    )
