"""reasoning_gym's own verifiers, in the processes of a `VerifierPool`."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from rlvr.errors import UserError
from rlvr.rewards.base import Grade
from rlvr.rewards.extract import AnswerFormat, answer_of
from rlvr.rewards.pool import VerifierPool
from rlvr.types import Attempt

_SCORE = "rlvr.rewards.reasoning_gym:score"


@dataclass(frozen=True, kw_only=True)
class ReasoningGymPart:
    """The value, mostly 0 to 1, that the example's data set gives the answer.

    The example's metadata has `dataset`, a name of reasoning_gym's, `entry`, what it generated, and `settings` if those
    were not the defaults: some verifiers depend on them. No answer in the text is `invalid`, and so is one that the
    verifier fails on while it can judge the gold.
    """

    pool: VerifierPool
    format: AnswerFormat

    def __post_init__(self) -> None:
        require_reasoning_gym()
        self.pool.preload("reasoning_gym")

    async def grade(self, attempt: Attempt) -> Grade:
        """The finding on the answer of `attempt.text`."""
        example = attempt.example
        missing = [name for name in ("dataset", "entry") if name not in example.metadata]
        if missing:
            message = (
                f"example {example.id!r} has no metadata {' and '.join(missing)}: it is not one of reasoning_gym's"
            )
            return Grade(value=math.nan, status="error", message=message, bad_data=True)
        answer = answer_of(attempt, self.format)
        if answer is None:
            return Grade(value=0.0, status="invalid")
        settings = json.dumps(dict(example.metadata.get("settings", {})))
        entry = dict(example.metadata["entry"])
        result = await self.pool.call(_SCORE, example.metadata["dataset"], settings, answer, entry)
        if result.status != "ok":
            return Grade(value=math.nan, status="error", message=result.message)
        return Grade(value=0.0, status="invalid") if result.value is None else Grade(value=result.value)


def require_reasoning_gym() -> None:
    """UserError if the package is not installed."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError("reasoning_gym is not installed: pip install 'rlvr[reasoning-gym]'.")


def score(dataset: str, settings: str, answer: str, entry: Mapping[str, Any]) -> float | None:
    """The data set's score of `answer`; None if it fails on it, though not on the gold. Runs in a worker."""
    score_answer = _scorer(dataset, settings)
    try:
        return float(score_answer(answer, entry))
    except Exception:  # foreign code: some verifiers cannot read what is no answer
        score_answer(entry["answer"], entry)
        return None


@lru_cache(maxsize=128)
def _scorer(dataset: str, settings: str) -> Callable[[str, Mapping[str, Any]], float]:
    import reasoning_gym

    return cast(Any, reasoning_gym.create_dataset(dataset, **json.loads(settings)).score_answer)
