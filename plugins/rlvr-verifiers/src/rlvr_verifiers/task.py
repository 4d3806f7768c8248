"""Any environment of the verifiers library as a task, with its data, tools, loop and rubric.

Training and held-out examples are its two data sets; without an evaluation set, a share of the rows is held out by
hash. The metric is a number of the rubric: an episode is right at `task.metric_threshold` or above.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rlvr.core.env import Env
from rlvr.data.problems import Problem, fingerprint
from rlvr.errors import ConfigError, UserError
from rlvr.settings import Text, setting
from rlvr.tasks.base import CountTokens, Task, TaskContext, own_question, text_of
from rlvr.tasks.dataset import leave_out_long
from rlvr.tasks.generator import Scalar
from rlvr.tasks.loading import ParsedRows, by_hash, make_data
from rlvr.tasks.settings import HeldOutShare, LimitSettings
from rlvr.types import Example, GradedAnswer, Score, TurnText
from rlvr_verifiers.edition import Row
from rlvr_verifiers.library import open_environment

ROUNDING = 1e-9
"""Tolerance: 0.7 + 0.2 + 0.1 is slightly less than 1.0."""


class Verifiers(LimitSettings):
    """Any environment of the verifiers library, with its own data, tools and rubric."""

    reward: ClassVar[str | Mapping[str, Any]] = {}
    writes_prompts: ClassVar[bool] = True
    scores_itself: ClassVar[bool] = True
    has_tools: ClassVar[bool] = True
    env_id: Text = setting(description="name of an installed environment, e.g. vf-musique")
    env_args: Mapping[str, Scalar | tuple[Scalar, ...] | None] = setting(
        {}, "keyword arguments of its load_environment"
    )
    eval_share: HeldOutShare = setting(
        0.1, "share of the rows, by hash, that is never trained on, if it has no evaluation set"
    )
    metric: Text = setting("reward", "metric of held-out accuracy: reward, or one of the environment's metrics")
    metric_threshold: float = setting(1.0, "an episode is right from this value of the metric on")

    @property
    def origin(self) -> str:
        return self.env_id

    def open(self, context: TaskContext) -> VerifiersTask:
        return VerifiersTask(self, context.seed, name=context.name)


class VerifiersTask(Task):
    """Rows of the library's data sets. Only an episode's environment knows its outcome.

    So `grade` looks up `task.metric` as found by the environment that `env` made for the example.
    """

    def __init__(self, settings: Verifiers, seed: int, *, name: str) -> None:
        self.name, self._settings = name, settings
        env = open_environment(settings.env_id, settings.env_args, settings.max_train_examples)
        self._env, self._rows = env, {"train": env.train, "eval": env.held_out}
        where = f"the verifiers environment {settings.env_id}"
        train, held_out = (None if rows is None else self._part(split, rows) for split, rows in self._rows.items())
        if held_out is None:
            assert train is not None, "the library refuses an environment without data"
            train, held_out = by_hash(train, settings.eval_share, where)
        data = make_data((train, held_out), where=where, seed=seed, max_train=settings.max_train_examples)
        self._source, self.notes = data.source, (*data.notes, *env.notes)
        self._findings: dict[Any, list[float | str]] = {}  # by example and completions

    def train_example(self, index: int) -> Example:
        return self._example(self._source.train(index))

    def eval_examples(self, num: int) -> list[Example]:
        return [self._example(problem) for problem in self._source.held_out(num)]

    def env(self, example: Example) -> Env:
        """A separately scored rollout; its result is kept for `grade`."""
        (env,) = self._env.envs(example, self._row(example), 1, functools.partial(self._remember, example))
        return env

    def envs(self, example: Example, count: int) -> Sequence[Env]:
        """Rollouts that are scored together if the rubric has group rewards."""
        return self._env.envs(example, self._row(example), count)

    async def grade(self, example: Example, turns: Sequence[TurnText]) -> GradedAnswer:
        """Whether the number `task.metric` reached `task.metric_threshold`. Without a known answer nothing is right."""
        answer = turns[-1].text.strip() or None
        findings = self._findings.pop(key := _key(example, turns), ["the environment has not scored this episode"])
        found = findings.pop(0)
        if findings:
            self._findings[key] = findings
        if isinstance(found, str):
            return GradedAnswer(answer=answer, correct=False, failure=found)
        known = example.metadata.get("has_answer", True)
        return GradedAnswer(answer=answer, correct=known and found >= self._settings.metric_threshold - ROUNDING)

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        problem = self._source.train(index, "demonstration")
        if not problem.answer:
            raise UserError(f"{self.name} has no reference answers to demonstrate: set warm_start.enabled=false.")
        return text_of(self._example(problem).messages), problem.answer

    def texts(self) -> Iterator[str]:
        for problem in self._source.some(0):
            yield f"{text_of(self._example(problem).messages)}\n{problem.answer}"

    def example(self, text: str) -> Example:
        """A user's question after the environment's system prompt, with metadata `has_answer` False."""
        question, name = own_question(self.name, text)
        row = self._env.own(question)
        metadata = {"task": self.name, "row": row, "has_answer": False}
        return Example(id=name, messages=row.messages, answer="", metadata=metadata)

    def limit_prompts(self, count_tokens: CountTokens, max_tokens: int) -> None:
        limit = min(max_tokens, self._settings.max_prompt_tokens or max_tokens)

        def fits(problem: Problem) -> bool:
            example = self._example(problem)
            return count_tokens(example.messages, self._env.tools(self._row(example))) <= limit

        self.notes += leave_out_long(self.name, self._source, fits, fits, limit)

    # --------------------------------------------------------------------------------------------------- the data

    def _part(self, split: str, rows: Sequence[Row]) -> ParsedRows:
        """The problems of a data set, keyed by their question, or by everything if all ask the same."""
        asked = [text_of([message for message in row.messages if message.role != "system"]) for row in rows]
        keys = [fingerprint(question) for question in asked]
        if len({*keys}) <= 1:
            keys = [fingerprint(question, row.identity) for question, row in zip(asked, rows, strict=True)]
        return ParsedRows(
            problems=tuple(
                Problem(
                    id=f"{self.name}/{split}/{index}",
                    key=key,
                    question=question,
                    answer=row.answer,
                    metadata={"split": split, "index": index},
                )
                for index, (key, question, row) in enumerate(zip(keys, asked, rows, strict=True))
            )
        )

    def _example(self, problem: Problem) -> Example:
        row = self._at(problem.metadata)
        metadata = {**problem.metadata, "task": self.name}
        return Example(id=problem.id, messages=row.messages, answer=problem.answer, metadata=metadata)

    def _row(self, example: Example) -> Row:
        return example.metadata["row"] if "row" in example.metadata else self._at(example.metadata)

    def _at(self, place: Mapping[str, Any]) -> Row:
        rows = self._rows[place["split"]]
        assert rows is not None
        return rows[place["index"]]

    def _remember(self, example: Example, turns: Sequence[TurnText], score: Score) -> None:
        """ConfigError if the rubric lacks the metric."""
        metric, numbers = self._settings.metric, {"reward": score.value, **score.parts}
        if score.status != "error" and metric not in numbers:
            raise ConfigError(
                f"task.metric={metric}: {self._settings.env_id} measures nothing of this name; choose one of "
                f"{', '.join(numbers)}."
            )
        found = str(score.diagnostics["error"]) if score.status == "error" else numbers[metric]
        self._findings.setdefault(_key(example, turns), []).append(found)


def _key(example: Example, turns: Sequence[TurnText]) -> tuple[str, tuple[str, ...]]:
    return example.id, tuple(turn.completion for turn in turns)
