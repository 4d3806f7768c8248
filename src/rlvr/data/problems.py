"""Problems: parsed rows of data, and the held-out split."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlvr.types import Message, ToolSchema

OURS = frozenset({"task", "tags", "aliases", "has_answer", "has_messages", "gold_as_given"})
"""Names in metadata whose meaning is that of tasks, metrics and rewards, whatever data call their columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """A demonstration as chat messages. One that begins with the assistant follows the task's own prompt; `tools` are
    those of its calls (empty: the task's)."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """`Problem(id="gsm8k/train/1", key=fingerprint(question), question="Natalia ...", answer="72", solution="...")`

    `key` is equal for problems that ask the same, `about` for neighbors, such as questions about the same page (empty:
    it has none). `messages` is the whole prompt of data that brings one; `question` is then its text. `tools` are
    offered with it and not executed. `solution` leads to the answer but does not give it in the required
    format; `demonstration` is a whole completion written by the user, `conversation` one in messages. `row` are the
    data's own fields; no name in `metadata` is theirs where it is one of `OURS`. All are optional.
    """

    id: str
    key: bytes
    question: str
    answer: str
    about: bytes = b""
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSchema, ...] = ()
    solution: str = ""
    demonstration: str | None = None
    conversation: Conversation | None = None
    turns: tuple[Any, ...] = ()  # completions of a demonstration with tools: calls, then a text
    metadata: Mapping[str, Any] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()


def fingerprint(*texts: str) -> bytes:
    """Equal for texts that differ only in case and whitespace."""
    normalized = "\x1f".join(" ".join(text.casefold().split()) for text in texts)
    return hashlib.blake2b(normalized.encode("utf-8", "replace"), digest_size=16).digest()


def is_held_out(key: bytes, share: float, kind: bytes = b"rlvr-data-split") -> bool:
    """True for about `share` of all keys; a hash of the key alone, independent of seed, order and other rows."""
    return hash_rank(key, kind) < share * 2**64


def hash_rank(key: bytes, kind: bytes = b"rlvr-data-split") -> int:
    """A hash in [0, 2**64): problems sorted by it are a random sample, independent of the file's order."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, person=kind).digest(), "big")
