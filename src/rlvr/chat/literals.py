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
    """Reads values, keys and marks from left to right. BadJsonError at anything else."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def take(self, mark: str) -> bool:
        """Skip spaces, and the mark if it comes next."""
        self._match(_SPACE, "")
        if not self.text.startswith(mark, self.position):
            return False
        self.position += len(mark)
        return True

    def demand(self, mark: str) -> None:
        """Skip the mark, which must come next."""
        if not self.take(mark):
            raise BadJsonError(f"{mark!r} is missing at character {self.position}")

    def word(self, pattern: re.Pattern[str] = _KEY, what: str = "a name") -> tuple[str, bool]:
        """What comes next, and whether it is a string in quotes; without them it must match the pattern."""
        for opening, body in _STRINGS.items():
            if self.take(opening):
                text = self._match(body, "the end of a string")[1]
                if opening != '<|"|>':
                    text = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)
                return text, True
        return self._match(pattern, what)[0], False

    def value(self, depth: int = 0) -> Any:
        """A string, number, truth value, null, list or object."""
        if depth > MAX_DEPTH:
            raise BadJsonError("it is nested too deep")
        if self.take("["):
            items: list[Any] = []
            while not self.take("]"):
                if items:
                    self.demand(",")
                items.append(self.value(depth + 1))
            return items
        if self.take("{"):
            return self.pairs(":", "}", depth)
        word, is_string = self.word(_ATOM, "a value")
        if is_string or word in _WORDS:
            return word if is_string else _WORDS[word]
        number, end = decode_json(word)
        if end != len(word):
            raise BadJsonError(f"{word[:20]!r} is no value")
        return number

    def pairs(self, between: str, close: str, depth: int = 0) -> dict[str, Any]:
        """`a: 1, b: 2}` with `:` between, or `a=1, b=2)`, behind its opening mark; duplicate keys are an error."""
        found: dict[str, Any] = {}
        while not self.take(close):
            if found:
                self.demand(",")
            key, _ = self.word()
            self.demand(between)
            if key in found:
                raise BadJsonError("a key stands twice")
            found[key] = self.value(depth + 1)
        return found

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self.text, self.position)
        if found is None:
            raise BadJsonError(f"{what} is missing at character {self.position}")
        self.position = found.end()
        return found
