"""Held-out evaluation: greedy accuracy, and with k samples per example avg@k, pass@k and maj@k, with intervals.

The grade is the task's metric, which no setting of the training reward changes: reward hacking must not look like
progress. Examples, draws and resamples are fixed, so repeated evaluations of the same weights agree.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain

from rlvr.core.world import ALONE, World
from rlvr.errors import ConfigError, UserError
from rlvr.evaluation.players import Played, Player
from rlvr.evaluation.records import RecordFile
from rlvr.evaluation.summary import EvaluationResult, summarize
from rlvr.records.graded import EvaluationRecord, Origin
from rlvr.seeding import derive_seed
from rlvr.tasks.base import Task
from rlvr.types import Example, GradedAnswer, SamplingParams

SAMPLING_SEED = 0
"""Evaluation draws do not depend on the run's seed, so runs with different seeds can be compared."""

MAX_FAILURE_SHARE = 0.2  # most completions on which the metric may fail
UNNAMED = Origin()  # for records that are not saved, e.g. during training
Progress = Callable[[int, int], None]  # called after each episode with (episodes done, episodes in total)
Records = tuple[EvaluationRecord, ...]  # the samples of each example, example by example


@dataclass(frozen=True, kw_only=True)
class Session:
    """Storage and progress of an evaluation. Records in `file` with the same gold answer are reused; new ones are
    added."""

    origin: Origin = UNNAMED
    file: RecordFile | None = None
    on_progress: Progress | None = None
    max_running: int | None = None  # concurrent episodes; None: all


UNKEPT = Session()


def examples_of(task: Task, num: int, split: str = "test") -> list[Example]:
    """The first `num` held-out examples, or with `split="train"` the first distinct training ones; fewer if 20 x num
    draws give no more. ConfigError if there is none."""
    if split == "train":
        drawn = (task.train_example(index) for index in range(20 * num))
        examples: dict[str, Example] = {}
        while len(examples) < num and (example := next(drawn, None)) is not None:
            examples.setdefault(example.id, example)
        return list(examples.values())
    if found := task.eval_examples(num):
        return found
    raise ConfigError(f"task {task.name} gives no held-out example for num_examples={num}: ask for more.")


async def play_set(
    player: Player,
    task: Task,
    examples: Sequence[Example],
    sampling: SamplingParams,
    samples: Sequence[int],
    session: Session = UNKEPT,
) -> Records:
    """The graded samples of each example: sample 0 is greedy, 1, 2, ... are drawn with `sampling`.

    The seed of a draw is a function of (`SAMPLING_SEED`, example id, sample, turn). Closes the player at the end.
    """
    file, origin, num, num_done = session.file, session.origin, len(examples) * len(samples), 0
    done = file.known(origin.settings) if file else {}
    gate = nullcontext() if session.max_running is None else asyncio.Semaphore(session.max_running)

    async def record_of(example: Example, sample: int) -> EvaluationRecord:
        nonlocal num_done

        def drawn(turn: int) -> SamplingParams:
            params = replace(sampling, seed=derive_seed(SAMPLING_SEED, "eval", example.id, sample, turn))
            return params if sample > 0 else greedy(params)

        record = done.get((example.id, sample))
        if record is None or record.expected != example.answer:
            async with gate:
                start, seed = time.perf_counter(), derive_seed(SAMPLING_SEED, "eval", example.id, sample)
                episode = await player.play(example, task.env(example), drawn, sample_index=sample, seed=seed)
                record = await grade(task, example, episode, sample, origin=origin, start=start)
            if file is not None:
                file.add(record)
        num_done += 1
        if session.on_progress is not None:
            session.on_progress(num_done, num)
        return record

    try:
        return tuple(await asyncio.gather(*(record_of(example, sample) for example in examples for sample in samples)))
    finally:
        await player.close()


def greedy(params: SamplingParams) -> SamplingParams:
    return replace(params, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)


async def grade(
    task: Task, example: Example, episode: Played, sample: int, *, origin: Origin = UNNAMED, start: float | None = None
) -> EvaluationRecord:
    """The record of a played episode; `start` is `time.perf_counter()` at its start."""
    turns = episode.texts
    if episode.failure is None:
        grade = await task.grade(example, turns)
    else:
        grade = GradedAnswer(answer=None, correct=False, failure=episode.failure)
    return EvaluationRecord(
        **{name: getattr(origin, name) for name in Origin.__slots__},  # asdict deep-copies: a sixth of the time
        example_id=example.id,
        sample_index=sample,
        prompt=turns[0].prompt if turns else "\n".join(message.content for message in example.messages),
        turns=episode.turns,
        expected=example.answer,
        answer=grade.answer,
        correct=grade.correct,
        reward=episode.score.value,
        stop_reason=episode.stop_reason,
        num_prompt_tokens=episode.num_prompt_tokens,
        num_completion_tokens=episode.num_completion_tokens,
        tags=task.tags(example),
        parts=episode.score.parts,
        diagnostics=episode.score.diagnostics,
        failure=grade.failure,
        trace=episode.score.trace,
        time_s=0.0 if start is None else time.perf_counter() - start,
    )


def conclude(task_name: str, records: Records, *, world: World = ALONE) -> EvaluationResult:
    """The result over the records of all ranks, the same on each. Call it in the main thread, outside any engine.

    UserError if the metric failed on more than `MAX_FAILURE_SHARE` of the completions.
    """
    if world.size > 1:  # each rank has all samples of its examples
        size = max((record.sample_index for record in records), default=0) + 1
        by_example = [records[start : start + size] for start in range(0, len(records), size)]
        records = tuple(chain.from_iterable(world.gather_shares(by_example)))
    check_failures(task_name, records)
    return EvaluationResult(metrics=summarize(task_name, records), records=records)


def check_failures(task_name: str, records: Sequence[EvaluationRecord]) -> None:
    """UserError if too many completions, or all greedy ones, could not be graded."""
    check_answered(records)
    failures = [record.failure for record in records if record.failure is not None]
    all_greedy_failed = all(record.failure is not None for record in records if record.sample_index == 0)
    if len(failures) > MAX_FAILURE_SHARE * len(records) or all_greedy_failed:
        limits = "timed out" in failures[0] or "memory" in failures[0]
        remedy = "raise reward.timeout_s or reward.max_memory_mb" if limits else "correct it"
        raise UserError(
            f"the metric of task {task_name} failed on {len(failures):,} of {len(records):,} completions (first: "
            f"{failures[0]}); {remedy}, or choose another metric."
        )


def check_answered(records: Sequence[EvaluationRecord]) -> None:
    """UserError if an endpoint failed on more than `MAX_FAILURE_SHARE` of the episodes."""
    failures = [record.failure for record in records if record.failure is not None and not record.turns]
    if len(failures) > MAX_FAILURE_SHARE * len(records):
        raise UserError(
            f"{len(failures):,} of {len(records):,} episodes could not be played (first: {failures[0]}); fix the "
            "endpoint and run the same command again: --output keeps what is done."
        )
