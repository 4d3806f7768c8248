"""Reasoning in a completion: it holds no answer and no tool calls, and many templates drop it later."""

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Marks:
    """A model family's marks of reasoning."""

    open: str = "<think>"
    close: str = "</think>"
    noise: str | None = None  # regex of marks around the answer that templates do not accept
    closes_others: bool = False  # the closing mark ends other parts of a completion, too


THINK = Marks()
HARMONY = Marks(
    open="<|channel|>analysis<|message|>",
    close="<|end|>",
    closes_others=True,
    noise=r"<\|start\|>assistant|<\|channel\|>(?:final|commentary)[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>|<\|end\|>",
)
GEMMA = Marks(open="<|channel>thought\n", close="<channel|>", closes_others=True)
ATEM = Marks(
    open="to=self<|message|>",
    close="<|eom|>",
    closes_others=True,
    noise=r"(?:<\|start\|>assistant)?(?: ?to=[^\s<]+)?<\|message\|>|<\|start\|>assistant|<\|eom\|>",
)


MISTRAL = Marks(open="[THINK]", close="[/THINK]")


def marks_of(template: str) -> Marks:
    """The marks used by a chat template."""
    of_words = {"<|channel|>analysis": HARMONY, "<|channel>": GEMMA, "to=self<|message|>": ATEM, "[THINK]": MISTRAL}
    return next((marks for word, marks in of_words.items() if word in template), THINK)


def pieces(text: str, marks: Marks = THINK, *, opened: bool = False) -> Iterator[tuple[str, bool]]:
    """Split the text into (piece, is reasoning) without loss; reasoning includes its marks.

        "<think>a</think>b"  ->  ("<think>a</think>", True), ("b", False)

    A closing tag without an opening one ends reasoning that the prompt opened (DeepSeek-R1); `opened` says that it did.
    Unclosed reasoning extends to the end of the text.
    """
    start = text.find(marks.open)
    first_close = -1 if marks.closes_others else text.find(marks.close)
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
    """The reasoning without marks (None if there is none), and the other text."""
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
