"""Where things are outside of a run: caches, and models behind an address."""

import os
from pathlib import Path

from rlvr.errors import UserError


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
