"""A run's rollout files as chunks of a page: an index to filter by, texts to search in, and the tokens of each episode.

The page reads the index at once and the rest when it is needed; assets/rollouts.js describes the chunks. Logprobs are
kept to 0.0001 and their differences to 0.000001: a ratio of 1.00001 can still be told from 1.
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
CHUNK_TOKENS = 20_000  # of one chunk of details: opening an episode unpacks so much
CHUNK_CHARACTERS = 1_000_000  # of one chunk of texts


@dataclass(frozen=True, kw_only=True)
class RolloutFile:
    """The rollouts of one step of one run, by the run's number on the page."""

    path: Path
    run: int
    step: int


@dataclass(frozen=True, kw_only=True)
class PackedRollouts:
    """Chunks of a page. `total` counts the lines of all readable files but the damaged ones that were met, `kept` the
    episodes that are embedded."""

    chunks: dict[str, bytes]
    ids: dict[int, set[int]]  # of all tokens in the chunks, by run
    kept: int
    total: int
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
    """At most `max_episodes` of all files: as many of each as of the others, evenly spread over a file's lines.

    A file that cannot be read is named and left out, and so is a damaged line.
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
    """How many to take of each: all of the small ones, equally many of the others. `quotas([2, 9, 9], 10)` is
    `[2, 4, 4]`; what cannot be shared equally goes to the first."""
    taken = [0] * len(counts)
    left = limit
    order = sorted(range(len(counts)), key=lambda number: counts[number])
    for place, number in enumerate(order):
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
    """The record of a line.

    Raises:
        ValueError: no JSON, of another version, or lists that do not fit each other; it says where, in a few words.
    """
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


class _Names:
    """Texts that stand often, by their number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    @property
    def all(self) -> list[str]:
        return list(self.numbers)


class _Packer:
    """Collects episodes and cuts them into chunks."""

    def __init__(self, files: Sequence[RolloutFile]) -> None:
        self._files = files
        self._names = {name: _Names() for name in ("example", "answer", "stop", "status")}
        self._columns: defaultdict[str, list[Any]] = defaultdict(list)
        self.ids: defaultdict[int, set[int]] = defaultdict(set)
        self.count = 0
        self.chunks: dict[str, bytes] = {}
        self._starts: dict[str, list[int]] = {"text": [], "detail": []}
        self._waiting: dict[str, list[Any]] = {"text": [], "detail": []}
        self._prompts, self._characters, self._tokens = _Names(), 0, 0

    def add(self, file: int, record: EpisodeRecord) -> None:
        names = self._names
        row = {
            "file": file,
            "example": names["example"](record.example_id),
            "answer": names["answer"](record.answer),
            "group": record.group,
            "sample": record.sample_index,
            "reward": finite(record.reward),
            "advantage": finite(record.advantage),
            "tokens": sum(len(turn.completion_ids) for turn in record.turns),
            "turns": len(record.turns),
            "stop": names["stop"](record.stop_reason),
            "status": names["status"](record.score_status),
        }
        for name, value in row.items():
            self._columns[name].append(value)
        texts = [text for turn in record.turns for text in (turn.completion, turn.reply)]
        self._waiting["text"].append([self._prompts(record.turns[0].prompt), texts])
        self._waiting["detail"].append(_detail(record))
        self.count += 1
        self._characters += len(record.turns[0].prompt) + sum(len(text or "") for text in texts)
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
            "names": {name: names.all for name, names in self._names.items()},
            "columns": self._columns,
            "texts": self._starts["text"],
            "details": self._starts["detail"],
        }
        return {"index": pack(index), **self.chunks}

    def _cut_texts(self) -> None:
        self._cut("text", {"prompts": self._prompts.all, "episodes": self._waiting["text"]})
        self._prompts, self._characters = _Names(), 0

    def _cut_details(self) -> None:
        self._cut("detail", self._waiting["detail"])
        self._tokens = 0

    def _cut(self, kind: str, value: Any) -> None:
        waiting = self._waiting[kind]
        if waiting:
            self.chunks[f"{kind}-{len(self._starts[kind])}"] = pack(value)
            self._starts[kind].append(self.count - len(waiting))
            self._waiting[kind] = []


def _detail(record: EpisodeRecord) -> dict[str, Any]:
    """Everything of an episode that stands neither in the index nor in the texts."""
    return {
        "seed": str(record.seed),  # beyond what a number of JavaScript can hold
        "version": record.policy_version,
        "parts": {name: finite(value) for name, value in record.reward_parts.items()},
        "diagnostics": {
            name: value if isinstance(value, str) else finite(value) for name, value in record.diagnostics.items()
        },
        "trace": [{item.name: getattr(step, item.name) for item in fields(step)} for step in record.trace],
        "turns": [
            {
                "stop": turn.stop_reason,
                "version": turn.policy_version,
                "calls": [{item.name: getattr(call, item.name) for item in fields(call)} for call in turn.calls],
            }
            for turn in record.turns
        ],
        "rows": [_row(row) for row in record.rows],
    }


def _row(row: RowRecord) -> dict[str, Any]:
    """Tokens of a row. `runs`: lengths of stretches that were not sampled, were, were not ...; the other lists have
    an entry for each sampled token, or are one number that stands for all of them."""
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
    for name, values in (("advantages", row.advantages), ("values", row.values), ("returns", row.returns)):
        if values is not None:
            packed[name] = _one([values[place] for place in sampled])
    if row.policy_versions is not None:
        packed["versions"] = _one([row.policy_versions[place] for place in sampled])
    return packed


def _scaled(values: Numbers, scale: float) -> Numbers:
    return [None if value is None or not math.isfinite(value) else round(value * scale) for value in values]


def _one(values: Sequence[float | None]) -> Any:
    """Numbers with 5 digits; a list of equal ones as that number."""
    if values and len(set(values)) == 1:
        return finite(values[0], 5)
    return [finite(value, 5) for value in values]


# --------------------------------------------------------------------------------------------------- token texts


def token_texts(tokenizer: Path, ids: Iterable[int]) -> dict[int, str]:
    """The text of each token as it stands in a sequence, spaces included.

    Raises:
        ValueError: the file is damaged or no tokenizer.
    """
    from tokenizers import Tokenizer

    try:
        loaded = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises bare Exceptions
        raise ValueError(str(error)) from error
    # in a damaged record an id may be any number; the library takes those of 32 bits
    return {number: _token_text(loaded, number) if 0 <= number < 2**32 else "" for number in sorted(ids)}


def _token_text(tokenizer: Any, number: int) -> str:
    text = tokenizer.decode([number], skip_special_tokens=False)
    piece = tokenizer.id_to_token(number)
    if piece is None:
        return ""
    if not text or "\ufffd" in text:  # a part of a character: its bytes as the vocabulary spells them
        return piece
    return f" {text}" if piece.startswith("\u2581") and not text.startswith(" ") else text
