"""Run folders made by the real writers, without training."""

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rlvr.config.compose import load_config, to_run_yaml
from rlvr.records.jsonl import MetricsFile
from rlvr.records.rollouts import CallRecord, EpisodeRecord, RowRecord, TurnRecord, rollouts_path, write_rollouts
from rlvr.types import TraceStep

WORDS = ("<q>", "3", "4", "+", "=", "7", "<eoe>")


def episode(
    *,
    group: int = 0,
    sample: int = 0,
    example: str = "3 4 +",
    prompt: str = "<q> 3 4 + =",
    completion: str = "7 <eoe>",
    reply: str | None = None,
    reward: float | None = 1.0,
    advantage: float = 0.5,
    stop: str = "stop",
    status: str = "scored",
    calls: Sequence[CallRecord] = (),
    trace: Sequence[TraceStep] = (),
    behavior: Sequence[float | None] = (-0.25, -0.125),
    trainer: Sequence[float | None] | None = (-0.25, -0.126),
    versions: Sequence[int] | None = None,
) -> EpisodeRecord:
    """An episode of 5 tokens of prompt and 2 sampled ones; with a reply it has a second turn that says the same."""
    turn = TurnRecord(
        prompt_ids=[0, 1, 2, 3, 4],
        completion_ids=[5, 6],
        prompt=prompt,
        completion=completion,
        stop_reason=stop,
        policy_version=3,
        behavior_logprobs=list(behavior),
        sampling_logprobs=list(behavior),
        calls=tuple(calls),
        reply=reply,
    )
    zeros: list[float | None] = [0.0] * 5
    row = RowRecord(
        ids=[0, 1, 2, 3, 4, 5, 6],
        loss_mask=[0, 0, 0, 0, 0, 1, 1],
        behavior_logprobs=[*zeros, *behavior],
        trainer_logprobs=None if trainer is None else [None] * 5 + list(trainer),
        reference_logprobs=None,
        values=None,
        advantages=[*zeros, advantage, advantage],
        returns=None,
        policy_versions=None if versions is None else [-1] * 5 + list(versions),
    )
    return EpisodeRecord(
        example_id=example,
        answer="7",
        group=group,
        sample_index=sample,
        seed=2**62 + 1,
        policy_version=3,
        reward=reward,
        reward_parts={"boxed": 1.0, "correct": reward},
        score_status=status,
        diagnostics={"note": "x"},
        stop_reason=stop,
        advantage=advantage,
        trace=list(trace),
        turns=[turn] if reply is None else [turn, replace(turn, reply=None, calls=())],
        rows=[row],
    )


def save_tokenizer(folder: Path, words: Sequence[str] = WORDS) -> None:
    """A `tokenizer.json` whose ids are places in `words`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.save(str(folder / "tokenizer.json"))


def save_run(
    folder: Path,
    *,
    rollouts: Mapping[int, Sequence[EpisodeRecord]] | None = None,
    metrics: Mapping[int, Mapping[str, float]] | None = None,
    tokenizer: bool = True,
    seed: int = 0,
) -> Path:
    """A run folder: 3 steps, by default, of rising reward with one episode each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(to_run_yaml(load_config(["trainer.max_steps=3", f"seed={seed}"])))
    rows = {step: {"reward/mean": step / 3, "loss/total": -0.1 * step} for step in (1, 2, 3)}
    file = MetricsFile(folder / "metrics.jsonl")
    for step, row in (rows if metrics is None else metrics).items():
        file.append(step, row)
    one = {step: [episode(example=f"example {step}")] for step in (1, 2, 3)}
    for step, records in (one if rollouts is None else rollouts).items():
        write_rollouts(rollouts_path(folder / "rollouts", step), records)
    if tokenizer:
        save_tokenizer(folder / "final")
    return folder


def chunk_of(html: str, name: str) -> Any:
    """A chunk of a page as the browser reads it."""
    found = re.search(rf'<script type="application/gzip" id="chunk-{name}">([^<]*)</script>', html)
    assert found, f"there is no chunk {name}"
    return json.loads(gzip.decompress(base64.b64decode(found[1])))
