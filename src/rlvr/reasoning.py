"""Reasoning in a completion: it holds no answer and no tool calls, and many templates drop it later."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

FIELDS = ("reasoning_content", "reasoning", "thinking")
"""What data, clients and chat templates call the reasoning of an assistant's message."""


@dataclass(frozen=True, kw_only=True)
class Marks:
    """A model family's marks of reasoning."""

    open: str = "<think>"
    close: str = "</think>"
    noise: str | None = None  # regex of marks around the answer that templates do not accept
    closes_others: bool = False  # the closing mark ends other parts of a completion, too
    written: str = "<think>\n{}\n</think>\n\n"  # as models write it in front of the answer

    def around(self, thoughts: str, said: str) -> str:
        """Both as one text. Reasoning without a word is none."""
        return self.written.format(thoughts.strip("\n")) + said if thoughts.strip() else said


THINK = Marks()
HARMONY = Marks(
    open="<|channel|>analysis<|message|>",
    close="<|end|>",
    closes_others=True,
    written="<|channel|>analysis<|message|>{}<|end|>",
    noise=r"<\|start\|>assistant|<\|channel\|>(?:final|commentary)[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>|<\|end\|>",
)
GEMMA = Marks(
    open="<|channel>thought\n", close="<channel|>", closes_others=True, written="<|channel>thought\n{}\n<channel|>"
)
ATEM = Marks(
    open="to=self<|message|>",
    close="<|eom|>",
    closes_others=True,
    written="to=self<|message|>{}<|eom|>",
    noise=r"(?:<\|start\|>assistant)?(?: ?to=[^\s<]+)?<\|message\|>|<\|start\|>assistant|<\|eom\|>",
)


MISTRAL = Marks(open="[THINK]", close="[/THINK]", written="[THINK]{}[/THINK]")


def marks_of(template: str) -> Marks:
    """The marks used by a chat template."""
    of_words = {"<|channel|>analysis": HARMONY, "<|channel>": GEMMA, "to=self<|message|>": ATEM, "[THINK]": MISTRAL}
    return next((marks for word, marks in of_words.items() if word in template), THINK)


Place = tuple[int, int]
"""Start and end in a text."""


def _no_call(text: str, position: int) -> Place | None:
    return None


def pieces(
    text: str,
    marks: Marks = THINK,
    *,
    opened: bool = False,
    next_call: Callable[[str, int], Place | None] = _no_call,
) -> Iterator[tuple[str, bool]]:
    """Split the text into (piece, is reasoning) without loss; reasoning includes its marks.

        "<think>a</think>b"  ->  ("<think>a</think>", True), ("b", False)

    A closing tag without an opening one ends reasoning that the prompt opened (DeepSeek-R1); `opened` says that it did.
    Unclosed reasoning extends to the end of the text. What opens first counts: marks within a call, which `next_call`
    finds behind a position, are text of its arguments.
    """

    first_call = call = next_call(text, 0) if marks.open in text or marks.close in text else None

    def outside(mark: str, position: int) -> int:
        """The first such mark behind the position that is in no call; -1 if there is none."""
        nonlocal call
        while (start := text.find(mark, position)) >= 0:
            if call is not None and call[0] < position:
                call = next_call(text, position)
            if call is None or start < call[0]:
                return start
            position = call[1]
        return -1

    first_close = -1 if marks.closes_others else outside(marks.close, 0)
    call = first_call
    start = outside(marks.open, 0)
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
        start = outside(marks.open, position)
    if position < len(text):
        yield text[position:], False


def split(text: str, marks: Marks, *, opened: bool = False) -> tuple[str | None, str]:
    """The reasoning without marks (None if there is none), and the other text."""
    thoughts: list[str] = []
    answer: list[str] = []
    for piece, is_reasoning in pieces(text, marks, opened=opened):
        if is_reasoning:
            thoughts.append(piece.removeprefix(marks.open).removesuffix(marks.close).strip("\n"))
        else:
            answer.append(piece)
    rest = "".join(answer)
    if marks.noise is not None:
        rest = re.sub(marks.noise, "", rest)
    return ("\n".join(thoughts) if thoughts else None), rest
