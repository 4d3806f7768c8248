"""A note on libraries in versions that were not tested."""

import hashlib
import re
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version

from rlvr import __version__
from rlvr.errors import UserError
from rlvr.places import cache_folder

INTERNALS = ("transformers", "peft", "torch", "hydra-core")
"""Libraries whose internals are used: any of their releases may break a run."""

DAY_S = 24 * 3600


def note_untested_versions() -> None:
    """Print one line on stderr, at most once a day, if a library is outside of its tested range. Never an error."""
    if not (untested := ", ".join(untested_versions())):
        return
    with suppress(OSError, UserError):  # without a cache the note is printed every time
        stamp = cache_folder() / "untested" / hashlib.sha256(untested.encode()).hexdigest()[:16]
        if stamp.exists() and time.time() - stamp.stat().st_mtime < DAY_S:
            return
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    print(f"note: rlvr {__version__} was not tested with {untested}", file=sys.stderr)


def untested_versions() -> list[str]:
    """Such as `transformers 5.25.0 (tested: <5.25,>=5.17)`: the ranges are those of the installed rlvr."""
    untested = []
    with suppress(PackageNotFoundError):  # a source tree on the path, not installed
        for requirement in requires("rlvr") or ():
            if parts := re.match(rf"({'|'.join(INTERNALS)})([<>=][^;\s]*)", requirement):
                name, bounds = parts.groups()
                if not _is_tested(installed := version(name) or "?", bounds):  # None: damaged metadata
                    untested.append(f"{name} {installed} (tested: {bounds})")
    return untested


def _is_tested(installed: str, bounds: str) -> bool:
    """Whether a version is in a range like `<5.25,>=5.17`; a release candidate counts as its release."""
    lowest, first_untested = (re.search(rf"{symbol}([\d.]+)", bounds) for symbol in (">=", "<"))
    if lowest and _release(installed) < _release(lowest[1]):
        return False
    return not first_untested or _release(installed) < _release(first_untested[1])


def _release(text: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13, 0)."""
    numbers = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()
