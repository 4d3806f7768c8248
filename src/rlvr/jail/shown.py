"""What of this machine is in sight in a jail: Python's standard library, and the shared libraries that it loads."""

import os
import sys
import sysconfig
from functools import cache
from glob import glob

_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")


@cache
def shown_paths() -> tuple[list[str], list[str]]:
    """Paths that a jail shows, and folders within them that it hides: installed packages, which may hold the golds of
    public data and anybody's code."""
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    stdlib = os.path.realpath(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    libraries = glob(os.path.join(sys.base_prefix, "lib", "lib*.so*"))
    shown = [path for path in (python, stdlib, *libraries, *_LIBRARIES) if os.path.exists(path)]
    hidden = [path for folder in (stdlib, *_LIBRARIES) for path in _packages(folder)]
    return list(dict.fromkeys(shown)), list(dict.fromkeys(path for path in hidden if not stdlib.startswith(path)))


def _packages(folder: str) -> list[str]:
    """Folders of packages in a folder of libraries."""
    names = ("site-packages", "dist-packages")
    return [path for name in names for path in glob(f"{folder}/{name}") + glob(f"{folder}/python3*/{name}")]


def without(shown: list[str], hidden: list[str]) -> list[str]:
    """The shown paths as a list of rights, none of which reaches a hidden folder: Landlock cannot take one back.

    /lib of /lib/a and /lib/python3/dist-packages  ->  /lib/a (and what else is in /lib/python3)
    """
    paths = []
    for path in shown:
        real = os.path.realpath(path)
        within = [os.path.realpath(each) for each in hidden]
        if real in within:
            continue
        if any(each.startswith(real + "/") for each in within):
            paths += without([entry.path for entry in os.scandir(real)], hidden)
        else:
            paths.append(real)
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]
