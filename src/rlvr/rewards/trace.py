"""Records the steps of a reasoning process for display; not part of the reward.

turn 0   query   "where does p3 work"       document 7 (supporting)   document 2
turn 1   query   "" with id 12              document 12               a document asked for by its id
turn 2   cite 7 (supporting)   cite 99 (ok False: supports nothing, or does not exist)   answer "Oslo" (right)
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from rlvr.rewards.base import Verifier
from rlvr.rewards.extract import AnswerFormat
from rlvr.types import Attempt, Score, TraceStep

Kind = Literal["query", "document", "cite", "answer", "step"]

MAX_STEPS = 200  # recorded steps per episode, before its citations and answer; later ones are dropped

MAX_CITES = 100
MAX_CHARS = 300  # per step's text or id


@lru_cache(maxsize=4096)
def make_step(kind: Kind, text: str, ok: bool | None = None, id: str | None = None, turn: int = 0) -> TraceStep:
    """A step with texts of at most `MAX_CHARS`; equal steps, common within a group, are one object."""
    return TraceStep(kind=kind, text=_cut(text), ok=ok, id=None if id is None else _cut(id), turn=turn)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"


@dataclass(slots=True)
class Trace:
    """The steps of one episode so far. The environment sets the turn, its tools add steps."""

    turn: int = 0
    steps: list[TraceStep] = field(default_factory=list)

    def note(self, kind: Kind, text: str, ok: bool | None = None, id: str | None = None) -> None:
        if len(self.steps) < MAX_STEPS:
            self.steps.append(make_step(kind, text, ok, id, self.turn))

    def ending(self, cited: Iterable[tuple[str, str, bool]], answer: str, ok: bool | None) -> tuple[TraceStep, ...]:
        """The last steps: cited documents (id, title, whether it supports the answer), then the answer."""
        cites = [make_step("cite", title, right, name, self.turn) for name, title, right in cited]
        return (*cites[:MAX_CITES], make_step("answer", answer, ok, None, self.turn))


class TracedAnswer:
    def __init__(self, verifier: Verifier, form: AnswerFormat) -> None:
        self.name = verifier.name
        self._verifier, self._format = verifier, form

    async def verify(self, attempt: Attempt) -> Score:
        score = await self._verifier.verify(attempt)
        answer = self._format.answer_of(attempt)
        return score if answer is None else replace(score, trace=(make_step("answer", answer),))
