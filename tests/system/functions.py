"""Functions that tests name in configurations; workers import this module, so it imports little itself."""

import os
import time


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
    return float(len(bytearray(1 << 30)) > 0)


def process(completion: str) -> int:
    time.sleep(0.2)
    return os.getpid()


def picky(completion: str) -> float:
    """Fails on half of all texts."""
    if len(completion) % 2:
        raise ValueError("not this one")
    return 1.0
