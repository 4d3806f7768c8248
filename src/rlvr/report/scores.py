"""Evaluation records as page data: score tables, a filterable list of examples, and their texts.

A cell is one model on one task with one retriever and one set of settings; the cells of a set (one task and split)
share examples. The comment at the top of assets/evaluations.js describes the data.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.records.graded import EvaluationRecord, GradedTurn
from rlvr.records.jsonl import few
from rlvr.report.page import Page, PageLimits, finite, pack
from rlvr.report.rollouts import shallow_dict, token_texts

CellKey = tuple[str, str, str, str, str]  # task, split, model, retriever ("" for none) and settings
ROWS_OF_A_CHUNK = 50
MAX_PROMPT_CHARS, MAX_COMPLETION_CHARS, MAX_REPLY_CHARS, MAX_ANSWER_CHARS = 8_000, 20_000, 6_000, 2_000
MAX_LISTED_CHARS = 160  # of answers, in the list of examples
MAX_SEARCHED_CHARS = 400  # searchable end of a prompt and of the last completion
MAX_TOKENS = 4_000  # per completion, with their logprobs
MAX_NOTES = 20


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One example and its records by cell number, greedy ones first."""

    set_index: int
    example_id: str
    records: dict[int, list[EvaluationRecord]]

    @property
    def first(self) -> EvaluationRecord:
        return next(iter(self.records.values()))[0]


def evaluation_pages(
    records: Iterable[EvaluationRecord],
    *,
    title: str,
    kind: str = "evaluations",
    analyzed: Mapping[CellKey, dict[str, Any]] | None = None,
    comparisons: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
    limits: PageLimits | None = None,
) -> Page:
    """The page of some records; `kind` is "evaluations" or "benchmark".

    `analyzed` maps cells to known `name`, `scores`, `kinds`, `numbers`, `cost`. Beyond the limits only answers and
    grades are embedded.
    """
    cells, rows = _group(records)
    chunk_of, chunks, ids = _pack_texts(rows, limits or PageLimits())
    counts = [sum(map(len, row.records.values())) for row in rows]
    total, kept = sum(counts), sum(count for count, place in zip(counts, chunk_of, strict=True) if place is not None)
    shown = few(list(notes), MAX_NOTES)
    if kept < total:
        shown.append(
            f"The texts of {total - kept:,} of {total:,} episodes are left out; answers and grades are all there. "
            "Where models disagree comes first (--max-episodes, --max-mb)."
        )
    chunks["examples"] = pack([_listed(row, place) for row, place in zip(rows, chunk_of, strict=True)])
    # for models with a local folder; other tokens are shown by id
    chunks["tokens"] = pack({name: token_texts(Path(name), used)[0] for name, used in sorted(ids.items()) if used})
    sets = _sets(cells, rows, comparisons)
    main = {
        "kind": kind,
        "title": title,
        "facts": [
            ("examples", f"{len(rows):,}"),
            ("episodes", f"{total:,}"),
            ("models", f"{len({cell[2] for cell in cells}):,}"),
            *([("tasks", f"{len(sets):,}")] if len(sets) > 1 else []),
        ],
        "notes": shown,
        "evaluations": {
            "cells": [_cell(cell, rows, number) | (analyzed or {}).get(cell, {}) for number, cell in enumerate(cells)],
            "sets": sets,
            "tokens": True,
        },
    }
    return Page(title=f"rlvr: {title}", main=main, chunks=chunks, kept=kept, total=total, notes=shown)


def _sets(
    cells: Sequence[CellKey], rows: Sequence[_Row], comparisons: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Cells, tags and comparisons of each task and split."""
    tags: dict[int, set[str]] = {}
    for row in rows:
        tags.setdefault(row.set_index, set()).update(row.first.tags)
    return [
        {
            "task": task,
            "split": split,
            "cells": [number for number, cell in enumerate(cells) if cell[:2] == (task, split)],
            "tags": sorted(tags[index]),
            "comparisons": [one for one in comparisons if (one["task"], one["split"]) == (task, split)],
        }
        for index, (task, split) in enumerate(dict.fromkeys(cell[:2] for cell in cells))
    ]


def _group(records: Iterable[EvaluationRecord]) -> tuple[list[CellKey], list[_Row]]:
    """The cells in the order of their first records, and the examples by set, in the same order."""
    cells: dict[CellKey, int] = {}
    sets: dict[tuple[str, str], int] = {}
    rows: dict[tuple[int, str], _Row] = {}
    for record in records:
        where = record.task, record.split, record.model, record.retriever or "", record.settings
        cell = cells.setdefault(where, len(cells))
        place = sets.setdefault((record.task, record.split), len(sets)), record.example_id
        row = rows.setdefault(place, _Row(set_index=place[0], example_id=place[1], records={}))
        samples = row.records.setdefault(cell, [])
        if all(record.sample_index != one.sample_index for one in samples):
            samples.append(record)
    for row in rows.values():
        for of_one in row.records.values():
            of_one.sort(key=lambda record: record.sample_index)
    return list(cells), sorted(rows.values(), key=lambda row: row.set_index)


def _cell(cell: CellKey, rows: Sequence[_Row], number: int) -> dict[str, Any]:
    task, split, model, retriever, settings = cell
    own = [record for row in rows for record in row.records.get(number, ())]
    greedy = [record for record in own if record.sample_index == 0 and record.failure is None]
    return {
        "name": model + (f" + {retriever}" if retriever else ""),
        "model": model,
        "task": task,
        "split": split,
        "retriever": retriever,
        "settings": settings,
        "num_examples": len(greedy),
        "num_right": sum(record.correct for record in greedy),
        "scores": {},
        "kinds": [],
        "numbers": {},
        "cost": {},
    }


def _listed(row: _Row, place: int | None) -> dict[str, Any]:
    """An example's row in the list; `place` is the chunk of its texts, None if they are excluded."""
    first = row.first
    texts = [first.prompt, *(of_one[0].turns[-1].completion for of_one in row.records.values() if of_one[0].turns)]
    return {
        "set": row.set_index,
        "id": _cut(row.example_id, MAX_ANSWER_CHARS),
        "tags": list(first.tags),
        "expected": _cut(first.expected, MAX_LISTED_CHARS),
        "text": "\n".join(dict.fromkeys(text[-MAX_SEARCHED_CHARS:] for text in texts)),
        "chunk": place,
        "results": {number: _result(of_one) for number, of_one in row.records.items()},
    }


def _result(records: Sequence[EvaluationRecord]) -> list[Any]:
    """Grade (1, 0, None if not graded), answer, stop reason, reward, tokens; number of right samples, of samples.

    All but the last two describe the greedy completion, or the first sample without one.
    """
    first, sampled = records[0], [record for record in records if record.sample_index > 0]
    return [
        None if first.failure is not None else int(first.correct),
        first.answer and _cut(first.answer, MAX_LISTED_CHARS),
        str(first.stop_reason),
        finite(first.reward),
        first.num_completion_tokens,
        sum(record.correct for record in sampled),
        len(sampled),
    ]


def _pack_texts(
    rows: Sequence[_Row], limits: PageLimits
) -> tuple[list[int | None], dict[str, bytes], dict[str, set[int]]]:
    """The chunk of each row, the chunks, and the token ids of each model in them.

    Rows are packed up to the limits: first those where cells disagree, then in a fixed pseudorandom order.
    """
    hashes = [hashlib.blake2b(row.example_id.encode(errors="replace"), digest_size=8).digest() for row in rows]
    agree = [len({of_one[0].correct for of_one in row.records.values()}) < 2 for row in rows]
    order = sorted(range(len(rows)), key=lambda number: (agree[number], hashes[number]))
    chunk_of: list[int | None] = [None] * len(rows)
    chunks: dict[str, bytes] = {}
    ids: dict[str, set[int]] = {}
    size = kept = 0
    for start in range(0, len(order), ROWS_OF_A_CHUNK):
        part = order[start : start + ROWS_OF_A_CHUNK]
        records = [record for number in part for of_one in rows[number].records.values() for record in of_one]
        packed = pack({number: _texts(rows[number]) for number in part})
        size, kept = size + len(packed), kept + len(records)
        if size > limits.max_packed_bytes or kept > limits.max_episodes:
            break
        for number in part:
            chunk_of[number] = len(chunks)
        chunks[f"texts-{len(chunks)}"] = packed
        for record in records:
            for turn in record.turns:
                ids.setdefault(record.model, set()).update(turn.token_ids[:MAX_TOKENS])
    return chunk_of, chunks, ids


def _texts(row: _Row) -> dict[str, Any]:
    first = row.first
    return {
        "prompt": _cut_head(first.prompt),
        "expected": _cut(first.expected, MAX_ANSWER_CHARS),
        "records": {number: [_episode(record, first) for record in of_one] for number, of_one in row.records.items()},
    }


def _episode(record: EvaluationRecord, first: EvaluationRecord) -> dict[str, Any]:
    episode: dict[str, Any] = {
        "sample": record.sample_index,
        "turns": [_turn(turn) for turn in record.turns],
        "answer": record.answer and _cut(record.answer, MAX_ANSWER_CHARS),
        "correct": record.correct,
        "reward": finite(record.reward),
        "stop": str(record.stop_reason),
        "tokens": [record.num_prompt_tokens, record.num_completion_tokens],
        "seconds": finite(record.time_s, 3),
        "parts": {name: finite(value, 4) for name, value in record.parts.items()},
        "facts": {
            name: _cut(value, MAX_ANSWER_CHARS) if isinstance(value, str) else finite(value, 4)
            for name, value in record.diagnostics.items()
        },
        "trace": list(map(shallow_dict, record.trace)),
    }
    if record.failure is not None:
        episode["failure"] = _cut(record.failure, MAX_ANSWER_CHARS)
    if record.prompt != first.prompt:
        episode["prompt"] = _cut_head(record.prompt)
    if record.expected != first.expected:
        episode["expected"] = _cut(record.expected, MAX_ANSWER_CHARS)
    return episode


def _turn(turn: GradedTurn) -> dict[str, Any]:
    """`calls` are pairs of text and problem: `["search(query=\\"Oslo\\")", null]`."""
    shown: dict[str, Any] = {"said": _cut(turn.completion, MAX_COMPLETION_CHARS)}
    if turn.token_ids:
        shown["ids"] = list(turn.token_ids[:MAX_TOKENS])
    if turn.logprobs:
        shown["logprobs"] = [finite(value, 4) for value in turn.logprobs[:MAX_TOKENS]]
    if turn.calls:
        shown["calls"] = [[_call(call.name, call.arguments), call.problem] for call in turn.calls[:100]]
    if turn.reply is not None:
        shown["reply"] = _cut(turn.reply, MAX_REPLY_CHARS)
    return shown


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    said = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return _cut(f"{name}({said})", MAX_ANSWER_CHARS)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} ... {len(text) - limit:,} characters left out"


def _cut_head(prompt: str) -> str:
    left_out = len(prompt) - MAX_PROMPT_CHARS
    return prompt if left_out <= 0 else f"{left_out:,} characters left out ... {prompt[left_out:]}"
