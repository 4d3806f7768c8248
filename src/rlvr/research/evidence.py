"""Evidence: how much the documents of an episode tell the policy about the gold answer, without labels of support.

    question, 1, 2      P(gold) .80        without 1: .75      without 2: .05

Document 1 contributes .05, document 2 .75; the value of citing both is their mean, .40, and that of citing 2 alone is
higher. P is the geometric mean of the probabilities of the gold's tokens under the policy itself, which reads only the
question and these documents. A document's contribution is never negative, so that values are between 0 and 1; one that
does not exist contributes nothing. Of many documents, each is read among a few others of them, drawn at random: a model
that reads three documents well may read nine badly.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from rlvr.registry import register
from rlvr.rewards.base import Grade, Part
from rlvr.run_view import TaskView
from rlvr.seeding import derive_seed
from rlvr.settings import PositiveInt, setting
from rlvr.types import Attempt, LateGrade, Message


@runtime_checkable
class Readable(Protocol):
    """The state of an episode with documents."""

    def reading(self, ids: Sequence[str]) -> tuple[Message, ...] | None:
        """A fresh prompt with only these documents and the question; None if there is no such document."""
        ...


@dataclass(frozen=True, kw_only=True)
class Contributions:
    """For each document the places of the prompts with it, and without it: `((0, 1), (0, 2))`, twice as many contexts.

    Called with the gold's probability after each prompt: the mean contribution of the `num_documents`.
    """

    pairs: tuple[tuple[tuple[int, int], ...], ...]
    num_documents: int

    def each(self, probabilities: Sequence[float]) -> list[float]:
        """The contribution of each document that was read."""
        return [
            max(0.0, sum(probabilities[full] - probabilities[less] for full, less in of_one) / len(of_one))
            for of_one in self.pairs
        ]

    def __call__(self, probabilities: Sequence[float]) -> float:
        return sum(self.each(probabilities)) / max(1, self.num_documents)


def late_evidence(state: Readable, ids: Sequence[str], *, context_size: int, num_contexts: int, seed: str) -> LateGrade:
    """What the policy must read to grade these documents; nothing if there are none. The draws depend on `seed`."""
    different = tuple(dict.fromkeys(ids))
    known = [name for name in different if state.reading((name,)) is not None]
    rng = random.Random(derive_seed(0, "evidence", seed, *known))
    places: dict[tuple[str, ...], int] = {}
    pairs = []
    for name in known:
        others = [other for other in known if other != name]
        size, contexts = min(context_size - 1, len(others)), list[tuple[int, int]]()
        for _ in range(num_contexts if size < len(others) else 1):
            beside = set(rng.sample(others, size))
            full = tuple(other for other in known if other == name or other in beside)
            less = tuple(other for other in full if other != name)
            contexts.append((places.setdefault(full, len(places)), places.setdefault(less, len(places))))
        pairs.append(tuple(contexts))
    prompts = [state.reading(chosen) for chosen in places]
    assert None not in prompts
    value = Contributions(pairs=tuple(pairs), num_documents=len(different))
    return LateGrade(weight=1.0, prompts=tuple(prompt for prompt in prompts if prompt is not None), value=value)


@register("reward", "evidence")
class Evidence(Part):
    """How much the cited or retrieved documents raise the policy's own probability of the gold answer: the mean over
    them; 0 for none."""

    grades = "documents"
    in_process = True
    needs_policy: ClassVar[bool] = True
    scores, instead = "tasks with documents (musique, hotpotqa, wiki2, keep_one)", "text"
    of: Literal["cited", "retrieved"] = setting("cited", "cited or retrieved documents; those kept count as retrieved")
    context_size: PositiveInt = setting(3, "documents that are read at a time, at most")
    num_contexts: PositiveInt = setting(2, "random contexts of each document, if there are more documents")

    def suits(self, task: TaskView) -> bool:
        return task.rereads

    def grade(self, attempt: Attempt) -> Grade:
        ids = attempt.cited if self.of == "cited" else attempt.retrieved
        if not isinstance(attempt.state, Readable):
            raise TypeError(f"example {attempt.example.id!r} was scored without the documents of its episode")
        late = late_evidence(
            attempt.state,
            ids,
            context_size=self.context_size,
            num_contexts=self.num_contexts,
            seed=attempt.example.id,
        )
        return Grade(value=0.0, late=late)
