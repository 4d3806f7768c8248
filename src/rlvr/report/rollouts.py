"""A run's rollout files as page chunks: an index for filters, searchable texts, and the tokens of each episode.

assets/rollouts.js describes the chunks. Logprobs are rounded to 0.0001 and their differences to 0.000001, so that a
ratio of 1.00001 differs from 1.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import compress, groupby, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rlvr.records.jsonl import few
from rlvr.records.rollouts import EpisodeRecord, Numbers, RowRecord, episode_from, rollout_lines
from rlvr.report.page import finite, pack

T = TypeVar("T")

CHUNK_TOKENS = 20_000  # per detail chunk; opening an episode unpacks one
CHUNK_CHARACTERS = 1_000_000  # per text chunk


class RolloutFile(NamedTuple):
    """The rollouts of one step of a run; `run` is its number on the page."""

    run: int
    step: int
    path: Path


def rollout_files(folder: Path, run: int) -> list[RolloutFile]:
    """The rollout files of a run by step."""
    found = [(re.fullmatch(r"step_(\d{6,})\.jsonl\.gz", path.name), path) for path in folder.glob("step_*")]
    return sorted(RolloutFile(run, int(name[1]), path) for name, path in found if name)


def influence_of(file: RolloutFile) -> dict[tuple[int, int], float]:
    """What `rlvr replay --influence` wrote about the step, in the run's folder or beside it: the share in the update by
    group and sample. Empty without a file; ValueError if it is damaged."""
    run = file.path.parent.parent.resolve()
    places = (run / "influence", run.with_name(f"{run.name}.influence"))
    path = next((path for folder in places if (path := folder / f"step_{file.step:06d}.json").is_file()), None)
    if path is None:
        return {}
    try:
        episodes = json.loads(path.read_bytes())["episodes"]
        return {(int(one["group"]), int(one["sample_index"])): float(one["share"]) for one in episodes}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged and left out ({error!r}).") from error


def values_of(file: RolloutFile) -> dict[tuple[int, int], dict[str, Any]]:
    """What `rlvr explain` wrote about the step, beside the run: the values of the states of episodes, by group and
    sample. Empty without a file; ValueError if it is damaged."""
    run = file.path.parent.parent.resolve()
    path = run.with_name(f"{run.name}.explain") / f"step_{file.step:06d}.json"
    if not path.is_file():
        return {}
    names = ("states", "gold", "right", "count", "decisive")
    try:
        episodes = json.loads(path.read_bytes())["episodes"]
        return {(int(one["group"]), int(one["sample_index"])): {name: one[name] for name in names} for one in episodes}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged and left out ({error!r}).") from error


def pack_rollouts(files: Sequence[RolloutFile], max_episodes: int) -> PackedRollouts:
    """Pack at most `max_episodes`, equally many per file, evenly spread over its lines.

    Unreadable files and damaged lines are reported and skipped.
    """
    packed = PackedRollouts()
    counts = []
    for file in files:
        try:
            counts.append(len(rollout_lines(file.path)))
        except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
            counts.append(0)
            packed.notes.append(f"{file.path} is damaged and left out ({error}).")
    packed.total = sum(counts)
    for number, (file, quota) in enumerate(zip(files, quotas(counts, max_episodes), strict=True)):
        lines = rollout_lines(file.path) if quota else []
        influence = packed.noted(influence_of, file) if quota else {}
        values = packed.noted(values_of, file) if quota else {}
        for place in spread(len(lines), quota):
            try:
                packed.add(number, file.run, episode_from(lines[place]), influence, values)
            except ValueError as error:
                packed.notes.append(f"{file.path}, line {place + 1}, is damaged and left out ({error}).")
                packed.total -= 1
    packed.finish(files)
    packed.notes = few(packed.notes)
    return packed


def quotas(counts: Sequence[int], limit: int) -> list[int]:
    """How many to take of each, in equal shares: `quotas([2, 9, 9], 10)` is `[2, 4, 4]`."""
    taken = [0] * len(counts)
    left = limit
    for place, number in enumerate(sorted(range(len(counts)), key=counts.__getitem__)):
        share, rest = divmod(left, len(counts) - place)
        taken[number] = min(counts[number], share + (rest > 0))
        left -= taken[number]
    return taken


def spread(count: int, quota: int) -> list[int]:
    """`quota` evenly spread numbers below `count`: `spread(8, 4)` is `[0, 2, 4, 6]`."""
    return [place * count // quota for place in range(quota)]


class PackedRollouts:
    def __init__(self) -> None:
        self.chunks: dict[str, bytes] = {"index": b""}
        self.ids: defaultdict[int, set[int]] = defaultdict(set)  # token ids in the chunks, by run
        self.kept = 0  # episodes in the chunks
        self.total = 0  # lines of all readable files, without damaged ones
        self.notes: list[str] = []
        self._names: dict[str, dict[Any, int]] = {name: {} for name in ("example", "answer", "stop", "status")}
        self._columns: defaultdict[str, list[Any]] = defaultdict(list)
        self._starts: dict[str, list[int]] = {"text": [], "detail": []}
        self._texts: list[Any] = []
        self._details: list[Any] = []
        self._prompts: dict[str, int] = {}
        self._characters = self._tokens = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.chunks.values()))

    def noted(self, read: Callable[[RolloutFile], dict[tuple[int, int], T]], file: RolloutFile) -> dict[Any, T]:
        """What `read` finds about the file; a damaged one is noted."""
        try:
            return read(file)
        except ValueError as error:
            self.notes.append(str(error))
            return {}

    def add(
        self,
        file: int,
        run: int,
        record: EpisodeRecord,
        influence: Mapping[tuple[int, int], float] | None = None,
        values: Mapping[tuple[int, int], dict[str, Any]] | None = None,
    ) -> None:
        worth = (values or {}).get((record.group, record.sample_index))
        row = {
            "file": file,
            "example": record.example_id,
            "answer": record.answer,
            "group": record.group,
            "sample": record.sample_index,
            "reward": finite(record.reward),
            "advantage": finite(record.advantage),
            "tokens": sum(len(turn.completion_ids) for turn in record.turns),
            "turns": len(record.turns),
            "stop": record.stop_reason,
            "status": record.score_status,
            "influence": finite((influence or {}).get((record.group, record.sample_index)), 3),
            "rise": worth and finite(max((b - a for a, b in pairwise(worth["gold"])), default=0.0), 3),
        }
        for name, value in row.items():
            known = self._names.get(name)  # texts are referenced by number
            self._columns[name].append(value if known is None else known.setdefault(value, len(known)))
        prompt = record.turns[0].prompt
        texts = [text for turn in record.turns for text in (turn.completion, turn.reply)]
        self._texts.append([self._prompts.setdefault(prompt, len(self._prompts)), texts])
        self._details.append(_detail(record, worth))
        self.kept += 1
        self._characters += len(prompt) + sum(len(text or "") for text in texts)
        for row_record in record.rows:
            self.ids[run].update(row_record.ids)
            self._tokens += len(row_record.ids)
        if self._characters >= CHUNK_CHARACTERS:
            self._cut_texts()
        if self._tokens >= CHUNK_TOKENS:
            self._cut_details()

    def finish(self, files: Sequence[RolloutFile]) -> None:
        self._cut_texts()
        self._cut_details()
        for name in ("influence", "rise"):  # where a command has computed them
            if not any(value is not None for value in self._columns[name]):
                del self._columns[name]
        index = {
            "files": [{"run": file.run, "step": file.step} for file in files],
            "names": {name: list(numbers) for name, numbers in self._names.items()},
            "columns": self._columns,
            "texts": self._starts["text"],
            "details": self._starts["detail"],
        }
        self.chunks["index"] = pack(index)

    def _cut_texts(self) -> None:
        self._cut("text", {"prompts": list(self._prompts), "episodes": self._texts}, len(self._texts))
        self._texts, self._prompts, self._characters = [], {}, 0

    def _cut_details(self) -> None:
        self._cut("detail", self._details, len(self._details))
        self._details, self._tokens = [], 0

    def _cut(self, kind: str, value: Any, num_episodes: int) -> None:
        if num_episodes:
            self.chunks[f"{kind}-{len(self._starts[kind])}"] = pack(value)
            self._starts[kind].append(self.kept - num_episodes)


def _detail(record: EpisodeRecord, values: dict[str, Any] | None) -> dict[str, Any]:
    rows = list(map(_row, record.rows))
    if values is not None:
        left = iter(gains(record, values))
        for row in rows:
            row["gains"] = list(islice(left, len(row["behavior"])))
    return {
        "seed": str(record.seed),  # too large for a JavaScript number
        "version": record.policy_version,
        "parts": {name: finite(value) for name, value in record.reward_parts.items()},
        "diagnostics": {
            name: value if isinstance(value, str) else finite(value) for name, value in record.diagnostics.items()
        },
        "trace": list(map(shallow_dict, record.trace)),
        "turns": [
            {"stop": turn.stop_reason, "version": turn.policy_version, "calls": list(map(shallow_dict, turn.calls))}
            for turn in record.turns
        ],
        "rows": rows,
        **({"values": values} if values is not None else {}),
    }


def gains(record: EpisodeRecord, values: Mapping[str, Any]) -> Numbers:
    """For each sampled token the change of P(gold) between the states around it; None behind the last state."""
    changes = [after - before for before, after in pairwise(values["gold"])]
    starts = [(turn, tokens) for turn, tokens in values["states"]]
    rises: Numbers = []
    for number, turn in enumerate(record.turns):
        for place in range(len(turn.completion_ids)):
            state = bisect_right(starts, (number, place)) - 1
            rises.append(finite(changes[state]) if 0 <= state < len(changes) else None)
    return rises


def shallow_dict(record: Any) -> dict[str, Any]:
    """A dataclass as a mapping, without the copies of `asdict`."""
    return {item.name: getattr(record, item.name) for item in fields(record)}


def _row(row: RowRecord) -> dict[str, Any]:
    """Tokens of a row. `runs`: lengths of the runs of equal mask, 0 first: `[0, 0, 1, 1, 1, 0]` is `[2, 3, 1]`.

    The other lists have an entry per token with mask 1, or are one number for all of them.
    """
    runs = [sum(1 for _ in stretch) for _, stretch in groupby(map(bool, row.loss_mask))]
    if row.loss_mask and row.loss_mask[0]:
        runs.insert(0, 0)
    behavior = list(compress(row.behavior_logprobs, row.loss_mask))
    packed: dict[str, Any] = {"ids": row.ids, "runs": runs, "behavior": _scaled(behavior, 1e4)}
    for name, values in (("trainer", row.trainer_logprobs), ("reference", row.reference_logprobs)):
        if values is not None:
            pairs = zip(compress(values, row.loss_mask), behavior, strict=True)
            packed[name] = _scaled([None if a is None or b is None else a - b for a, b in pairs], 1e6)
    for name in ("advantages", "values", "returns", "policy_versions"):
        if (values := getattr(row, name)) is not None:
            sampled = [finite(value, 5) for value in compress(values, row.loss_mask)]
            packed[name.removeprefix("policy_")] = sampled[0] if len(set(sampled)) == 1 else sampled
    return packed


def _scaled(values: Numbers, scale: float) -> Numbers:
    return [None if value is None or not math.isfinite(value) else round(value * scale) for value in values]


def token_texts(folder: Path, ids: Iterable[int]) -> tuple[dict[int, str], str]:
    """The text of each token inside a sequence, spaces included, by the tokenizer of a run or model folder.

    Without one, an empty mapping and a sentence; all tokenizers of a run are the same.
    """
    from tokenizers import Tokenizer

    names = ("final/", "warm_start/", "checkpoints/step_*/model/", "", "model/")
    found = (path for name in names for path in sorted(folder.glob(f"{name}tokenizer.json"), reverse=True))
    path = next((path for path in found if path.is_file()), None)
    if path is None:
        return {}, f"There is no tokenizer.json in {folder} yet: tokens are shown by their ids."
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        return {}, f"{path} cannot be read ({str(error)[:200]}): tokens are shown by their ids."
    # a damaged record may hold any id; the library accepts 32 bits
    return {number: _token_text(tokenizer, number) if 0 <= number < 2**32 else "" for number in sorted(ids)}, ""


def _token_text(tokenizer: Any, number: int) -> str:
    text = tokenizer.decode([number], skip_special_tokens=False)
    piece = tokenizer.id_to_token(number)
    if piece is None:
        return ""
    if not text or "\ufffd" in text:  # part of a character: show the vocabulary's spelling of its bytes
        return piece
    return f" {text}" if piece.startswith("\u2581") and not text.startswith(" ") else text
