"""Rewards of the RPN task: `boxed`, `correct` and `combined`, on the words of prompt + completion.

Worked example, prompt `<boe> 4 0 1 + + =`, completion `4 1 + = 5 <eoe>`:

    position   0     1 2 3 4 5 6   7 8 9  10 11 12
    word     <boe>   4 0 1 + + =   4 1 +  =  5  <eoe>
    e = 12, word e-2 is `=`, word e-1 is an operand: boxed; the operand is the gold 5: correct

The direct answer `5 <eoe>` is boxed too: there e = 8, and word 6 is the prompt's `=`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TYPE_CHECKING

from rlvr.rewards.expressions import Arithmetic, reduce_once
from rlvr.rewards.trace import MAX_STEPS, make_step
from rlvr.types import Attempt, Score, TraceStep

if TYPE_CHECKING:
    from rlvr.config.schema import RpnReward

BEGIN, END, EQUALS = "<boe>", "<eoe>", "="


def boxed_answer(prompt: str, completion: str, arithmetic: Arithmetic) -> str | None:
    """The operand between `=` and the completion's first `<eoe>`, or None.

    An `<eoe>` in the prompt does not count, words after the first one in the completion are ignored.
    """
    written = _before_end(completion)
    if written is None:
        return None
    words = prompt.split() + written
    if len(words) < 2 or words[-2] != EQUALS or words[-1] not in arithmetic.values:
        return None
    return words[-1]


def valid_steps(prompt: str, completion: str, arithmetic: Arithmetic) -> float | None:
    """Share of the written lines that are one reduction pass of the line before; None if no step was written.

    A direct answer writes no step. Each line is checked against the line written before it, so one slip costs one.
    """
    words = completion.split()
    return None if END not in words else _share(_derivation(prompt, words[: words.index(END)], arithmetic))


def _derivation(prompt: str, written: list[str], arithmetic: Arithmetic) -> tuple[list[list[str]], list[bool]] | None:
    """The prompt's expression, then the written lines, and of each of these: is it one pass of the line before?

    None for a direct answer, which writes no step.
    """
    if EQUALS not in written:
        return None
    lines = _lines([word for word in prompt.split() if word != BEGIN] + written)
    right = [len(after) < len(before) and reduce_once(before, arithmetic) == after for before, after in pairwise(lines)]
    return lines, right


def _share(derivation: tuple[list[list[str]], list[bool]] | None) -> float | None:
    if derivation is None:
        return None
    _, right = derivation
    return sum(right) / len(right)


def _trace(
    derivation: tuple[list[list[str]], list[bool]] | None, ended: bool, answer: str | None, correct: bool
) -> tuple[TraceStep, ...]:
    """The expression (nobody judges it), each written line, the answer. A line that was cut off is not judged."""
    steps = () if answer is None else (make_step("answer", answer, correct),)
    if derivation is None:
        return steps
    lines, right = derivation
    judged = (None, *right) if ended else (None, *right[:-1], None)
    return (*map(make_step, repeat("step", MAX_STEPS), map(" ".join, lines), judged), *steps)


def _before_end(completion: str) -> list[str] | None:
    words = completion.split()
    return words[: words.index(END)] if END in words else None


def _lines(words: Sequence[str]) -> list[list[str]]:
    lines: list[list[str]] = [[]]
    for word in words:
        if word == EQUALS:
            lines.append([])
        else:
            lines[-1].append(word)
    return lines


@dataclass(frozen=True)
class RpnVerifier:
    """Scores a completion; `parts` always holds both `boxed` and `correct`, whatever the reward is made of."""

    settings: RpnReward
    arithmetic: Arithmetic
    name: str = "rpn"

    async def verify(self, attempt: Attempt) -> Score:
        """The verdict on the whole completion, its `<eoe>` included."""
        prompt = "\n".join(message.content for message in attempt.example.messages)
        return self.score(prompt, attempt.completion, attempt.example.answer)

    def score(self, prompt: str, completion: str, answer: str) -> Score:
        """`scored` if boxed, else `invalid` with value 0; diagnostics has `valid_steps` where steps were written."""
        words = completion.split()
        ended = END in words
        derivation = _derivation(prompt, words[: words.index(END)] if ended else words, self.arithmetic)
        steps = _share(derivation) if ended else None
        diagnostics = {} if steps is None else {"valid_steps": steps}
        found = boxed_answer(prompt, completion, self.arithmetic)
        correct = float(found == answer)
        return Score(
            value=0.0 if found is None else self._value(correct),
            status="invalid" if found is None else "scored",
            parts={"boxed": float(found is not None), "correct": correct},
            diagnostics=diagnostics,
            trace=_trace(derivation, ended, found, correct == 1.0),
        )

    def _value(self, correct: float) -> float:
        """The reward of a boxed answer."""
        if self.settings.type == "boxed":
            return 1.0
        if self.settings.type == "correct":
            return correct
        return self.settings.boxed_weight + self.settings.correct_weight * correct
