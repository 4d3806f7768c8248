"""Records of evaluations that never happened."""

from collections.abc import Sequence
from typing import Any

from rlvr.records.graded import EvaluationRecord, GradedTurn
from rlvr.types import StopReason


def record(example: str, correct: bool, *, sample: int = 0, model: str = "a", **values: Any) -> EvaluationRecord:
    """One graded answer; the settings are the model's."""
    plain: dict[str, Any] = {
        "task": "rpn",
        "settings": f"{model:0<16}",
        "prompt": f"{example} =",
        "turns": (GradedTurn(completion="7" if correct else "8"),),
        "expected": "7",
        "answer": "7" if correct else "8",
        "reward": float(correct),
        "stop_reason": StopReason.STOP,
        "num_prompt_tokens": 4,
        "num_completion_tokens": 2,
        "tags": (),
        "parts": {"correct": float(correct)},
        "diagnostics": {},
    }
    return EvaluationRecord(
        model=model, example_id=example, sample_index=sample, correct=correct, **{**plain, **values}
    )


def greedy(correct: Sequence[bool | int], *, model: str = "a", **values: Any) -> list[EvaluationRecord]:
    """Examples e0, e1, ..., each right or wrong."""
    return [record(f"e{number}", bool(one), model=model, **values) for number, one in enumerate(correct)]
