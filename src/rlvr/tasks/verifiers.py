"""Any environment of the verifiers library as a task: its data, its tools, its loop, its rubric.

Training and held-out examples are the rows of its two data sets; where it has no evaluation set, a share of the rows,
by hash, is held out. The metric is a number of the rubric: at `task.metric_threshold` or above a completion is right.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from rlvr.core.env import Env
from rlvr.errors import ConfigError, UserError
from rlvr.registry import register
from rlvr.settings import Text, setting
from rlvr.tasks.base import CountTokens, Task
from rlvr.tasks.generator import Scalar
from rlvr.tasks.problems import Problem, fingerprint
from rlvr.tasks.rows import clean, shown
from rlvr.tasks.settings import HeldOutShare, LimitSettings, TaskContext
from rlvr.tasks.sources import ListSource
from rlvr.tasks.splits import Part, by_hash, make_data
from rlvr.tasks.verifiers_client import to_messages, tool_schema
from rlvr.tasks.verifiers_env import Scored, Scorer, VerifiersEnv
from rlvr.tasks.verifiers_library import make_environment
from rlvr.types import Example, Message, Score, ToolSchema, TurnText, Verdict

ROUNDING = 1e-9
"""0.7 + 0.2 + 0.1 is a little less than 1.0, and is meant to be 1.0."""

Episodes = tuple[str, tuple[str, ...]]
"""An example's id and what was said about it."""


@register("task", "verifiers")
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
        0.1, "share of the rows, by hash, that is never trained on, where it has no evaluation set of its own"
    )
    metric: Text = setting("reward", "what held-out accuracy is told by: reward, or one of the environment's metrics")
    metric_threshold: float = setting(1.0, "an episode is right where that number is this or more")

    @property
    def origin(self) -> str:
        return self.env_id

    def open(self, context: TaskContext) -> VerifiersTask:
        return VerifiersTask(self, context.seed, name=context.name)


class VerifiersTask(Task):
    """Rows of the library's data sets; what became of an episode is known to its environment alone.

    So `judge` looks up what the environment that `env` made for the example found: the number called `task.metric`.
    """

    vocabulary: tuple[str, ...] | None = None
    stop_words: tuple[str, ...] = ()

    def __init__(self, settings: Verifiers, seed: int, *, name: str) -> None:
        """ConfigError if the environment cannot be made, or has no data."""
        self.name, self._settings = name, settings
        self._env = make_environment(settings.env_id, settings.env_args)
        self._rows: dict[str, Any] = {"train": self._env.dataset, "eval": self._env.eval_dataset}
        self._source, self._notes = self._load(seed)
        self._findings: dict[Episodes, list[float | str]] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What loading found, in sentences."""
        return tuple(self._notes)

    def train_example(self, index: int) -> Example:
        """Example `index` of the endless training stream; never held out. UserError if there is nothing to train on."""
        return self._example(self._train_problem(index))

    def eval_examples(self, num: int) -> list[Example]:
        """The first `num` held-out examples, the same for every run; fewer if there are no more."""
        return [self._example(problem) for problem in self._source.held_out(num)]

    def env(self, example: Example) -> Env:
        """A fresh rollout, scored by itself, whose finding is kept for `judge`."""
        return self._envs(example, 1, partial(self._remember, example))[0]

    def envs(self, example: Example, count: int) -> Sequence[Env]:
        """Fresh rollouts; scored together if the rubric has rewards for groups."""
        return self._envs(example, count, None)

    def _envs(self, example: Example, count: int, scored: Scored | None) -> list[Env]:
        scorer, row = Scorer(self._env, count), self._row(example)
        return [VerifiersEnv(example, row, self._env, scorer=scorer, scored=scored) for _ in range(count)]

    async def judge(self, example: Example, turns: Sequence[TurnText]) -> Verdict:
        """Whether the number called `task.metric` reached `task.metric_threshold`. Where no answer is known, nothing is
        right."""
        answer = turns[-1].text.strip() or None
        findings = self._findings.pop(_key(example, turns), [])
        if not findings:
            return Verdict(answer=answer, correct=False, failure="the environment has not scored this episode")
        found, *later = findings
        if later:
            self._findings[_key(example, turns)] = later
        if isinstance(found, str):
            return Verdict(answer=answer, correct=False, failure=found)
        known = example.metadata.get("has_answer", True)
        return Verdict(answer=answer, correct=known and found >= self._settings.metric_threshold - ROUNDING)

    def tags(self, example: Example) -> tuple[str, ...]:
        """None: the library does not name subsets."""
        return ()

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        """Prompt and the row's answer; never held out. UserError if it has none."""
        problem = self._train_problem(index, "demonstration")
        if not problem.answer:
            raise UserError(f"{self.name} has no reference answers to demonstrate: set warm_start.enabled=false.")
        return _text(self._example(problem).messages), problem.answer

    def texts(self) -> Iterator[str]:
        """Prompts and answers of the training rows."""
        for problem in self._source.some(0):
            yield f"{_text(self._example(problem).messages)}\n{problem.answer}"

    def example(self, text: str) -> Example:
        """A user's own question after the environment's system prompt, with metadata `has_answer` False."""
        question = clean(text)
        if not question:
            raise UserError("the prompt is blank: write a question.")
        prompt = [{"role": "user", "content": question}]
        if self._env.system_prompt:
            prompt.insert(0, {"role": "system", "content": self._env.system_prompt})
        row = {"prompt": prompt, "answer": "", "example_id": 0}
        key = fingerprint(question)
        return Example(
            id=f"{self.name}/{key.hex()}",
            messages=to_messages(prompt),
            answer="",
            metadata={"task": self.name, "row": row, "has_answer": False},
        )

    def limit_prompts(self, count_tokens: CountTokens, max_tokens: int) -> None:
        """Leave out, and note, rows with longer prompts than this or than task.max_prompt_tokens."""
        limit = min(max_tokens, self._settings.max_prompt_tokens or max_tokens)

        def fits(problem: Problem) -> bool:
            example = self._example(problem)
            return count_tokens(example.messages, self._tools(self._row(example))) <= limit

        before = self._source.sizes()
        left_out = self._source.leave_out(fits, fits)
        for kind, num, total in zip(("training", "held-out"), left_out, before, strict=True):
            if num and num == total:
                raise UserError(
                    f"{self.name}: the prompts of all {total:,} {kind} examples have more than {limit:,} tokens; raise "
                    "task.max_prompt_tokens, or use a model with more context."
                )
            if num:
                self._notes.append(
                    f"{num:,} of {total:,} {kind} examples have prompts of more than {limit:,} tokens: left out"
                )

    def eval_sets(self) -> tuple[Task, ...]:
        """Itself."""
        return (self,)

    # --------------------------------------------------------------------------------------------------- the data

    def _load(self, seed: int) -> tuple[ListSource, list[str]]:
        where = f"the verifiers environment {self._settings.env_id}"
        train, held_out = (self._part(split) for split in ("train", "eval"))
        if held_out is None:
            assert train is not None, "the library refuses an environment without data"
            train, held_out = by_hash(train, self._settings.eval_share, where)
        if train is None:
            source = ListSource((), held_out.problems, seed)
            return source, [f"{len(held_out.problems):,} held-out examples from {where}, which has no training set"]
        data = make_data((train, held_out), where=where, seed=seed, max_train=self._settings.max_train_examples)
        assert isinstance(data.source, ListSource)
        return data.source, list(data.notes)

    def _part(self, split: str) -> Part | None:
        """The problems of a data set, told apart by what they ask, or by everything where all ask the same."""
        rows = self._rows[split]
        if rows is None:
            return None
        wanted = [name for name in ("prompt", "answer", "info") if name in rows.column_names]
        found = list(rows.select_columns(wanted))
        problems = [self._problem(split, index, row) for index, row in enumerate(found)]
        if len({problem.key for problem in problems}) <= 1:
            keys = [
                fingerprint(problem.question, str(row.get("answer")), json.dumps(row.get("info"), default=str))
                for problem, row in zip(problems, found, strict=True)
            ]
            problems = [replace(problem, key=key) for problem, key in zip(problems, keys, strict=True)]
        return Part(problems=tuple(problems))

    def _problem(self, split: str, index: int, row: Mapping[str, Any]) -> Problem:
        prompt = row.get("prompt")
        if not isinstance(prompt, list | str) or not prompt:
            raise ConfigError(
                f"row {index} of the {split} set of {self._settings.env_id}: prompt must be messages, but is "
                f"{shown(prompt)}; give other task.env_args."
            )
        question = "\n".join(message.content for message in _messages(prompt) if message.role != "system")
        return Problem(
            id=f"{self.name}/{split}/{index}",
            key=fingerprint(question),
            question=question,
            answer="" if row.get("answer") is None else str(row["answer"]),
            metadata={"split": split, "index": index},
        )

    def _train_problem(self, index: int, stream: str = "train") -> Problem:
        if self._rows["train"] is None:
            raise UserError(
                f"the environment {self._settings.env_id} has an evaluation set alone, and nothing to train on: choose "
                "another, or other task.env_args."
            )
        return self._source.train(index, stream)

    def _example(self, problem: Problem) -> Example:
        metadata = {**problem.metadata, "task": self.name}
        row = self._rows[problem.metadata["split"]][problem.metadata["index"]]
        return Example(id=problem.id, messages=_messages(row["prompt"]), answer=problem.answer, metadata=metadata)

    def _row(self, example: Example) -> Mapping[str, Any]:
        """The environment's own row of an example."""
        if "row" in example.metadata:
            return example.metadata["row"]
        return self._rows[example.metadata["split"]][example.metadata["index"]]

    def _tools(self, row: Mapping[str, Any]) -> tuple[ToolSchema, ...]:
        info = row.get("info")
        info = json.loads(info) if isinstance(info, str) and info else info
        tools = (info or {}).get("tool_defs") or self._env.tool_defs or ()
        return tuple(tool_schema(tool) for tool in tools)

    # --------------------------------------------------------------------------------------------------- the metric

    def _remember(self, example: Example, turns: Sequence[TurnText], score: Score) -> None:
        """UserError if the rubric knows no such metric."""
        if score.status == "error":
            found: float | str = str(score.diagnostics["error"])
        else:
            numbers = {"reward": score.value, **score.parts}
            if self._settings.metric not in numbers:
                raise ConfigError(
                    f"task.metric={self._settings.metric}: {self._settings.env_id} measures nothing of this name; "
                    f"choose one of {', '.join(numbers)}."
                )
            found = numbers[self._settings.metric]
        self._findings.setdefault(_key(example, turns), []).append(found)


def _key(example: Example, turns: Sequence[TurnText]) -> Episodes:
    return example.id, tuple(turn.completion for turn in turns)


def _messages(prompt: Any) -> tuple[Message, ...]:
    return to_messages([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)
