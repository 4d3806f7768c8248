"""The kernel's walls around this process: namespaces, or Landlock; and what a program loses before it begins.

Runs inside the jail, before the program: imports only the standard library.
"""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Sequence

from rlvr.jail.seccomp import MACHINES, refuse_calls

_NEW_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000 | 0x02000000
"""User, mount, pid, net, ipc, uts, cgroup."""
_NEW_MOUNTS = 0x00020000
_BIND, _RECURSIVE, _PRIVATE, _NOSUID, _NODEV, _NOEXEC, _DETACH = 0x1000, 0x4000, 0x40000, 2, 4, 8, 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_AT_FDCWD, _AT_RECURSIVE, _READ_ONLY = -100, 0x8000, 1
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 442, 444, 445, 446  # on all machines
_PIVOT_ROOT, _CAPSET = (155, 41), (126, 91)
_CAPABILITIES_3 = 0x20080522
_LANDLOCK_NEEDED = 3  # the first version that guards truncation
_ALL_ACCESS = (1 << 15) - 1  # of version 3
_READ, _READ_LIST, _READ_WRITE = 4, 4 | 8, 2 | 4
_DEVICES = ("null", "zero", "full", "random", "urandom")


class Kernel:
    """Calls of libc and of the kernel; OSError, with the call's name, where one fails."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)

    def call(self, name: str, *arguments: object) -> int:
        return self._checked(name, getattr(self.libc, name)(*arguments))

    def syscall(self, name: str, number: int | tuple[int, int], *arguments: object) -> int:
        if isinstance(number, tuple):
            number = number[MACHINES[platform.machine()][1]]
        words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
        return self._checked(name, self.libc.syscall(ctypes.c_long(number), *words))

    def _checked(self, name: str, result: int) -> int:
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"{name}: {os.strerror(error)}")
        return result

    def mount(self, source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
        texts = [text.encode() for text in (source, target, kind)]
        self.call("mount", *texts, ctypes.c_ulong(flags), options.encode() or None)

    def read_only(self, path: str, flags: int = 0) -> None:
        attributes = struct.pack("QQQQ", _READ_ONLY, 0, 0, 0)
        self.syscall("mount_setattr", _MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, attributes, len(attributes))


def enter_namespaces(kernel: Kernel, shown: Sequence[str], hidden: Sequence[str]) -> None:
    """Go on as the first process of a pid namespace, in a root of the `shown` paths alone, all read-only.

    The `hidden` folders within them are empty. The process that called waits outside for the other's end.
    """
    user, group = os.geteuid(), os.getegid()
    kernel.call("unshare", _NEW_NAMESPACES)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    if child := os.fork():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(0)  # the host sees the end of the other, not of this one
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    kernel.call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    root = "/tmp"
    kernel.mount("none", "/", flags=_RECURSIVE | _PRIVATE)
    # opened before the new root covers what is in /tmp
    sources = {path: os.open(path, os.O_PATH) for path in (*shown, *(f"/dev/{name}" for name in _DEVICES))}
    kernel.mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
    for path, source in sources.items():
        target = root + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        elif not os.path.exists(target):
            open(target, "x").close()
        kernel.mount(f"/proc/self/fd/{source}", target, flags=_BIND | _RECURSIVE)
        os.close(source)
        kernel.read_only(target, _AT_RECURSIVE)
    for path in hidden:
        kernel.mount("tmpfs", root + path, "tmpfs", _NOSUID | _NODEV, "size=4k,mode=555")
    os.makedirs(root + "/tmp", exist_ok=True)
    os.chdir(root)
    kernel.syscall("pivot_root", _PIVOT_ROOT, b".", b".")
    kernel.call("umount2", b".", _DETACH)
    os.chdir("/")
    kernel.read_only("/")


def enter_landlock(kernel: Kernel, shown: Sequence[str]) -> None:
    """Leave this process the right to read the `shown` paths, and to write to no file at all."""
    version = kernel.syscall("landlock", _LANDLOCK_CREATE, None, 0, 1)
    if version < _LANDLOCK_NEEDED:
        raise OSError(0, f"Landlock is of version {version}, and {_LANDLOCK_NEEDED} is needed (Linux 6.2)")
    handled = struct.pack("Q", _ALL_ACCESS)
    rules = kernel.syscall("landlock_create_ruleset", _LANDLOCK_CREATE, handled, len(handled), 0)
    for path in (*shown, *(f"/dev/{name}" for name in _DEVICES)):
        access = _READ_WRITE if path.startswith("/dev/") else _READ_LIST if os.path.isdir(path) else _READ
        place = os.open(path, os.O_PATH)
        kernel.syscall("landlock_add_rule", _LANDLOCK_ADD, rules, 1, struct.pack("=Qi", access, place), 0)
        os.close(place)
    kernel.call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    kernel.syscall("landlock_restrict_self", _LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)


def own_tmp(kernel: Kernel, num_bytes: int) -> None:
    """An empty /tmp that this process alone sees, and that ends with it."""
    kernel.call("unshare", _NEW_MOUNTS)
    kernel.mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV | _NOEXEC, f"size={num_bytes},nr_inodes=1024,mode=777")


def lose_rights(kernel: Kernel, *, host_files: bool) -> None:
    """No capability, no other process, no socket: for good."""
    nothing = struct.pack("IIIIII", 0, 0, 0, 0, 0, 0)
    kernel.syscall("capset", _CAPSET, struct.pack("Ii", _CAPABILITIES_3, 0), nothing)
    kernel.call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)
    refuse_calls(kernel.libc, host_files=host_files)


def guard_memory(kernel: Kernel) -> None:
    """Let no program read or write the memory of this process."""
    kernel.call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)


def limit(*, cpu_s: int, memory_mb: int, file_mb: int, open_files: int) -> None:
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_AS, memory_mb << 20, memory_mb << 20),
        (resource.RLIMIT_FSIZE, file_mb << 20, file_mb << 20),
        (resource.RLIMIT_NOFILE, open_files, open_files),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        try:
            resource.setrlimit(kind, (soft, hard))
        except (OSError, ValueError):
            if sys.platform == "linux":  # macOS knows no limit of the address space
                raise
