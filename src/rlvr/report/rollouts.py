"""A run's rollout files as chunks of a page: an index to filter by, texts to search in, and the tokens of each episode.

assets/rollouts.js describes the chunks. Logprobs are kept to 0.0001 and their differences to 0.000001, so that a ratio
of 1.00001 differs from 1.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlvr.report.page import finite, pack
from rlvr.tracking.rollouts import EpisodeRecord, Numbers, RowRecord

MAX_NOTES = 5
CHUNK_TOKENS = 20_000  # of one chunk of details; opening an episode unpacks one
CHUNK_CHARACTERS = 1_000_000  # of one chunk of texts


@dataclass(frozen=True, kw_only=True)
class RolloutFile:
    """The rollouts of one step of one run, by the run's number on the page."""

    path: Path
    run: int
    step: int


@dataclass(frozen=True, kw_only=True)
class PackedRollouts:
    """Chunks of a page."""

    chunks: dict[str, bytes]
    ids: dict[int, set[int]]  # of all tokens in the chunks, by run
    kept: int  # episodes in the chunks
    total: int  # lines of all readable files, without the damaged ones that were met
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(map(len, self.chunks.values()))


def rollout_files(folder: Path, run: int) -> list[RolloutFile]:
    """The rollout files of a run in the order of their steps."""
    found = [(re.fullmatch(r"step_(\d{6,})\.jsonl\.gz", path.name), path) for path in folder.glob("step_*")]
    files = [RolloutFile(path=path, run=run, step=int(name[1])) for name, path in found if name]
    return sorted(files, key=lambda file: file.step)


def pack_rollouts(files: Sequence[RolloutFile], max_episodes: int) -> PackedRollouts:
    """At most `max_episodes`, equally many of each file, evenly spread over its lines.

    Unreadable files and damaged lines are named and left out.
    """
    notes: list[str] = []
    counts = [_count_lines(file, notes) for file in files]
    packer = _Packer(files)
    num_unreadable = len(notes)
    for number, (file, quota) in enumerate(zip(files, quotas(counts, max_episodes), strict=True)):
        for record in _records(file, spread(counts[number], quota), notes):
            packer.add(number, record)
    num_damaged = len(notes) - num_unreadable
    named = notes[:MAX_NOTES]
    if len(notes) > MAX_NOTES:
        named.append(f"{len(notes) - MAX_NOTES} more files or lines of rollouts are damaged and left out.")
    chunks = packer.finish()
    return PackedRollouts(
        chunks=chunks, ids=packer.ids, kept=packer.count, total=sum(counts) - num_damaged, notes=named
    )


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
    """`quota` numbers below `count`, evenly spread: `spread(8, 4)` is `[0, 2, 4, 6]`."""
    return [place * count // quota for place in range(quota)]


def _read_lines(path: Path) -> list[bytes]:
    """The lines of a rollout file. Raises OSError, EOFError or zlib.error where it is damaged."""
    return gzip.decompress(path.read_bytes()).split(b"\n")[:-1]


def _count_lines(file: RolloutFile, notes: list[str]) -> int:
    try:
        return len(_read_lines(file.path))
    except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        notes.append(f"{file.path} is damaged and left out ({error}).")
        return 0


def _records(file: RolloutFile, wanted: Sequence[int], notes: list[str]) -> Iterator[EpisodeRecord]:
    if not wanted:
        return
    lines = _read_lines(file.path)
    for number in wanted:
        try:
            yield read_episode(lines[number])
        except ValueError as error:
            notes.append(f"{file.path}, line {number + 1}, is damaged and left out ({error}).")


def read_episode(line: bytes) -> EpisodeRecord:
    """The record of a line. ValueError if it is damaged, of another version, or has lists of different lengths."""
    try:
        record = _schema().validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"][:4]))
        raise ValueError(f"{place} {first['msg']}"[:200].strip()) from None
    if not record.turns:
        raise ValueError("an episode without a turn")
    for row in record.rows:
        for item in fields(row):
            values = getattr(row, item.name)
            if values is not None and len(values) != len(row.ids):
                raise ValueError(f"{item.name} has {len(values)} entries for {len(row.ids)} tokens")
    return record


@cache
def _schema() -> TypeAdapter[EpisodeRecord]:
    return TypeAdapter(EpisodeRecord)


# ------------------------------------------------------------------------------------------------------- packing


def _number_of(text: str, numbers: dict[str, int]) -> int:
    """The number of a text among those seen so far."""
    return numbers.setdefault(text, len(numbers))


class _Packer:
    """Collects episodes and cuts them into chunks of a page."""

    def __init__(self, files: Sequence[RolloutFile]) -> None:
        self._files = files
        self._names: dict[str, dict[str, int]] = {name: {} for name in ("example", "answer", "stop", "status")}
        self._columns: defaultdict[str, list[Any]] = defaultdict(list)
        self.ids: defaultdict[int, set[int]] = defaultdict(set)
        self.count = 0
        self.chunks: dict[str, bytes] = {}
        self._starts: dict[str, list[int]] = {"text": [], "detail": []}
        self._texts: list[Any] = []
        self._details: list[Any] = []
        self._prompts: dict[str, int] = {}
        self._characters = self._tokens = 0

    def add(self, file: int, record: EpisodeRecord) -> None:
        row = {
            "file": file,
            "example": _number_of(record.example_id, self._names["example"]),
            "answer": _number_of(record.answer, self._names["answer"]),
            "group": record.group,
            "sample": record.sample_index,
            "reward": finite(record.reward),
            "advantage": finite(record.advantage),
            "tokens": sum(len(turn.completion_ids) for turn in record.turns),
            "turns": len(record.turns),
            "stop": _number_of(record.stop_reason, self._names["stop"]),
            "status": _number_of(record.score_status, self._names["status"]),
        }
        for name, value in row.items():
            self._columns[name].append(value)
        prompt = record.turns[0].prompt
        texts = [text for turn in record.turns for text in (turn.completion, turn.reply)]
        self._texts.append([_number_of(prompt, self._prompts), texts])
        self._details.append(_detail(record))
        self.count += 1
        self._characters += len(prompt) + sum(len(text or "") for text in texts)
        for row_record in record.rows:
            self.ids[self._files[file].run].update(row_record.ids)
            self._tokens += len(row_record.ids)
        if self._characters >= CHUNK_CHARACTERS:
            self._cut_texts()
        if self._tokens >= CHUNK_TOKENS:
            self._cut_details()

    def finish(self) -> dict[str, bytes]:
        self._cut_texts()
        self._cut_details()
        index = {
            "files": [{"run": file.run, "step": file.step} for file in self._files],
            "names": {name: list(numbers) for name, numbers in self._names.items()},
            "columns": self._columns,
            "texts": self._starts["text"],
            "details": self._starts["detail"],
        }
        return {"index": pack(index), **self.chunks}

    def _cut_texts(self) -> None:
        self._cut("text", {"prompts": list(self._prompts), "episodes": self._texts}, len(self._texts))
        self._texts, self._prompts, self._characters = [], {}, 0

    def _cut_details(self) -> None:
        self._cut("detail", self._details, len(self._details))
        self._details, self._tokens = [], 0

    def _cut(self, kind: str, value: Any, num_episodes: int) -> None:
        if num_episodes:
            self.chunks[f"{kind}-{len(self._starts[kind])}"] = pack(value)
            self._starts[kind].append(self.count - num_episodes)


def _detail(record: EpisodeRecord) -> dict[str, Any]:
    """What the index and the texts of an episode leave out."""
    return {
        "seed": str(record.seed),  # beyond what a number of JavaScript can hold
        "version": record.policy_version,
        "parts": {name: finite(value) for name, value in record.reward_parts.items()},
        "diagnostics": {
            name: value if isinstance(value, str) else finite(value) for name, value in record.diagnostics.items()
        },
        "trace": list(map(shallow_dict, record.trace)),
        "turns": [
            {
                "stop": turn.stop_reason,
                "version": turn.policy_version,
                "calls": list(map(shallow_dict, turn.calls)),
            }
            for turn in record.turns
        ],
        "rows": [_row(row) for row in record.rows],
    }


def shallow_dict(record: Any) -> dict[str, Any]:
    """A dataclass by the names of its fields, without the copies of `asdict`."""
    return {item.name: getattr(record, item.name) for item in fields(record)}


def _row(row: RowRecord) -> dict[str, Any]:
    """Tokens of a row. `runs`: the lengths of the runs of equal mask, 0 first: `[0, 0, 1, 1, 1, 0]` is `[2, 3, 1]`.

    The other lists have an entry for each token with mask 1, or are one number for all of them.
    """
    sampled = [place for place, mask in enumerate(row.loss_mask) if mask]
    runs = [sum(1 for _ in stretch) for _, stretch in groupby(map(bool, row.loss_mask))]
    if row.loss_mask and row.loss_mask[0]:
        runs.insert(0, 0)
    behavior = [row.behavior_logprobs[place] for place in sampled]
    packed: dict[str, Any] = {"ids": row.ids, "runs": runs, "behavior": _scaled(behavior, 1e4)}
    for name, values in (("trainer", row.trainer_logprobs), ("reference", row.reference_logprobs)):
        if values is not None:
            pairs = zip((values[place] for place in sampled), behavior, strict=True)
            packed[name] = _scaled([None if a is None or b is None else a - b for a, b in pairs], 1e6)
    lists = {
        "advantages": row.advantages,
        "values": row.values,
        "returns": row.returns,
        "versions": row.policy_versions,
    }
    for name, values in lists.items():
        if values is not None:
            packed[name] = _one([values[place] for place in sampled])
    return packed


def _scaled(values: Numbers, scale: float) -> Numbers:
    return [None if value is None or not math.isfinite(value) else round(value * scale) for value in values]


def _one(values: Sequence[float | None]) -> Any:
    """Numbers with 5 digits; equal ones as one number."""
    if values and len(set(values)) == 1:
        return finite(values[0], 5)
    return [finite(value, 5) for value in values]


# --------------------------------------------------------------------------------------------------- token texts


def tokenizer_of(folder: Path) -> Path | None:
    """The tokenizer.json of a run or model folder; all of a run are the same."""
    names = ("final/", "warm_start/", "checkpoints/step_*/model/", "", "model/")
    found = (path for name in names for path in sorted(folder.glob(f"{name}tokenizer.json"), reverse=True))
    return next((path for path in found if path.is_file()), None)


def token_texts(tokenizer: Path, ids: Iterable[int]) -> dict[int, str]:
    """The text of each token inside a sequence, spaces included. ValueError if the file is no tokenizer."""
    from tokenizers import Tokenizer

    try:
        loaded = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises bare Exceptions
        raise ValueError(str(error)) from error
    # a damaged record may hold any number as an id; the library takes those of 32 bits
    return {number: _token_text(loaded, number) if 0 <= number < 2**32 else "" for number in sorted(ids)}


def _token_text(tokenizer: Any, number: int) -> str:
    text = tokenizer.decode([number], skip_special_tokens=False)
    piece = tokenizer.id_to_token(number)
    if piece is None:
        return ""
    if not text or "\ufffd" in text:  # a part of a character: its bytes as the vocabulary spells them
        return piece
    return f" {text}" if piece.startswith("\u2581") and not text.startswith(" ") else text
