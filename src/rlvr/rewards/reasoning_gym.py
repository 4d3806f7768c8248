"""reasoning_gym's own verifiers."""

import importlib.util
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, cast

from rlvr.errors import UserError, install
from rlvr.registry import register
from rlvr.rewards.base import INVALID, Grade, Part
from rlvr.rewards.parts import PartMetric, PartRunner
from rlvr.run_view import TaskView
from rlvr.types import Attempt


@register("reward", "reasoning_gym")
class ReasoningGym(Part):
    """The value of reasoning_gym's own verifier, mostly 0 to 1, in a killable process.

    The example's metadata has `dataset`, a name in reasoning_gym, `entry`, its generated item, and non-default
    `settings`, on which some verifiers depend. A missing answer is invalid, and so is one that the verifier fails on
    although it can grade the gold.
    """

    needs_metadata = True
    preload = ("reasoning_gym",)
    scores, instead = "task=reasoning_gym", "numeric or text"

    def grade(self, attempt: Attempt) -> Grade:
        example, metadata = attempt.example, attempt.example.metadata
        if not {"dataset", "entry"} <= set(metadata):
            message = f"example {example.id!r} has no metadata dataset and entry: it is not reasoning_gym's"
            return Grade.failed(message, bad_data=True)
        answer, settings = attempt.answer, json.dumps(dict(metadata.get("settings", {})))
        value = None if answer is None else score(metadata["dataset"], settings, answer, metadata["entry"])
        return INVALID if value is None else Grade(value=value)

    def suits(self, task: TaskView) -> bool:
        return task.brings_verifier


def require_reasoning_gym() -> None:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError(f"reasoning_gym is not installed: {install('reasoning-gym')}.")


def score(dataset: str, settings: str, answer: str, entry: Mapping[str, Any]) -> float | None:
    """The data set's score of `answer`; None if the verifier fails on it, but not on the gold."""
    score_answer = _scorer(dataset, settings)
    try:
        return float(score_answer(answer, entry))
    except Exception:  # some verifiers fail on text that is no answer
        score_answer(entry["answer"], entry)
        return None


@lru_cache(maxsize=128)
def _scorer(dataset: str, settings: str) -> Callable[[str, Mapping[str, Any]], float]:
    import reasoning_gym

    return cast(Any, reasoning_gym.create_dataset(dataset, **json.loads(settings)).score_answer)


class ReasoningGymMetric(PartMetric):
    """Right if reasoning_gym's own verifier gives the full value."""

    runner = PartRunner("reasoning_gym", ReasoningGym())
