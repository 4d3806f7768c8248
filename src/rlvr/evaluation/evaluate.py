"""Held-out evaluation: greedy accuracy, and with k samples per example avg@k, pass@k and maj@k, with intervals.

The verdict is the task's metric, which shares no code with the training reward: reward hacking must not look like
progress. Examples, draws and resamples are fixed: two evaluations of the same weights agree.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import chain
from typing import Protocol

from rlvr.envs.base import Env, TurnText
from rlvr.errors import ConfigError, UserError
from rlvr.evaluation.players import Played, Player
from rlvr.evaluation.summary import EvaluationResult, summarize
from rlvr.seeding import derive_seed
from rlvr.tracking.evaluations import EvaluationRecord, Origin
from rlvr.types import Example, SamplingParams, Verdict
from rlvr.world import ALONE, World

SAMPLING_SEED = 0
"""Evaluation draws do not depend on the run's seed, so runs with different seeds can be compared."""

MAX_FAILURE_SHARE = 0.2
"""Largest share of completions that the metric may fail on."""

MAX_EPISODES = 1_000_000
"""Per evaluation: all records are kept in memory."""

UNNAMED = Origin()
"""Origin of records that are not written, e.g. during training."""

Progress = Callable[[int, int], None]
"""Called after each episode with (episodes done, episodes in total)."""

OnRecord = Callable[[EvaluationRecord], None]
"""Called with each record as its episode ends."""

Done = Mapping[tuple[str, int], EvaluationRecord]
"""Finished records by (example id, sample index)."""

NOTHING: Done = {}

Records = tuple[EvaluationRecord, ...]
"""The samples of each example, example by example."""


class EvalTask(Protocol):
    """The part of `rlvr.tasks.base.Task` that evaluation needs."""

    @property
    def name(self) -> str: ...

    @property
    def stop_words(self) -> tuple[str, ...]: ...

    def eval_examples(self, num: int) -> list[Example]: ...

    def env(self, example: Example) -> Env: ...

    async def judge(self, example: Example, turns: Sequence[TurnText]) -> Verdict: ...

    def tags(self, example: Example) -> tuple[str, ...]: ...


async def evaluate(
    player: Player,
    task: EvalTask,
    *,
    num_examples: int,
    samples_per_example: int,
    max_completion_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    seed: int = SAMPLING_SEED,
    origin: Origin = UNNAMED,
    done: Done = NOTHING,
    on_record: OnRecord | None = None,
    on_progress: Progress | None = None,
    world: World = ALONE,
) -> Records:
    """This rank's records for `conclude`: one greedy completion and `samples_per_example` samples of each example.

    Temperature, top_p, top_k and min_p apply to the samples. Records in `done`, of an earlier evaluation with the same
    settings, are reused; new ones go to `on_record`. ConfigError if the task has no held-out example.
    """
    examples = task.eval_examples(num_examples)
    if not examples:
        raise ConfigError(
            f"task {task.name} gives no held-out example for num_examples={num_examples}: ask for more, or, where its "
            "prompts are too long for the model, shorten them."
        )
    sampling = SamplingParams(
        max_tokens=max_completion_tokens,
        stop_ids=player.stop_ids,
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
    )
    return await attempt(
        player,
        task,
        world.share(examples),
        sampling,
        samples=range(samples_per_example + 1),
        origin=origin,
        done=done,
        on_record=on_record,
        on_progress=on_progress,
    )


def conclude(task_name: str, records: Records, *, seed: int = SAMPLING_SEED, world: World = ALONE) -> EvaluationResult:
    """The result over the records of all ranks, the same on each. Call it in the main thread, outside any engine.

    UserError if the metric failed on more than `MAX_FAILURE_SHARE` of the completions.
    """
    if world.size > 1:  # examples were dealt out, each with all its samples
        size = max((record.sample_index for record in records), default=0) + 1
        by_example = [records[start : start + size] for start in range(0, len(records), size)]
        records = tuple(chain.from_iterable(world.join(by_example)))
    check_failures(task_name, records)
    return EvaluationResult(metrics=summarize(task_name, records, seed=seed), records=records)


def check_failures(task_name: str, records: Sequence[EvaluationRecord]) -> None:
    """UserError if too many completions, or all greedy ones, could not be judged."""
    check_answered(records)
    failures = [record.failure for record in records if record.failure is not None]
    all_greedy_failed = all(record.failure is not None for record in records if record.sample_index == 0)
    if len(failures) > MAX_FAILURE_SHARE * len(records) or all_greedy_failed:
        raise UserError(
            f"the metric of task {task_name} failed on {len(failures):,} of {len(records):,} completions, more than "
            f"{MAX_FAILURE_SHARE:.0%} (first: {failures[0]}); raise reward.timeout_s or reward.max_memory_mb, or "
            "choose another metric."
        )


def check_answered(records: Sequence[EvaluationRecord]) -> None:
    """UserError if an endpoint failed on more than `MAX_FAILURE_SHARE` of the episodes."""
    failures = [record.failure for record in records if record.failure is not None and not record.turns]
    if len(failures) > MAX_FAILURE_SHARE * len(records):
        raise UserError(
            f"{len(failures):,} of {len(records):,} episodes could not be played, more than {MAX_FAILURE_SHARE:.0%} "
            f"(first: {failures[0]}); fix the endpoint and run the same command again: --output keeps what is done."
        )


async def attempt(
    player: Player,
    task: EvalTask,
    examples: Sequence[Example],
    sampling: SamplingParams,
    *,
    samples: Sequence[int],
    origin: Origin = UNNAMED,
    max_running: int | None = None,
    done: Done = NOTHING,
    on_record: OnRecord | None = None,
    on_progress: Progress | None = None,
) -> Records:
    """The judged samples of each example: sample 0 is greedy, 1, 2, ... are drawn with `sampling`.

    All requests are issued at once and the engine batches them; `max_running` bounds the concurrent episodes. The seed
    of a draw is a function of (`sampling.seed`, example id, sample, turn). Records in `done` with the same gold answer
    are reused.
    """
    if (num := len(examples) * len(samples)) > MAX_EPISODES:
        raise UserError(
            f"{num:,} episodes are asked for ({len(examples):,} examples, {len(samples):,} completions each), more "
            f"than {MAX_EPISODES:,}: ask for fewer samples or examples."
        )
    requests = [(example, sample) for example in examples for sample in samples]
    num_done = 0
    gate = nullcontext() if max_running is None else asyncio.Semaphore(max_running)

    async def judged(example: Example, sample: int) -> EvaluationRecord:
        nonlocal num_done
        record = done.get((example.id, sample))
        if record is None or record.expected != example.answer:
            async with gate:
                record = await judge_one(player, task, example, sampling, sample, origin=origin)
            if on_record is not None:
                on_record(record)
        num_done += 1
        if on_progress is not None:
            on_progress(num_done, len(requests))
        return record

    return tuple(await asyncio.gather(*(judged(example, sample) for example, sample in requests)))


async def judge_one(
    player: Player, task: EvalTask, example: Example, sampling: SamplingParams, sample: int, *, origin: Origin = UNNAMED
) -> EvaluationRecord:
    """Play one episode and apply the task's metric to it."""

    def params(turn: int) -> SamplingParams:
        drawn = replace(sampling, seed=derive_seed(sampling.seed, "eval", example.id, sample, turn))
        return drawn if sample > 0 else greedy(drawn)

    start = time.perf_counter()
    seed = derive_seed(sampling.seed, "eval", example.id, sample)
    episode = await player.play(example, task.env(example), params, sample_index=sample, seed=seed)
    return await judge(task, example, episode, sample, origin=origin, start=start)


def greedy(params: SamplingParams) -> SamplingParams:
    """The same request with greedy decoding."""
    return replace(params, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)


async def judge(
    task: EvalTask,
    example: Example,
    episode: Played,
    sample: int,
    *,
    origin: Origin = UNNAMED,
    start: float | None = None,
) -> EvaluationRecord:
    """The record of a played episode; `start` is the `time.perf_counter()` at its begin."""
    turns = episode.texts
    if episode.failure is None:
        verdict = await task.judge(example, turns)
    else:
        verdict = Verdict(answer=None, correct=False, failure=episode.failure)
    return EvaluationRecord(
        **asdict(origin),
        example_id=example.id,
        sample_index=sample,
        prompt=turns[0].prompt if turns else "\n".join(message.content for message in example.messages),
        turns=episode.turns,
        expected=example.answer,
        answer=verdict.answer,
        correct=verdict.correct,
        reward=episode.score.value,
        stop_reason=episode.stop_reason,
        num_prompt_tokens=episode.num_prompt_tokens,
        num_completion_tokens=episode.num_completion_tokens,
        tags=task.tags(example),
        parts=episode.score.parts,
        diagnostics=episode.score.diagnostics,
        failure=verdict.failure,
        trace=episode.score.trace,
        time_s=0.0 if start is None else time.perf_counter() - start,
    )


class TrainTask(EvalTask, Protocol):
    """A task whose training stream can be evaluated too."""

    def train_example(self, index: int) -> Example: ...


class TrainSplit:
    """The task with training examples as its held-out ones: shows how much of a score is memorized."""

    def __init__(self, task: TrainTask) -> None:
        self._task = task
        self.name, self.stop_words = task.name, task.stop_words
        self.env, self.judge, self.tags = task.env, task.judge, task.tags

    def eval_examples(self, num: int) -> list[Example]:
        """The first `num` distinct training examples; fewer if 20 x num draws hold no more."""
        examples: dict[str, Example] = {}
        for index in range(20 * num):
            example = self._task.train_example(index)
            examples.setdefault(example.id, example)
            if len(examples) == num:
                break
        return list(examples.values())
