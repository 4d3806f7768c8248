"""Which warnings a command prints: rlvr's own and those of modules in the user's folders, not of installed packages."""

import os
import sys
import warnings
from pathlib import Path
from typing import TextIO

_PACKAGE = os.path.dirname(__file__) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


def hide_library_warnings() -> None:
    """Print no warning that is attributed to a library; with -W or PYTHONWARNINGS change nothing.

    For a process that is a command or belongs to one. A warning is judged when it is printed, in any thread: filters
    would not last, since libraries reset them.
    """
    if sys.warnoptions:
        return
    show = warnings.showwarning

    def show_ours(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not _is_library(filename):
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = show_ours


def _is_library(filename: str) -> bool:
    if filename.startswith(_PACKAGE):
        return False
    installed = {"site-packages", "dist-packages"} & {*Path(filename).parts}
    return bool(installed) or filename.startswith((_STANDARD_LIBRARY, "<frozen "))
