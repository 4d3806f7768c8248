"""Evaluates all evaluation sets of a configuration."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlvr import __version__
from rlvr.config import Config
from rlvr.core.world import ALONE, World
from rlvr.evaluation.evaluate import SAMPLING_SEED, Progress, Records, Session, conclude, examples_of, play_set
from rlvr.evaluation.players import Player
from rlvr.evaluation.records import RecordFile
from rlvr.evaluation.summary import EvaluationResult
from rlvr.progress import progress
from rlvr.records.graded import Origin
from rlvr.settings import dumped
from rlvr.tasks.base import Task
from rlvr.types import SamplingParams

if TYPE_CHECKING:  # training evaluates without it
    from rlvr.run.inference import Inference

Split = Literal["test", "train"]


def evaluate_all(
    config: Config,
    tasks: Sequence[Task],
    player: Callable[[Task], Player],
    *,
    run: Callable[[Coroutine[Any, Any, dict[str, Records]]], dict[str, Records]],
    world: World = ALONE,
) -> dict[str, EvaluationResult]:
    """Results by task name, during training: nothing is saved, and all ranks get the same results.

    `run` executes the coroutine: each rank plays its share, and the ranks gather the records.
    """

    async def play() -> dict[str, Records]:
        played = {}
        for task in tasks:
            examples = world.share(examples_of(task, config.evaluation.limit))
            with progress(f"evaluating {task.name}") as on_progress:
                one, session = player(task), Session(on_progress=on_progress)
                played[task.name] = await play_set(one, task, examples, *_draws(config, one), session)
        return played

    return {name: conclude(name, records, world=world) for name, records in run(play()).items()}


def evaluate_into(
    inference: Inference,
    path: Path | None,
    *,
    split: Split = "test",
    on_progress: Progress | None = None,
    on_note: Callable[[str], None] = lambda line: None,
) -> dict[str, EvaluationResult]:
    """Results by task name.

    With a path, records are appended to `<path>.partial`, and the finished file is complete and ordered. A second call
    with the same settings resumes an interrupted one; `on_note` gets a sentence for each damaged line, which is
    measured again. UserError if the file holds an evaluation with other settings, or cannot be written.
    """
    config, tasks, by_task = inference.config, inference.tasks.eval_sets, dict[str, Records]()
    origins = {task.name: origin_of(inference, task, split) for task in tasks}
    settings = {origin.settings for origin in origins.values()}
    with RecordFile(path, settings) if path else nullcontext() as file, asyncio.Runner() as loop:
        for problem in file.problems if file else ():
            on_note(problem)
        for task in tasks:
            examples, player = examples_of(task, config.evaluation.limit, split), inference.player(task)
            session = Session(origin=origins[task.name], file=file, on_progress=on_progress)
            by_task[task.name] = loop.run(play_set(player, task, examples, *_draws(config, player), session))
        results = {name: conclude(name, records) for name, records in by_task.items()}
        if file:
            file.finish([record for result in results.values() for record in result.records])
    return results


def _draws(config: Config, player: Player) -> tuple[SamplingParams, range]:
    """Sampling parameters and sample numbers; sample 0 is greedy."""
    return config.rollout.params(player.stop_ids), range(config.evaluation.samples_per_example + 1)


def origin_of(inference: Inference, task: Task, split: str) -> Origin:
    """Origin of the records of a task's evaluation: model, data and settings."""
    config = inference.config
    bundle = config.bundles.get(task.name, config)
    settings = {
        "version": __version__,
        "set": task.name,
        "model": inference.loaded.fingerprint,
        "bundle": {name: dumped(getattr(bundle, name)) for name in ("task", "reward", "prompt")},
        "markers": dumped(config.markers),
        "sampling": {k: v for k, v in dumped(config.rollout).items() if k not in ("prompts_per_step", "group_size")},
        "split": [split, config.seed if split == "train" else SAMPLING_SEED],
        "first": [[e.id, e.answer, [m.content for m in e.messages]] for e in task.eval_examples(1)],
    }
    conditions = {
        "task": {key: value for key, value in dumped(bundle.task).items() if key != "retriever"},
        "prompt": dumped(bundle.prompt),
        "markers": settings["markers"],
        "max_completion_tokens": config.rollout.max_completion_tokens,
    }
    return Origin(
        model=inference.loaded.source,
        task=task.name,
        split=split,
        retriever=getattr(bundle.task, "retriever", None),
        settings=_hash(settings),
        conditions=_hash(conditions),
    )


def _hash(settings: Mapping[str, object]) -> str:
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
