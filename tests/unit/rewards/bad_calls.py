"""What verifiers do to their process, and how to see what is left of it."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

MARK = "RLVR_TEST_MARK"
KEPT: list[object] = []


def survivors(mark: str) -> list[int]:
    """Process ids of everything that inherited the mark and is not a zombie."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue  # it has just ended
        if f"{MARK}={mark}".encode() in environment.split(b"\0"):
            found.append(int(folder.name))
    return found


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def echo(value: object) -> object:
    return value


class SlowToLoad:
    """Takes 0.8 s to load in another process, and the time it is asked for to run."""

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return load_slowly, ()


def load_slowly() -> Callable[[float], str]:
    time.sleep(0.8)
    return sleep


def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "done"


def spin() -> None:
    while True:
        pass


def spin_in_a_thread() -> None:
    thread = threading.Thread(target=spin)
    thread.start()
    thread.join()


def match_for_ever() -> None:
    """A loop in C, which looks for no signals."""
    re.match(r"(a|a)*$", "a" * 60 + "b")


def sleep_through_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(10)


def hang_up() -> None:
    """Closes every socket it has, and goes on."""
    os.closerange(3, 64)
    spin()


HANGS = [spin, spin_in_a_thread, match_for_ever, sleep_through_sigterm]


def hang_with_a_child(path: str) -> None:
    pid = os.fork()
    if pid == 0:
        sleep_through_sigterm()
    Path(path).write_text(str(pid))
    spin()


def leave_a_child() -> int:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid


def leave_a_daemon(path: str) -> None:
    """Leaves its group, and its parent's care."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(path).write_text(str(os.getpid()))
            sleep_through_sigterm()
        while not Path(path).exists():
            pass
        os._exit(0)
    os.wait()


def come_back_twice() -> int:
    """The forked child returns, too."""
    os.fork()
    return 7


def keep_memory(megabytes: int) -> int:
    """Works in a fresh process. The memory is reserved and never touched, so this is quick."""
    KEPT.append(ctypes.create_string_buffer(megabytes << 20))
    return len(KEPT)


def die_soon() -> str:
    """Answers, and ends the process a little later."""
    threading.Timer(0.2, os._exit, (1,)).start()
    return "done"


def kill_the_root() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(10)


def write_into_every_socket(text: bytes = b"[]\n{}\n") -> None:
    for name in os.listdir("/proc/self/fd"):
        if Path(f"/proc/self/fd/{name}").is_socket():
            os.write(int(name), text)
    time.sleep(10)


def claim_a_huge_reply() -> None:
    write_into_every_socket(b"0" * (2 << 20))


def be_interrupted() -> None:
    raise KeyboardInterrupt


def recurse() -> None:
    recurse()


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def fail_without_words() -> None:
    raise MuteError
