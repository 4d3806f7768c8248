"""Held-out evaluation: greedy accuracy, and with k samples per example avg@k, pass@k and maj@k; always with intervals.

The verdict is the task's metric, code apart from the training reward: a run that learns to please its reward without
getting better must not look better here. Examples, draws and resamples are fixed, so two evaluations of the same
weights agree and two models meet the same problems.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from rlvr.engines.base import Engine
from rlvr.envs.base import Env, TurnText
from rlvr.errors import ConfigError
from rlvr.evaluation.summary import EvaluationRecord, EvaluationResult, summarize
from rlvr.rollout.episode import ChatCodec, run_episode, turn_texts
from rlvr.seeding import derive_seed
from rlvr.types import Episode, Example, SamplingParams, Verdict

EVAL_SEED = 0
"""Evaluation draws do not depend on the run's seed, so runs with different seeds can be compared."""


class EvalTask(Protocol):
    """What evaluation needs of a task."""

    @property
    def name(self) -> str:
        """The task's name, part of the metrics' names."""
        ...

    def eval_examples(self, num: int) -> list[Example]:
        """The first `num` held-out examples; always the same ones, fewer if the task has no more."""
        ...

    def env(self, example: Example) -> Env:
        """A fresh single-use environment."""
        ...

    def judge(self, example: Example, turns: Sequence[TurnText]) -> Verdict:
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
    on_progress: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """Greedy on `num_examples` held-out examples, plus `samples_per_example` samples of each.

    Temperature, top_p, top_k and min_p are those of the samples. All requests are issued at once and the engine batches
    them. `on_progress(done, total)` is called after each episode.

    Raises:
        ConfigError: the task has no held-out example.
    """
    examples = task.eval_examples(num_examples)
    if not examples:
        raise ConfigError(
            f"task {task.name} gives no held-out example for num_examples={num_examples}; ask for 1 or more"
        )
    requests = [(example, sample) for example in examples for sample in range(samples_per_example + 1)]
    done = 0

    async def judged(example: Example, sample: int) -> EvaluationRecord:
        nonlocal done

        def sampling(turn: int) -> SamplingParams:
            drawn = SamplingParams(
                max_tokens=max_completion_tokens,
                stop_ids=chat.stop_ids,
                seed=derive_seed(seed, "eval", example.id, sample, turn),
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                min_p=min_p,
            )
            return drawn if sample > 0 else greedy(drawn)

        episode = await run_episode(
            example,
            task.env(example),
            engine,
            chat,
            sampling,
            sample_index=sample,
            seed=derive_seed(seed, "eval", example.id, sample),
            max_context_tokens=max_context_tokens,
        )
        done += 1
        if on_progress is not None:
            on_progress(done, len(requests))
        return judge_episode(task, chat, example, episode)

    records = tuple(await asyncio.gather(*(judged(example, sample) for example, sample in requests)))
    return EvaluationResult(metrics=summarize(task.name, records, seed=seed), records=records)


def greedy(params: SamplingParams) -> SamplingParams:
    """The same request without chance."""
    return SamplingParams(max_tokens=params.max_tokens, stop_ids=params.stop_ids, seed=params.seed, temperature=0.0)


def judge_episode(task: EvalTask, chat: ChatCodec, example: Example, episode: Episode) -> EvaluationRecord:
    """Apply the task's metric to what was generated; the reward is only noted beside it."""
    turns = turn_texts(chat, episode.turns)
    verdict = task.judge(example, turns)
    return EvaluationRecord(
        example_id=example.id,
        sample_index=episode.sample_index,
        prompt=turns[0].prompt,
        completions=tuple(turn.completion for turn in turns),
        expected=example.answer,
        answer=verdict.answer,
        correct=verdict.correct,
        reward=episode.score.value,
        stop_reason=episode.stop_reason,
        num_completion_tokens=sum(len(turn.completion.token_ids) for turn in episode.turns),
        tags=task.tags(example),
        diagnostics=episode.score.diagnostics,
    )
