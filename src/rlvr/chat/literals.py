"""Values as Gemma 4 and LFM2 write them: almost JSON, almost Python, never evaluated."""

from __future__ import annotations

import re
from typing import Any

from rlvr.chat.tool_calls import MAX_DEPTH, BadJsonError, decode_json

_ATOM = re.compile(r"[^\s,:(){}\[\]'\"<>]+")
_KEY = re.compile(r"[A-Za-z_][\w.-]*")
_SPACE = re.compile(r"\s*")
_STRINGS = {  # opening mark -> the body and the closing mark
    '<|"|>': re.compile(r'(.*?)<\|"\|>', re.DOTALL),
    "'": re.compile(r"((?:[^'\\]|\\.)*)'", re.DOTALL),
    '"': re.compile(r'((?:[^"\\]|\\.)*)"', re.DOTALL),
}
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class LiteralReader:
    """Reads values, keys and marks from left to right. BadJsonError where the text is something else."""

    def __init__(self, text: str, position: int = 0) -> None:
        self.text = text
        self.position = position

    def take(self, mark: str) -> bool:
        """Skip spaces, and the mark if it comes next."""
        self.position = _end(_SPACE, self.text, self.position)
        if not self.text.startswith(mark, self.position):
            return False
        self.position += len(mark)
        return True

    def demand(self, mark: str) -> None:
        """Skip the mark, which must come next."""
        if not self.take(mark):
            raise BadJsonError(f"{mark!r} is missing at character {self.position}")

    def key(self) -> str:
        """A name, bare or as a string."""
        for opening in _STRINGS:
            if self.take(opening):
                return self._string(opening)
        return self._match(_KEY, "a name")

    def value(self, depth: int = 0) -> Any:
        """A string, number, truth value, null, list or object."""
        if depth > MAX_DEPTH:
            raise BadJsonError("it is nested too deep")
        for opening in _STRINGS:
            if self.take(opening):
                return self._string(opening)
        if self.take("["):
            return self._items(depth)
        if self.take("{"):
            return self.pairs(":", "}", depth)
        word = self._match(_ATOM, "a value")
        return _WORDS[word] if word in _WORDS else decode_number(word)

    def pairs(self, between: str, close: str, depth: int = 0) -> dict[str, Any]:
        """`a: 1, b: 2}` with `:` between, or `a=1, b=2)`, behind its opening mark; no key stands twice."""
        found: dict[str, Any] = {}
        while not self.take(close):
            if found:
                self.demand(",")
            key = self.key()
            self.demand(between)
            if key in found:
                raise BadJsonError("a key stands twice")
            found[key] = self.value(depth + 1)
        return found

    def _items(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self.take("]"):
            if found:
                self.demand(",")
            found.append(self.value(depth + 1))
        return found

    def _string(self, opening: str) -> str:
        body = self._match(_STRINGS[opening], "the end of a string")
        if opening == '<|"|>':
            return body
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), body, flags=re.DOTALL)

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        self.position = _end(_SPACE, self.text, self.position) if pattern in (_KEY, _ATOM) else self.position
        found = pattern.match(self.text, self.position)
        if found is None:
            raise BadJsonError(f"{what} is missing at character {self.position}")
        self.position = found.end()
        return found[1] if pattern.groups else found[0]


def decode_number(word: str) -> Any:
    """The number that a bare word is. BadJsonError for other words."""
    value, end = decode_json(word)
    if end != len(word):
        raise BadJsonError(f"{word[:20]!r} is no value")
    return value


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return found.end() if found else position
