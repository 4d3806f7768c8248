"""Functions that tests name in configurations; workers import this module, so it imports little itself."""

import ctypes
import mmap
import os
import subprocess
import sys
import time
from typing import Any


def few(size: int = 100) -> list[tuple[str, int]]:
    return [(f"What is {n} plus one?", n + 1) for n in range(size)]


def squares(size: int = 100) -> list[tuple[str, int]]:
    return [(f"What is {n} times {n}?" + " Please." * (n % 2), n * n) for n in range(size)]


def in_words() -> list[tuple[str, str]]:
    return [(f"<boe> {n} =", str(n)) for n in range(10)]


def length(completion: str, bonus: float = 0.0) -> float:
    return len(completion) + bonus


def twice(completion: str) -> float:
    return 2.0 * len(completion)


def slow(completion: str) -> float:
    time.sleep(0.5)
    return 1.0


def large(completion: str) -> float:
    """Takes a gigabyte of address space and touches none of it."""
    return float(len(mmap.mmap(-1, 1 << 30)) > 0)


def process(completion: str) -> int:
    time.sleep(0.2)
    return os.getpid()


def picky(completion: str) -> float:
    """Fails on half of all texts."""
    if len(completion) % 2:
        raise ValueError("not this one")
    return 1.0


# Verifiers that misbehave on about half of all texts.


def is_odd(completion: str) -> bool:
    return len(completion) % 2 == 1


def hangs(completion: str) -> float:
    while is_odd(completion):
        pass
    return 1.0


def eats_memory(completion: str) -> float:
    kept = []
    while is_odd(completion):
        kept.append(b"x" * (256 << 20))
    return 1.0


def exits(completion: str) -> float:
    if is_odd(completion):
        os._exit(0)
    return 1.0


def crashes(completion: str) -> float:
    if is_odd(completion):
        ctypes.string_at(0)
    return 1.0


def forks_and_hangs(completion: str) -> float:
    """Leaves a child and a grandchild of another session behind, and hangs itself."""
    if is_odd(completion):
        if os.fork() == 0:
            os.setsid()
            os.fork()
        time.sleep(1000)
    return 1.0


def leaves_a_child(completion: str) -> float:
    """Answers, and a process that it started goes on."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    return float(is_odd(completion))


# Rewards that are none.

VALUES: dict[str, Any] = {
    "nan": float("nan"),
    "list": [1.0, 2.0, 3.0],
    "text": "1.0",
    "bool": True,
}


def value(completion: str, kind: str) -> Any:
    return VALUES[kind]


def unreadable(completion: str) -> float | None:
    """Calls half of the texts unreadable."""
    return None if is_odd(completion) else 1.0
