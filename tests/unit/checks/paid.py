"""A patient whose task is plain questions, and whose reward a function of the text: no model, no episode is played."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.checks import data, margins, rewards
from rlvr.tasks.base import Solution
from rlvr.types import Example, GradedAnswer, Message, Score

Grade = Callable[[Example, str], float | Score]


class Task:
    """Questions `q0`, `q1`, ... with answers 100, 101, ...; of the first `num` a right completion is known."""

    name, vocabulary, sizes = "sums", None, None

    def __init__(self, num: int = 8, answers: Sequence[str] | None = None) -> None:
        self.num, self.answers = num, answers

    def unread_golds(self) -> list[str]:
        return []

    def train_example(self, index: int) -> Example:
        answer = str(100 + index) if self.answers is None else self.answers[index % len(self.answers)]
        return Example(id=f"e{index}", messages=(Message(role="user", content=f"q{index}"),), answer=answer)

    def solutions(self, num: int) -> list[Solution]:
        examples = [self.train_example(index) for index in range(min(num, self.num))]
        return [Solution(example=example, turns=[self.said(index, example)]) for index, example in enumerate(examples)]

    def said(self, index: int, example: Example) -> str:
        return f"so {example.answer}"

    def answered(self, answer: str) -> str | None:
        return f"so {answer}"

    async def grade(self, example: Example, turns: Sequence[str]) -> GradedAnswer:
        return GradedAnswer(answer=turns[-1], correct=turns[-1] == f"so {example.answer}", failure=None)


def patient(grade: Grade, monkeypatch: pytest.MonkeyPatch, task: Task | None = None, **more: Any) -> Any:
    """`grade(example, text)` is the reward of a completion's last text; NaN: it failed."""
    own = task or Task()

    def played(patient: Any, example: Example, turns: Sequence[Any], *, thinks: bool = False) -> Any:
        found = grade(example, f"<think>{turns[-1]}" if thinks else turns[-1])
        if not isinstance(found, Score):
            found = Score(value=found, status="scored" if found == found else "error", diagnostics={"error": "no"})
        return SimpleNamespace(score=found, texts=turns)

    for module in (rewards, data, margins):
        monkeypatch.setattr(module, "played", played)
    rollout = SimpleNamespace(max_completion_tokens=20, prompts_per_step=4, group_size=8)
    plain = {
        "task": own,
        "config": SimpleNamespace(rollout=rollout, reward=SimpleNamespace(num_workers=2)),
        "tasks": SimpleNamespace(verifiers={}, fit=lambda *_: None),
        "reads": lambda text: True,
        "coder": SimpleNamespace(encode=lambda text: tuple(map(ord, text))),
        "chat": SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)), template=None),
    }
    return SimpleNamespace(**{**plain, **more})


def exact(example: Example, text: str) -> float:
    return float(text == f"so {example.answer}")
