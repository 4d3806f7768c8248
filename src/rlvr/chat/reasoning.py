"""Reasoning in a completion: nothing within it is a tool call, and many templates drop it later."""

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Marks:
    """How a family marks reasoning."""

    open: str = "<think>"
    close: str = "</think>"
    noise: str | None = None  # a regular expression: marks around the answer, which no template takes back as content


THINK = Marks()
HARMONY = Marks(
    open="<|channel|>analysis<|message|>",
    close="<|end|>",
    noise=r"<\|start\|>assistant|<\|channel\|>(?:final|commentary)[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>|<\|end\|>",
)
GEMMA = Marks(open="<|channel>thought\n", close="<channel|>")
ATEM = Marks(
    open="to=self<|message|>",
    close="<|eom|>",
    noise=r"(?:<\|start\|>assistant)?(?: ?to=[^\s<]+)?<\|message\|>|<\|start\|>assistant|<\|eom\|>",
)


def marks_of(template: str) -> Marks:
    """The marks that a chat template names."""
    for marks, word in ((HARMONY, "<|channel|>analysis"), (GEMMA, "<|channel>"), (ATEM, "to=self<|message|>")):
        if word in template:
            return marks
    return THINK


def pieces(text: str, marks: Marks = THINK, *, opened: bool = False) -> Iterator[tuple[str, bool]]:
    """The text cut into (piece, is reasoning), nothing lost; reasoning holds its marks.

        "<think>a</think>b"  ->  ("<think>a</think>", True), ("b", False)

    A closing tag without an opening one ends reasoning that the prompt has opened (DeepSeek-R1); with `opened` it is
    known to have. Reasoning that does not end goes on to the end of the text.
    """
    start = text.find(marks.open)
    first_close = text.find(marks.close) if marks == THINK else -1  # other marks also close what is no reasoning
    if opened or (first_close >= 0 and not 0 <= start < first_close):
        start = 0
    position = 0
    while start >= 0:
        if start > position:
            yield text[position:start], False
        end = text.find(marks.close, start)
        position = len(text) if end < 0 else end + len(marks.close)
        if position > start:
            yield text[start:position], True
        start = text.find(marks.open, position)
    if position < len(text):
        yield text[position:], False


def split(text: str, marks: Marks, *, opened: bool = False) -> tuple[str | None, str]:
    """The reasoning without its marks (None if there is none), and the text beside it."""
    thoughts: list[str] = []
    said: list[str] = []
    for piece, is_reasoning in pieces(text, marks, opened=opened):
        if is_reasoning:
            thoughts.append(piece.removeprefix(marks.open).removesuffix(marks.close).strip("\n"))
        else:
            said.append(piece)
    rest = "".join(said)
    if marks.noise is not None:
        rest = re.sub(marks.noise, "", rest)
    return ("\n".join(thoughts) if thoughts else None), rest
