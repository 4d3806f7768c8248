"""A task made of problems with a question and an answer each: one turn, one reward, one metric."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rlvr.envs.base import Env, to_attempt
from rlvr.envs.single_turn import SingleTurnEnv
from rlvr.errors import ConfigError, UserError
from rlvr.rewards.metrics import Metric
from rlvr.rewards.trace import TracedAnswer
from rlvr.seeding import EVAL_SEED, derive_seed
from rlvr.tasks.base import CountTokens, Task
from rlvr.tasks.problems import Problem, fingerprint
from rlvr.tasks.prompting import Shot, plain
from rlvr.tasks.rows import clean
from rlvr.tasks.settings import TaskContext
from rlvr.tasks.sources import ListSource, Source, anything
from rlvr.tasks.tool_play import played
from rlvr.types import Attempt, Example, Message, ToolSchema, TurnText, Verdict

NUM_TEXTS = 2_000
"""Examples of an endless source that a tokenizer is learnt from."""

NUM_SHOTS = 64
"""Examples of an endless source that few-shot examples are chosen from."""

END = " <eoe>"
"""Ends a completion of a task with its own words, as `rlvr.models.scratch` calls it."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """What a loader found: problems, what there is to say about them, and words if the text is made of a few."""

    source: Source
    notes: tuple[str, ...]
    vocabulary: tuple[str, ...] | None = None


class Environments(Protocol):
    """Opens the environments of a task whose episodes have several turns."""

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        """What the model may call; part of every prompt."""
        ...

    def env(self, example: Example) -> Env:
        """A fresh single-use environment."""
        ...

    def fields(self, problem: Problem) -> Mapping[str, str]:
        """What goes into the prompt beside the question, by placeholder."""
        ...


class DatasetTask:
    """Problems from a `Source`, asked by a `Prompter`, rewarded by a verifier, judged by a metric.

    Without `environments` an episode has one turn.

    Shown examples (`few_shot`) are training problems: for each training example they are drawn anew by the seed, for
    held-out ones they are the same for all and for every seed.
    """

    stop_words: tuple[str, ...] = ()

    def __init__(
        self,
        context: TaskContext,
        *,
        data: Data,
        judge: Metric,
        max_prompt_tokens: int | None = None,
        environments: Environments | None = None,
    ) -> None:
        """ConfigError if there are too few training examples to show `prompt.few_shot` of them."""
        self.name, self.vocabulary = context.name, data.vocabulary
        self.source = data.source
        self._notes = list(data.notes)
        self._prompter, self.verifier, self._judge = context.prompter, context.verifier, judge
        self._sandbox, self._tool_format = context.sandbox, context.prompt.tool_format
        self._traced = TracedAnswer(self.verifier, self._prompter.answer_format)
        self._seed, self._few_shot = context.seed, context.prompt.few_shot
        self._max_prompt_tokens = max_prompt_tokens
        self.environments = environments
        self._tools = environments.tools if environments is not None else ()
        self._shot_pool: Sequence[Problem] = ()  # shown examples come from here, however long a prompt may be
        self._fill_shot_pool()

    @property
    def notes(self) -> tuple[str, ...]:
        """What loading found, in sentences."""
        return tuple(self._notes)

    def train_example(self, index: int) -> Example:
        """Example `index` of the endless training stream; never held out."""
        return self._train_example(self.source.train(index))

    def eval_examples(self, num: int) -> list[Example]:
        """The first `num` held-out examples, the same for every run; fewer if there are no more."""
        return [self._eval_example(problem) for problem in self.source.held_out(num)]

    def env(self, example: Example) -> Env:
        """A fresh environment."""
        if self.environments is not None:
            return self.environments.env(example)
        return SingleTurnEnv(example, self._traced)

    def envs(self, example: Example, count: int) -> Sequence[Env]:
        """As many independent ones."""
        return [self.env(example) for _ in range(count)]

    async def judge(self, example: Example, turns: Sequence[TurnText]) -> Verdict:
        """The metric on the last turn. Where no answer is known nothing is right."""
        return await self.judge_attempt(to_attempt(example, turns))

    async def judge_attempt(self, attempt: Attempt) -> Verdict:
        """The metric on an episode as verifiers see it."""
        if not attempt.example.metadata.get("has_answer", True):
            return Verdict(answer=self._prompter.answer_format.answer_of(attempt), correct=False)
        return await self._judge.judge(replace(attempt, format=self._prompter.answer_format, sandbox=self._sandbox))

    def tags(self, example: Example) -> tuple[str, ...]:
        """The problem's tags."""
        return tuple(example.metadata.get("tags", ()))

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        """Prompt and completion for supervised training; never held out. With tools, the turns of the problem.

        A share `worked_share` of them are in the asked-for format; the others solve the problem in the data's own words
        (GSM8K: working, then `#### 72`), or name the answer alone where the data has no working.
        """
        problem = self.source.train(index, "demonstration")
        worked = random.Random(derive_seed(self._seed, self.name, "worked", index)).random() < worked_share
        if self.environments is not None:
            return self._played(problem, worked)
        if not problem.answer:
            raise UserError(f"{self.name} has no reference answers to demonstrate: set warm_start.enabled=false.")
        completion = self._prompter.worked(problem) if worked else plain(problem)
        prompt = _text(self._train_example(problem).messages)
        return prompt, completion + (END if self.vocabulary else "")

    def _played(self, problem: Problem, worked: bool) -> tuple[str, ...]:
        """An episode with tools; of one that is not worked only the last turn, which answers without a search."""
        assert self.environments is not None
        if not problem.turns:
            raise UserError(
                f"{self.name} has no demonstrations of its tools: choose model=hf, or warm_start.enabled=false."
            )
        example = self._train_example(problem)
        env = self.environments.env(example)
        if env.max_turns is not None and len(problem.turns) > env.max_turns:
            raise UserError(
                f"task.max_turns={env.max_turns}: the demonstration of example {problem.id} has {len(problem.turns)} "
                "turns; raise it."
            )
        return played(example, env, problem.turns if worked else problem.turns[-1:], self._tool_format)

    def texts(self) -> Iterator[str]:
        """Prompt and solution of the training examples, without the examples shown before them."""
        for problem in self.source.some(NUM_TEXTS):
            if problem.turns:
                yield "\n".join(self._played(problem, worked=True))
                continue
            prompt = _text(self._prompter.messages(problem.question, fields=self._fields(problem)))
            yield f"{prompt}\n{self._prompter.worked(problem)}"

    def example(self, text: str) -> Example:
        """The example of a user's own question, asked as the held-out ones are, with metadata `has_answer` False."""
        question = clean(text)
        if not question:
            raise UserError("the prompt is blank: write a question.")
        key = fingerprint(question)
        name = f"{self.name}/{key.hex()}"
        return self._eval_example(
            Problem(id=name, key=key, question=question, answer="", metadata={"has_answer": False})
        )

    def limit_prompts(self, count_tokens: CountTokens, max_tokens: int) -> None:
        """Leave out, and note, what has longer prompts than this or than task.max_prompt_tokens."""
        limit = min(max_tokens, self._max_prompt_tokens or max_tokens)

        def fits(problem: Problem) -> bool:
            return count_tokens(self._train_example(problem).messages, self._tools) <= limit

        def fits_held_out(problem: Problem) -> bool:
            return count_tokens(self._eval_example(problem).messages, self._tools) <= limit

        before = _sizes(self.source)
        left_out = self.source.leave_out(fits, fits_held_out)
        if left_out is None or before is None:
            return
        for kind, num, total in zip(("training", "held-out"), left_out, before, strict=True):
            if num and num == total:
                raise UserError(
                    f"{self.name}: the prompts of all {total:,} {kind} examples have more than {limit:,} tokens; raise "
                    "task.max_prompt_tokens, shorten the prompt, or use a model with more context."
                )
            if num:
                self._notes.append(
                    f"{num:,} of {total:,} {kind} examples have prompts of more than {limit:,} tokens: left out"
                )

    @property
    def sizes(self) -> tuple[int, int] | None:
        """Training and held-out problems; None where there is no end to them."""
        return _sizes(self.source)

    def eval_sets(self) -> tuple[Task, ...]:
        """Itself."""
        return (self,)

    def hold_out_for(self, other: DatasetTask) -> None:
        """Never train on what asks the same as something the other task holds out; noted."""
        before = _sizes(self.source)
        left_out = self.source.leave_out(lambda problem: not other.source.holds_out(problem.key), anything)
        if left_out is not None and before is not None:
            note_overlap(self._notes, left_out[0], before[0], f"held out by {other.name}")
        self._fill_shot_pool()

    def _train_example(self, problem: Problem) -> Example:
        return self._example(problem, derive_seed(self._seed, self.name, "shots", problem.id))

    def _eval_example(self, problem: Problem) -> Example:
        return self._example(problem, derive_seed(EVAL_SEED, self.name, "shots"))

    def _example(self, problem: Problem, shots_seed: int) -> Example:
        metadata: dict[str, Any] = {**problem.metadata, "task": self.name}
        if problem.tags:
            metadata["tags"] = problem.tags
        shots = self._shots(problem, shots_seed) if self._few_shot else ()
        return Example(
            id=problem.id,
            messages=self._prompter.messages(problem.question, shots, self._fields(problem)),
            answer=problem.answer,
            metadata=metadata,
        )

    def _fields(self, problem: Problem) -> Mapping[str, str]:
        return {} if self.environments is None else self.environments.fields(problem)

    def _shots(self, problem: Problem, seed: int) -> list[Shot]:
        """Different training problems, none of which asks what `problem` asks."""
        rng = random.Random(seed)
        chosen: dict[bytes, Problem] = {}
        while len(chosen) < self._few_shot:
            other = rng.choice(self._shot_pool)
            if other.key != problem.key:
                chosen.setdefault(other.key, other)
        return [Shot(question=p.question, completion=self._prompter.worked(p)) for p in chosen.values()]

    def _fill_shot_pool(self) -> None:
        if not self._few_shot:
            return
        shown = (problem for problem in self.source.some(NUM_SHOTS) if problem.answer)
        self._shot_pool = tuple({problem.key: problem for problem in shown}.values())
        if len(self._shot_pool) <= self._few_shot:
            raise ConfigError(
                f"prompt.few_shot={self._few_shot}: {self.name} has {len(self._shot_pool)} different training examples "
                f"with an answer to show, and {self._few_shot + 1} are needed; lower it."
            )


def note_overlap(notes: list[str], num: int, total: int, what: str) -> None:
    """`3 of 7,473 training examples are also held out: left out`"""
    if num:
        notes.append(f"{num:,} of {total:,} training examples are also {what}: left out")


def _sizes(source: Source) -> tuple[int, int] | None:
    return source.sizes() if isinstance(source, ListSource) else None


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)
