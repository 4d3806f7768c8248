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
from itertools import pairwise
from typing import TYPE_CHECKING

from rlvr.rewards.expressions import Arithmetic, reduce_once
from rlvr.types import Attempt, Score

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
    written = _before_end(completion)
    if written is None or EQUALS not in written:
        return None
    lines = _lines([word for word in prompt.split() if word != BEGIN] + written)
    right = [len(after) < len(before) and reduce_once(before, arithmetic) == after for before, after in pairwise(lines)]
    return sum(right) / len(right)


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
        steps = valid_steps(prompt, completion, self.arithmetic)
        diagnostics = {} if steps is None else {"valid_steps": steps}
        found = boxed_answer(prompt, completion, self.arithmetic)
        if found is None:
            return Score(value=0.0, status="invalid", parts={"boxed": 0.0, "correct": 0.0}, diagnostics=diagnostics)
        correct = float(found == answer)
        return Score(value=self._value(correct), parts={"boxed": 1.0, "correct": correct}, diagnostics=diagnostics)

    def _value(self, correct: float) -> float:
        """The reward of a boxed answer."""
        if self.settings.type == "boxed":
            return 1.0
        if self.settings.type == "correct":
            return correct
        return self.settings.boxed_weight + self.settings.correct_weight * correct
