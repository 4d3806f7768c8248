"""Problems: rows of data that have been understood. And which of them are held out."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """`Problem(id="gsm8k/train/1", key=fingerprint(question), question="Natalia ...", answer="72", solution="...")`

    `key` is equal for two problems that ask the same thing. `solution` leads to the answer and does not name it in the
    asked-for format; `demonstration` is a whole completion in the user's own words. Both may be missing.
    """

    id: str
    key: bytes
    question: str
    answer: str
    solution: str = ""
    demonstration: str | None = None
    turns: tuple[Any, ...] = ()  # what a model says in a demonstration with tools: calls, and in the end a text
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()


def fingerprint(*texts: str) -> bytes:
    """Equal for texts that differ in case and whitespace only."""
    normalized = "\x1f".join(" ".join(text.casefold().split()) for text in texts)
    return hashlib.blake2b(normalized.encode("utf-8", "replace"), digest_size=16).digest()


def is_held_out(key: bytes, share: float, kind: bytes = b"rlvr-data-split") -> bool:
    """True for about `share` of all keys; a hash of the key alone, so no seed, order or other row moves the split."""
    return hash_rank(key, kind) < share * 2**64


def hash_rank(key: bytes, kind: bytes = b"rlvr-data-split") -> int:
    """A number in [0, 2**64) that says nothing about the place in a file: problems sorted by it are a fair sample."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, person=kind).digest(), "big")
