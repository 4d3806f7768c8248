"""A pseudo terminal, and what is written to it."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def terminal() -> Iterator[tuple[int, list[bytes]]]:
    """The file to write to, and what was written to it, complete after the block."""
    parent, child = os.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # the terminal is closed
            while chunk := os.read(parent, 1 << 16):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield child, chunks
    finally:
        os.close(child)
        reader.join()
        os.close(parent)
