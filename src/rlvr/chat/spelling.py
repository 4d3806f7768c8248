"""Tokens as bytes, and bytes as text while they come.

A character may be split over tokens, and a part of one is no text:

    tokens    "The" " caf" "\\xc3" "\\xa9"        of byte-level BPE, or `<0xC3>` `<0xA9>` of a byte fallback
    text      "The" " caf" ""     "é"

So the text of a prefix is a prefix of the text only by the bytes: complete characters, then at most one U+FFFD a byte.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

_ANCHOR = "a"  # a token in front: decoders take the space of a first token away
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
UNFINISHED = "\ufffd"
MAX_WAITING = 16
"""Tokens that can delay a character where bytes are unknown: longer than any character; then they are output as they
are."""


class Characters:
    """UTF-8 that comes in pieces: an incomplete character waits, and bytes that are none become U+FFFD."""

    def __init__(self, begin: int = 0) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._count = begin  # characters before and so far

    def add(self, data: bytes, *, final: bool = False) -> str:
        """The characters that are complete now."""
        text = self._utf8.decode(data, final)
        self._count += len(text)
        return text

    def place(self, data: bytes) -> int:
        """Add the data: the number of characters before the one that its first byte belongs to."""
        self.add(data[:1])
        place = self._count - (1 if data and not self._waits else 0)
        self.add(data[1:])
        return place

    @property
    def _waits(self) -> bool:
        return bool(self._utf8.getstate()[0])


class TextStream(Protocol):
    """The text of tokens as they come; together it is the text of all of them."""

    def add(self, token: int) -> str: ...

    def finish(self) -> str: ...


class ByteStream:
    def __init__(self, spell: Callable[[int, int | None], bytes]) -> None:
        self._spell, self._characters, self._previous = spell, Characters(), None

    def add(self, token: int) -> str:
        spelled, self._previous = self._spell(token, self._previous), token
        return self._characters.add(spelled)

    def finish(self) -> str:
        return self._characters.add(b"", final=True)


class WindowStream:
    """For tokenizers of which only `decode` is known: a token's text may depend on the one before."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._context = self._shown = 0  # decoding starts at the first; text is given up to the second

    def add(self, token: int) -> str:
        self._ids.append(token)
        more = self.finish()
        if not more or (more.endswith(UNFINISHED) and len(self._ids) - self._shown < MAX_WAITING):
            return ""
        self._context, self._shown = self._shown, len(self._ids)
        return more

    def finish(self) -> str:
        known = self._decode(self._ids[self._context : self._shown])
        return self._decode(self._ids[self._context :])[len(known) :]


class Spelling:
    """The bytes that each token adds, of a Rust tokenizer whose decoder knows bytes.

    `splits_text` says that its own decoder makes another text of a prefix: of a run of byte tokens it gives only U+FFFD
    if one character is incomplete.
    """

    def __init__(self, backend: Any) -> None:
        self._backend, self._decoder = backend, backend.decoder
        self.is_alphabet = _joins(self._decoder, ["Ã", "©"])
        self.splits_text = not self.is_alphabet and _joins(self._decoder, ["<0xC3>", "<0xA9>"])
        self._known: dict[tuple[int, bool], bytes] = {}

    def __call__(self, token: int, previous: int | None) -> bytes:
        key = (token, previous is None)
        if key not in self._known:
            self._known[key] = self._bytes(*key)
        return self._known[key]

    def _bytes(self, token: int, is_first: bool) -> bytes:
        piece = self._backend.id_to_token(token)
        if piece is None:
            return b""
        if self.is_alphabet:
            places = [_alphabet().get(sign) for sign in piece]
            whole = [place for place in places if place is not None]
            return bytes(whole) if len(whole) == len(places) else piece.encode()
        byte = _BYTE.fullmatch(piece)
        if byte and (not is_first or int(byte[1], 16) >= 0x80):
            return bytes.fromhex(byte[1])
        if is_first:
            return self._decoder.decode([piece]).encode()
        return self._decoder.decode([_ANCHOR, piece])[len(_ANCHOR) :].encode()


def spelling_of(backend: Any) -> Spelling | None:
    """None where the decoder knows no bytes: words, or pieces of text."""
    spelling = Spelling(backend) if backend is not None and backend.decoder is not None else None
    return spelling if spelling and (spelling.is_alphabet or spelling.splits_text) else None


def _joins(decoder: Any, pieces: list[str]) -> bool:
    return decoder.decode(pieces) == "é"


@cache
def _alphabet() -> dict[str, int]:
    """The byte behind each sign of byte-level BPE."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {sign: byte for byte, sign in bytes_to_unicode().items()}
