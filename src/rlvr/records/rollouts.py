"""`rollouts/step_000010.jsonl.gz`: samples of a step and their training data, one line per episode.

docs/rollouts.md describes every field. Converts tensors to lists without importing torch.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from rlvr.errors import UserError
from rlvr.records.files import write_atomically, writing
from rlvr.records.jsonl import from_line, to_line
from rlvr.types import Episode, Group, TokenBatch, ToolCall, TraceStep, Turn, TurnText

if TYPE_CHECKING:
    from torch import Tensor

Decode = Callable[[Sequence[int]], str]
Numbers = list[float | None]

MAX_TEXT = 10_000  # characters of a prompt or completion for trackers
MAX_DEPTH = 20  # nesting of a call's arguments; deeper values are only named


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRecord:
    """A tool call as written by the model; `problem` says why it is malformed, else None."""

    name: str
    arguments: dict[str, Any]
    problem: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TextTurn:
    """A turn of any record: completion, tool calls, and reply (None after the last turn)."""

    completion: str
    calls: tuple[CallRecord, ...] = ()
    reply: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRecord(TextTurn):
    """A turn of a rollout file: prompt, and completion as returned by the engine."""

    prompt_ids: list[int]
    completion_ids: list[int]
    prompt: str
    stop_reason: str
    policy_version: int
    behavior_logprobs: Numbers
    sampling_logprobs: Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRecord:
    """One row of the training batch, without padding; lists have one entry per token, None for non-finite numbers.

    Lists that the algorithm did not need are None.
    """

    ids: list[int]
    loss_mask: list[int]
    behavior_logprobs: Numbers
    trainer_logprobs: Numbers | None
    reference_logprobs: Numbers | None
    values: Numbers | None
    advantages: Numbers | None
    returns: Numbers | None
    policy_versions: list[int] | None = None  # missing in older files


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeRecord:
    example_id: str
    answer: str
    group: int
    sample_index: int
    seed: int
    policy_version: int
    reward: float | None
    reward_parts: dict[str, float | None]
    score_status: str
    diagnostics: dict[str, float | str | None]
    stop_reason: str
    advantage: float | None
    trace: list[TraceStep]
    turns: list[TurnRecord]
    rows: list[RowRecord]


_SCHEMA = TypeAdapter(EpisodeRecord)


def make_records(groups: Sequence[Group], batch: TokenBatch, decode: Decode) -> list[EpisodeRecord]:
    """The records of `groups`; `batch.episodes` maps rows to the i-th episode over all groups.

    `batch` may have more rows, of groups that are not recorded.
    """
    rows: defaultdict[int, list[RowRecord]] = defaultdict(list)
    num_episodes = sum(len(group.episodes) for group in groups)
    for row, number in enumerate(batch.episodes.tolist()):
        if number < num_episodes:
            rows[number].append(_row_record(batch, row))
    episodes = [(index, group, episode) for index, group in enumerate(groups) for episode in group.episodes]
    return [_episode_record(*one, rows[number], decode) for number, one in enumerate(episodes)]


def _episode_record(index: int, group: Group, episode: Episode, rows: list[RowRecord], decode: Decode) -> EpisodeRecord:
    parts = zip(episode.turns, episode.texts, [*episode.turns[1:], None], strict=True)
    return EpisodeRecord(
        example_id=episode.example_id,
        answer=group.example.answer,
        group=index,
        sample_index=episode.sample_index,
        seed=episode.seed,
        policy_version=min(turn.completion.policy_version for turn in episode.turns),
        reward=_finite(episode.score.value),
        reward_parts={name: _finite(value) for name, value in sorted(episode.score.parts.items())},
        score_status=episode.score.status,
        diagnostics={
            name: value if isinstance(value, str) else _finite(value)
            for name, value in sorted(episode.score.diagnostics.items())
        },
        stop_reason=str(episode.stop_reason),
        advantage=_mean_advantage(rows),
        trace=list(episode.score.trace),
        turns=[_turn_record(*part, decode) for part in parts],
        rows=rows,
    )


def _turn_record(turn: Turn, text: TurnText, following: Turn | None, decode: Decode) -> TurnRecord:
    completion = turn.completion
    return TurnRecord(
        prompt_ids=list(turn.prompt_ids),
        completion_ids=list(completion.token_ids),
        prompt=decode(turn.prompt_ids),
        completion=text.completion,
        stop_reason=str(completion.stop_reason),
        policy_version=completion.policy_version,
        behavior_logprobs=[_finite(value) for value in completion.behavior_logprobs],
        sampling_logprobs=[_finite(value) for value in completion.sampling_logprobs],
        calls=call_records(text.calls),
        reply=None if following is None else decode(reply_ids(turn, following)),
    )


def reply_ids(turn: Turn, following: Turn) -> tuple[int, ...]:
    """New tokens in the prompt of the following turn, including the template's special tokens.

    These follow prompt + completion or, if the template rewrote history, the common prefix; of a turn that restarts all
    are new, even those that the earlier prompt begins with.
    """
    if following.restarts:
        return following.prompt_ids
    known, prompt = turn.prompt_ids + turn.completion.token_ids, following.prompt_ids
    if prompt[: len(known)] == known:
        return prompt[len(known) :]
    pairs = enumerate(zip(known, prompt, strict=False))
    return prompt[next((place for place, (old, new) in pairs if old != new), len(prompt)) :]


def call_records(calls: Sequence[ToolCall]) -> tuple[CallRecord, ...]:
    """Calls as plain JSON: the model may have written NaN, or deeply nested lists."""
    return tuple(
        CallRecord(name=call.name, arguments=_json(dict(call.arguments), MAX_DEPTH), problem=call.problem)
        for call in calls
    )


def _json(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping) and depth:
        return {str(key): _json(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple) and depth:
        return [_json(item, depth - 1) for item in value]
    if isinstance(value, float):
        return _finite(value)
    return value if isinstance(value, str | int | None) else f"<{type(value).__name__}>"


def _row_record(batch: TokenBatch, row: int) -> RowRecord:
    length, versions = int(batch.lengths[row]), batch.policy_versions

    def numbers(tensor: Tensor | None) -> Numbers | None:
        """In shortest exact form: 0.3, not 0.30000001192092896; exact again after a cast to float32."""
        if tensor is None:
            return None
        array = tensor[row, :length].detach().float().cpu().numpy()
        return [float(str(value)) if math.isfinite(value) else None for value in array]

    return RowRecord(
        ids=batch.ids[row, :length].tolist(),
        loss_mask=batch.loss_mask[row, :length].int().tolist(),
        behavior_logprobs=numbers(batch.behavior_logprobs) or [],
        trainer_logprobs=numbers(batch.columns.get("old_logprobs")),  # before the update
        reference_logprobs=numbers(batch.columns.get("reference_logprobs")),
        values=numbers(batch.columns.get("values")),
        advantages=numbers(batch.advantages),
        returns=numbers(batch.returns),
        policy_versions=None if versions is None else versions[row, :length].tolist(),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _mean_advantage(rows: Sequence[RowRecord]) -> float | None:
    """Mean over the sampled tokens: the episode's advantage if all of its tokens share one."""
    tokens = [token for row in rows for token in zip(row.advantages or (), row.loss_mask, strict=False)]
    kept = [value for value, mask in tokens if mask and value is not None]
    return math.fsum(kept) / len(kept) if kept else None


def completion_rows(step: int, records: Sequence[EpisodeRecord]) -> list[dict[str, Any]]:
    """A table for trackers: first prompt, the text of model and tools after it, and reward."""
    parts = sorted({name for record in records for name in record.reward_parts})
    return [
        {"step": step}
        | {name: getattr(record, name) for name in ("example_id", "group", "sample_index")}
        | {
            "prompt": _short(record.turns[0].prompt),
            "completion": _short("".join(turn.completion + (turn.reply or "") for turn in record.turns)),
            "answer": _short(record.answer),
        }
        | {name: getattr(record, name) for name in ("reward", "advantage", "stop_reason")}
        | {f"part_{name}": record.reward_parts.get(name) for name in parts}
        for record in records
    ]


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} [... {len(text) - MAX_TEXT} more characters]"


def rollouts_path(folder: Path, step: int) -> Path:
    return folder / f"step_{step:06d}.jsonl.gz"


def write_rollouts(path: Path, records: Sequence[EpisodeRecord]) -> None:
    """Write one rollout file atomically; equal records give equal bytes. UserError: no space, or not writable."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, gzip.compress(b"".join(map(to_line, records)), compresslevel=6, mtime=0))


def read_rollouts(path: Path) -> list[EpisodeRecord]:
    """The records of one rollout file. UserError: the file is damaged or was written by another version."""
    try:
        return list(map(episode_from, rollout_lines(path)))
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise UserError(f"{path} is damaged or not a rollout file ({error}): delete it.") from error


def rollout_lines(path: Path) -> list[bytes]:
    """The lines of a rollout file. Raises OSError, EOFError or zlib.error for a damaged file."""
    return gzip.decompress(path.read_bytes()).split(b"\n")[:-1]


def episode_from(line: bytes) -> EpisodeRecord:
    """The record of a line. ValueError for damage, another version, or lists of different lengths."""
    record = from_line(_SCHEMA, line)
    lists = [(row, getattr(row, item.name)) for row in record.rows for item in fields(row)]
    if not record.turns or any(values is not None and len(values) != len(row.ids) for row, values in lists):
        raise ValueError("an episode without a turn, or lists of different lengths")
    return record


def cut_back(folder: Path, step: int) -> None:
    """Remove the files of steps after `step`, and temporary files of a killed process."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        found = re.fullmatch(r"step_(\d{6,})\.jsonl\.gz", path.name)
        if (found and int(found[1]) > step) or re.fullmatch(r"\.step_\d+\.jsonl\.gz\.tmp-\d+", path.name):
            path.unlink()
