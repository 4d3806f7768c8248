"""All evaluation sets of a configuration, one after another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rlvr import __version__
from rlvr.app.chats import make_chat
from rlvr.app.inference import Inference
from rlvr.config import Config
from rlvr.engines.base import Engine
from rlvr.evaluation.evaluate import (
    NOTHING,
    SAMPLING_SEED,
    UNNAMED,
    Done,
    EvalTask,
    OnRecord,
    Progress,
    Records,
    TrainSplit,
    conclude,
    evaluate,
)
from rlvr.evaluation.players import LocalPlayer, Player
from rlvr.evaluation.records import RecordFile
from rlvr.evaluation.summary import EvaluationResult
from rlvr.models.policy import Policy
from rlvr.settings import dumped
from rlvr.tasks.base import Task
from rlvr.tracking.evaluations import Origin
from rlvr.world import ALONE, World

Split = Literal["test", "train"]
Found = dict[str, Records]
"""What was played of each set."""


def evaluate_all(
    config: Config,
    tasks: Sequence[EvalTask],
    policy: Policy,
    engine: Engine,
    context: int,
    *,
    run: Callable[[Coroutine[Any, Any, Found]], Found],
    world: World = ALONE,
) -> dict[str, EvaluationResult]:
    """The result of each task by its name, while training: nothing is kept, and the result is the same on all ranks.

    `run` gives the result of what asks the engine: each rank plays its share there, and they meet here.
    """

    async def play() -> Found:
        found = {}
        for task in tasks:
            player = LocalPlayer(engine=engine, chat=make_chat(config, policy, task), max_context_tokens=context)
            found[task.name] = await _evaluate(config, player, task, world=world)
        return found

    return {name: conclude(name, records, world=world) for name, records in run(play()).items()}


def evaluate_into(
    inference: Inference,
    path: Path | None,
    *,
    split: Split = "test",
    on_progress: Progress | None = None,
    on_note: Callable[[str], None] | None = None,
) -> dict[str, EvaluationResult]:
    """The result of each set by its task's name.

    With a path the records are kept there as they come, in `<path>.partial`, and the finished file is whole and in
    order. A second call with the same settings goes on where the first one was killed; `on_note` gets a sentence for
    each line of the first that is damaged, and what it held is measured again.

    Raises:
        UserError: the file holds an evaluation with other settings, or cannot be written; see also `evaluate`.
    """
    tasks = inference.tasks.eval_sets
    origins = {task.name: origin_of(inference, task, split) for task in tasks}

    async def all_sets(file: RecordFile | None) -> dict[str, EvaluationResult]:
        found = {}
        for task in tasks:
            origin = origins[task.name]
            records = await _evaluate(
                inference.config,
                inference.player(task),
                TrainSplit(task) if split == "train" else task,
                origin=origin,
                done=NOTHING if file is None else file.known(origin.settings),
                on_record=None if file is None else file.add,
                on_progress=on_progress,
            )
            found[task.name] = conclude(task.name, records)
        return found

    if path is None:
        return inference.run(all_sets(None))
    with RecordFile(path, {origin.settings for origin in origins.values()}) as file:
        if on_note is not None:
            for problem in file.problems:
                on_note(problem)
        results = inference.run(all_sets(file))
        file.finish([record for result in results.values() for record in result.records])
    return results


async def _evaluate(
    config: Config,
    player: Player,
    task: EvalTask,
    *,
    origin: Origin = UNNAMED,
    done: Done = NOTHING,
    on_record: OnRecord | None = None,
    on_progress: Progress | None = None,
    world: World = ALONE,
) -> Records:
    return await evaluate(
        player,
        task,
        num_examples=config.evaluation.limit,
        samples_per_example=config.evaluation.samples_per_example,
        max_completion_tokens=config.rollout.max_completion_tokens,
        temperature=config.rollout.temperature,
        top_p=config.rollout.top_p,
        top_k=config.rollout.top_k,
        min_p=config.rollout.min_p,
        origin=origin,
        done=done,
        on_record=on_record,
        on_progress=on_progress,
        world=world,
    )


def origin_of(inference: Inference, task: Task, split: str) -> Origin:
    """Where the records of a task's evaluation come from."""
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
        model=inference.source,
        task=task.name,
        split=split,
        retriever=getattr(bundle.task, "retriever", None),
        settings=_hash(settings),
        conditions=_hash(conditions),
    )


def _hash(settings: Mapping[str, object]) -> str:
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
