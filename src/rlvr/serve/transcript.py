"""Text as its tokens come: no half of a character, and nothing that may turn out to be a stop text, is given out.

tokens      "The" " caf" "\\xc3" "\\xa9" " EN" "D" ...         stop text "END"
given       "The" " caf" ""     "é"    " "   ""   over
"""

from collections.abc import Callable, Sequence

UNFINISHED = "\ufffd"
MAX_WAITING = 16
"""Tokens that may hold a character back: longer than any character; invalid bytes are then given out as they are."""


class Transcript:
    """The text of one completion: `add` its tokens, `take` what is certain so far, `finish` where nothing follows."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = stops
        self._longest_stop = max(map(len, stops), default=1)
        self._ids: list[int] = []
        self._shown = 0  # tokens whose text is in `text`
        self._context = 0  # decoding starts here: the text of a token may depend on the one before it
        self._taken = 0  # characters
        self._finished = False
        self.text = ""
        self.stopped = False  # a stop text came; `text` ends before it

    def add(self, token: int) -> None:
        """One more token."""
        self._ids.append(token)
        more = self._undecoded()
        if more and (not more.endswith(UNFINISHED) or len(self._ids) - self._shown >= MAX_WAITING):
            self._append(more)
            self._context, self._shown = self._shown, len(self._ids)

    def finish(self) -> None:
        """No token follows."""
        if not self.stopped and not self._finished:
            self._append(self._undecoded())
        self._finished = True

    def take(self) -> str:
        """The certain text that was not taken yet."""
        held = 0 if self.stopped or self._finished else max((_overlap(self.text, s) for s in self._stops), default=0)
        end = max(self._taken, len(self.text) - held)
        taken, self._taken = self.text[self._taken : end], end
        return taken

    def _undecoded(self) -> str:
        known = self._decode(self._ids[self._context : self._shown])
        return self._decode(self._ids[self._context :])[len(known) :]

    def _append(self, more: str) -> None:
        begin = max(0, len(self.text) - self._longest_stop + 1)
        self.text += more
        places = [place for stop in self._stops if (place := self.text.find(stop, begin)) >= 0]
        if places:
            self.text = self.text[: min(places)]
            self.stopped = True


def _overlap(text: str, stop: str) -> int:
    """The length of the longest beginning of `stop`, not all of it, that `text` ends with."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
