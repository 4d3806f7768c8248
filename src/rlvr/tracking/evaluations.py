"""Records of judged episodes, one JSON line each: what `eval`, `predict` and `benchmark` write, and what `analyze` and
`report` read. docs/evaluation.md describes every field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rlvr.errors import UserError
from rlvr.tracking.files import write_atomically, writing
from rlvr.tracking.rollouts import CallRecord
from rlvr.types import StopReason, TraceStep


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a record comes from: `Origin(model="runs/latest/final", task="rpn", split="test")`.

    `settings` is a short hash of everything that decides what is asked, sampled and judged, the weights included:
    records with equal settings, example and sample are the same measurement. `retriever` is None where nothing is
    searched.
    """

    model: str = ""
    task: str = ""
    split: str = "test"
    retriever: str | None = None
    settings: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedTurn:
    """One completion, the tools that it calls, and what came back: None after the last one.

    `token_ids` and `logprobs` are empty where an endpoint does not tell them.
    """

    completion: str
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    calls: Sequence[CallRecord] = ()
    reply: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRecord:
    """One judged episode. `sample_index` 0 is the greedy one, 1..k are sampled. `failure`: why it could not be judged.

    `EvaluationRecord(model="runs/latest/final", task="rpn", split="test", retriever=None, settings="3f2a...",
    example_id="3 4 +", sample_index=0, prompt="<boe> 3 4 + =", turns=(JudgedTurn(completion="7 <eoe>"),),
    expected="7", answer="7", correct=True, reward=1.0, stop_reason=StopReason.STOP, num_prompt_tokens=5,
    num_completion_tokens=2, tags=("1_operators",), parts={"correct": 1.0}, diagnostics={})`
    """

    model: str = ""
    task: str = ""
    split: str = "test"
    retriever: str | None = None
    settings: str = ""
    example_id: str
    sample_index: int
    prompt: str
    turns: Sequence[JudgedTurn]
    expected: str
    answer: str | None
    correct: bool
    reward: float  # NaN where the verifier failed; null in the file
    stop_reason: StopReason
    num_prompt_tokens: int = 0  # of all turns' prompts: what was read, earlier turns once
    num_completion_tokens: int
    tags: tuple[str, ...]
    parts: Mapping[str, float]
    diagnostics: Mapping[str, float | str]
    failure: str | None = None
    trace: tuple[TraceStep, ...] = ()
    time_s: float = 0.0  # from the first prompt to the verdict, other episodes in between: the only field of the clock

    @property
    def completions(self) -> tuple[str, ...]:
        """What was said, turn by turn."""
        return tuple(turn.completion for turn in self.turns)

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes it the same measurement: settings, example, sample."""
        return self.settings, self.example_id, self.sample_index


def to_json(record: EvaluationRecord) -> str:
    """One line without its end; an infinite or missing number is null."""
    return json.dumps(_fields(record), ensure_ascii=False, default=_fields)


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(record, field.name)) for field in fields(record)}


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def from_json(line: str) -> EvaluationRecord:
    """The record of a line.

    Raises:
        ValueError: no JSON, or not such a record.
    """
    data = json.loads(line)
    try:
        turns = tuple(
            JudgedTurn(
                completion=turn["completion"],
                token_ids=tuple(turn["token_ids"]),
                logprobs=tuple(turn["logprobs"]),
                calls=tuple(CallRecord(**call) for call in turn["calls"]),
                reply=turn["reply"],
            )
            for turn in data["turns"]
        )
        known = {
            "turns": turns,
            "trace": tuple(TraceStep(**step) for step in data["trace"]),
            "tags": tuple(data["tags"]),
            "stop_reason": StopReason(data["stop_reason"]),
            "reward": math.nan if data["reward"] is None else float(data["reward"]),
        }
        return EvaluationRecord(**{**data, **known})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a record of an evaluation: {error}") from error


def check_writable(path: str) -> None:
    """Before hours of work: UserError if `write_jsonl` could not write there."""
    target = Path(path)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            raise UserError(f"Cannot write {path}: it is no ordinary file; choose another --output.")
        with TemporaryFile(dir=target.parent):
            pass


def write_jsonl(path: str, records: Iterable[EvaluationRecord]) -> None:
    """Write a file of JSON lines, whole or not at all.

    Raises:
        UserError: no space, or not writable.
    """
    target = Path(path).resolve()  # the file behind a link, not the link, is replaced
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    # a lone surrogate in a decoded text must not lose the file
    text = "".join(to_json(record) + "\n" for record in records)
    write_atomically(target, text.encode("utf-8", errors="backslashreplace"))
