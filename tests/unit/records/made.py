"""Records of trained episodes, written by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlvr.records.rollouts import EpisodeRecord, RowRecord, TurnRecord


def words(ids: Sequence[int]) -> str:
    """Decodes token 3 to w3."""
    return " ".join(f"w{i}" for i in ids)


def turn_record(prompt: Sequence[int] = (1,), sampled: Sequence[int] = (2,), **changes: Any) -> TurnRecord:
    made = TurnRecord(
        prompt_ids=[*prompt],
        completion_ids=[*sampled],
        prompt=words(prompt),
        completion=words(sampled),
        stop_reason="stop",
        policy_version=0,
        behavior_logprobs=[],
        sampling_logprobs=[],
        calls=(),
        reply=None,
    )
    return replace(made, **changes)


def row_record(ids: list[int], mask: list[int], advantage: float = 0.5) -> RowRecord:
    return RowRecord(
        ids=ids,
        loss_mask=mask,
        behavior_logprobs=[0.0] * len(ids),
        trainer_logprobs=None,
        reference_logprobs=None,
        values=None,
        advantages=[advantage * bit for bit in mask],
        returns=None,
    )


def episode_record(**changes: Any) -> EpisodeRecord:
    """Two turns, without rows."""
    made = EpisodeRecord(
        example_id="e0",
        answer="7",
        group=0,
        sample_index=0,
        seed=1,
        policy_version=0,
        reward=0.5,
        reward_parts={"correct": 1.0},
        score_status="scored",
        diagnostics={},
        stop_reason="stop",
        advantage=-0.25,
        trace=[],
        turns=[
            replace(turn_record(completion="call ", reply="found "), prompt="question "),
            turn_record(completion="answer"),
        ],
        rows=[],
    )
    return replace(made, **changes)
