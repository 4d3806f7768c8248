"""What programs attack from within a jail, and must never reach: files, sockets and a process of this machine."""

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

SECRET = "SECRET-4711"


class Host(contextlib.AbstractContextManager["Host"]):
    def __init__(self, folder: Path) -> None:
        self.secret = folder / "home" / "secret.txt"
        self.secret.parent.mkdir()
        self.secret.write_text(SECRET)
        self.folder = folder / "shared"
        self.folder.mkdir(mode=0o777)
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.abstract = f"rlvr-attacks-{os.getpid()}"
        unix = folder / "socket"
        places = {
            "TCP": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "UDP": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "UNIX": (socket.AF_UNIX, socket.SOCK_STREAM, str(unix)),
            "ABSTRACT": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.abstract}"),
        }
        self.sockets = {name: socket.socket(family, kind) for name, (family, kind, _) in places.items()}
        for name, listening in self.sockets.items():
            listening.bind(places[name][2])
            listening.setblocking(False)
            if listening.type == socket.SOCK_STREAM:
                listening.listen()
        self._first = self.state()

    def filled(self, program: str) -> str:
        """The program with the places of this host."""
        ports = {name: self.sockets[name].getsockname()[1] for name in ("TCP", "UDP")}
        given = {"SECRET": self.secret, "FOLDER": self.folder, "PID": self.process.pid, **ports}
        given |= {"UNIX": self.sockets["UNIX"].getsockname(), "ABSTRACT": self.abstract}
        for name, value in given.items():
            program = program.replace(f"@{name}@", str(value))
        return program

    def state(self) -> dict[str, object]:
        """All that an attack may not change."""
        secret, pid = self.secret.stat(), self.process.pid
        return {
            "secret": (self.secret.read_text(), secret.st_mode, secret.st_uid, secret.st_mtime),
            "folder": sorted(path.name for path in self.folder.parent.rglob("*")),
            "process": (self.process.poll(), os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)),
            "limits": resource.prlimit(pid, resource.RLIMIT_CPU),
            "called": [name for name, listening in self.sockets.items() if _was_called(listening)],
            "name": socket.gethostname(),
            "library": Path(json.__file__).read_text(),
            "left": [place for place in ("/tmp", "/dev/shm", "/var/tmp", "/run", "/") if _has_left(place)],
        }

    def assert_untouched(self) -> None:
        assert self.state() == self._first

    def __exit__(self, *_: object) -> None:
        for listening in self.sockets.values():
            listening.close()
        self.process.kill()
        self.process.communicate()


def _was_called(listening: socket.socket) -> bool:
    try:
        if listening.type == socket.SOCK_STREAM:
            listening.accept()[0].close()
        else:
            listening.recv(100)
    except BlockingIOError:
        return False
    return True


def _has_left(place: str) -> bool:
    return os.path.exists(os.path.join(place, "left_behind"))
