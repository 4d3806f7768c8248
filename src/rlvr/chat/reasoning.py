"""Where a model thinks before it speaks: nothing in there is a tool call."""

from __future__ import annotations

from collections.abc import Iterator

OPEN, CLOSE = "<think>", "</think>"


def pieces(text: str, *, opened: bool = False) -> Iterator[tuple[str, bool]]:
    """The text cut into (piece, is reasoning), nothing lost; reasoning holds its tags.

        "<think>a</think>b"  ->  ("<think>a</think>", True), ("b", False)

    A closing tag without an opening one ends reasoning that the prompt has opened (as the templates of DeepSeek-R1
    do); with `opened` it is known that one did. Reasoning that does not end goes on to the end of the text.
    """
    first_open, first_close = text.find(OPEN), text.find(CLOSE)
    starts_inside = opened or (first_close >= 0 and not 0 <= first_open < first_close)
    position = 0
    start = 0 if starts_inside else first_open
    while start >= 0:
        if start > position:
            yield text[position:start], False
        end = text.find(CLOSE, start)
        position = len(text) if end < 0 else end + len(CLOSE)
        if position > start:
            yield text[start:position], True
        start = text.find(OPEN, position)
    if position < len(text):
        yield text[position:], False
