"""Held-out evaluation: greedy accuracy, and with k samples per example avg@k, pass@k and maj@k; always with intervals.

The verdict is the task's metric, code apart from the training reward: a run that learns to please its reward without
getting better must not look better here. Examples, draws and resamples are fixed, so two evaluations of the same
weights agree and two models meet the same problems.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

from rlvr.engines.base import Engine
from rlvr.envs.base import Env, TurnText
from rlvr.errors import ConfigError, UserError
from rlvr.evaluation.summary import EvaluationResult, summarize
from rlvr.rollout.episode import ChatCodec, run_episode, turn_texts
from rlvr.seeding import derive_seed
from rlvr.tracking.evaluations import EvaluationRecord, JudgedTurn, Origin
from rlvr.tracking.rollouts import call_records, reply_ids
from rlvr.types import Episode, Example, SamplingParams, ToolSchema, Turn, Verdict

EVAL_SEED = 0
"""Evaluation draws do not depend on the run's seed, so runs with different seeds can be compared."""

MAX_FAILURE_SHARE = 0.2
"""Of completions that the metric could not judge; above it an accuracy of the others would say little."""

MAX_REPLY_CHARS = 10_000
"""Of what came back, in a record; the model saw all of it."""

UNNAMED = Origin()
"""Of records that nobody keeps, as in evaluations while training."""

Progress = Callable[[int, int], None]
"""Called after each episode with how many are done, and of how many."""


class EvalTask(Protocol):
    """What evaluation needs of a task."""

    @property
    def name(self) -> str:
        """The task's name, part of the metrics' names."""
        ...

    @property
    def stop_words(self) -> tuple[str, ...]:
        """Words that end a completion, beside the tokenizer's own end."""
        ...

    def eval_examples(self, num: int) -> list[Example]:
        """The first `num` held-out examples; always the same ones, fewer if the task has no more."""
        ...

    def env(self, example: Example) -> Env:
        """A fresh single-use environment."""
        ...

    async def judge(self, example: Example, turns: Sequence[TurnText]) -> Verdict:
        """The metric: what was answered and whether it is right. Knows nothing of rewards."""
        ...

    def tags(self, example: Example) -> tuple[str, ...]:
        """Names of the subsets whose accuracy is reported by itself, e.g. `("3_operators",)`."""
        ...


async def evaluate(
    engine: Engine,
    chat: ChatCodec,
    task: EvalTask,
    *,
    num_examples: int,
    samples_per_example: int,
    max_completion_tokens: int,
    max_context_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    seed: int = EVAL_SEED,
    origin: Origin = UNNAMED,
    on_progress: Progress | None = None,
) -> EvaluationResult:
    """Greedy on `num_examples` held-out examples, plus `samples_per_example` samples of each.

    Temperature, top_p, top_k and min_p are those of the samples.

    Raises:
        ConfigError: the task has no held-out example.
        UserError: the metric failed on more than `MAX_FAILURE_SHARE` of the completions, or on an example's data.
    """
    examples = task.eval_examples(num_examples)
    if not examples:
        raise ConfigError(
            f"task {task.name} gives no held-out example for num_examples={num_examples}: ask for 1 or more."
        )
    sampling = SamplingParams(
        max_tokens=max_completion_tokens,
        stop_ids=chat.stop_ids,
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
    )
    records = await attempt(
        engine,
        chat,
        task,
        examples,
        sampling,
        num_samples=samples_per_example,
        max_context_tokens=max_context_tokens,
        origin=origin,
        on_progress=on_progress,
    )
    _check_failures(task.name, records)
    return EvaluationResult(metrics=summarize(task.name, records, seed=seed), records=records)


def _check_failures(task_name: str, records: Sequence[EvaluationRecord]) -> None:
    failures = [record.failure for record in records if record.failure is not None]
    all_greedy_failed = all(record.failure is not None for record in records if record.sample_index == 0)
    if len(failures) > MAX_FAILURE_SHARE * len(records) or all_greedy_failed:
        raise UserError(
            f"the metric of task {task_name} failed on {len(failures):,} of {len(records):,} completions, more than "
            f"{MAX_FAILURE_SHARE:.0%} (first: {failures[0]}): no accuracy can be told; raise reward.timeout_s or "
            "reward.max_memory_mb, or choose another metric."
        )


async def attempt(
    engine: Engine,
    chat: ChatCodec,
    task: EvalTask,
    examples: Sequence[Example],
    sampling: SamplingParams,
    *,
    num_samples: int,
    max_context_tokens: int,
    origin: Origin = UNNAMED,
    on_progress: Progress | None = None,
) -> tuple[EvaluationRecord, ...]:
    """Each example once greedily (sample 0) and `num_samples` times as `sampling` says (1, 2, ...), judged.

    All requests are issued at once and the engine batches them. The draw of each is a function of `sampling.seed`, the
    example's id, the sample's index and the turn.
    """
    requests = [(example, sample) for example in examples for sample in range(num_samples + 1)]
    num_done = 0

    async def judged(example: Example, sample: int) -> EvaluationRecord:
        nonlocal num_done

        def params(turn: int) -> SamplingParams:
            drawn = replace(sampling, seed=derive_seed(sampling.seed, "eval", example.id, sample, turn))
            return drawn if sample > 0 else greedy(drawn)

        env = task.env(example)
        start = time.perf_counter()
        episode = await run_episode(
            example,
            env,
            engine,
            chat,
            params,
            sample_index=sample,
            seed=derive_seed(sampling.seed, "eval", example.id, sample),
            max_context_tokens=max_context_tokens,
        )
        num_done += 1
        if on_progress is not None:
            on_progress(num_done, len(requests))
        time_s = time.perf_counter() - start
        return await judge_episode(task, chat, example, episode, env.tools, origin=origin, time_s=time_s)

    return tuple(await asyncio.gather(*(judged(example, sample) for example, sample in requests)))


def greedy(params: SamplingParams) -> SamplingParams:
    """The same request without chance."""
    return replace(params, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)


async def judge_episode(
    task: EvalTask,
    chat: ChatCodec,
    example: Example,
    episode: Episode,
    tools: Sequence[ToolSchema],
    *,
    origin: Origin = UNNAMED,
    time_s: float = 0.0,
) -> EvaluationRecord:
    """Apply the task's metric to what was generated; the reward is only noted beside it."""
    turns = turn_texts(chat, episode.turns, tools)
    verdict = await task.judge(example, turns)
    return EvaluationRecord(
        model=origin.model,
        task=origin.task,
        split=origin.split,
        retriever=origin.retriever,
        settings=origin.settings,
        example_id=example.id,
        sample_index=episode.sample_index,
        prompt=turns[0].prompt,
        turns=_judged_turns(chat, episode, turns),
        expected=example.answer,
        answer=verdict.answer,
        correct=verdict.correct,
        reward=episode.score.value,
        stop_reason=episode.stop_reason,
        num_prompt_tokens=_num_read(episode.turns),
        num_completion_tokens=sum(len(turn.completion.token_ids) for turn in episode.turns),
        tags=task.tags(example),
        parts=episode.score.parts,
        diagnostics=episode.score.diagnostics,
        failure=verdict.failure,
        trace=episode.score.trace,
        time_s=time_s,
    )


def _num_read(turns: Sequence[Turn]) -> int:
    """Prompt tokens that no earlier turn had read or written."""
    replies = (reply_ids(turn, after) for turn, after in pairwise(turns))
    return len(turns[0].prompt_ids) + sum(map(len, replies))


def _judged_turns(chat: ChatCodec, episode: Episode, turns: Sequence[TurnText]) -> tuple[JudgedTurn, ...]:
    """Each completion with its calls, and what the next prompt says beyond it."""
    replies = [chat.decode(reply_ids(turn, after))[:MAX_REPLY_CHARS] for turn, after in pairwise(episode.turns)]
    return tuple(
        JudgedTurn(
            completion=text.completion,
            token_ids=turn.completion.token_ids,
            logprobs=turn.completion.behavior_logprobs,
            calls=tuple(call_records(text.calls)),
            reply=reply,
        )
        for turn, text, reply in zip(episode.turns, turns, [*replies, None], strict=True)
    )


class TrainTask(EvalTask, Protocol):
    """A task whose training stream can be evaluated too."""

    def train_example(self, index: int) -> Example:
        """Example `index` of the training stream."""
        ...


class TrainSplit:
    """The task with its training examples in the place of the held-out ones: how much of a score is memory?"""

    def __init__(self, task: TrainTask) -> None:
        self._task = task
        self.name, self.stop_words = task.name, task.stop_words
        self.env, self.judge, self.tags = task.env, task.judge, task.tags

    def eval_examples(self, num: int) -> list[Example]:
        """The first `num` different training examples; fewer if 20 x num draws hold no more."""
        examples: dict[str, Example] = {}
        for index in range(20 * num):
            example = self._task.train_example(index)
            examples.setdefault(example.id, example)
            if len(examples) == num:
                break
        return list(examples.values())
