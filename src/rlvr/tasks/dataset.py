"""A task of question-answer problems, and the conversion of rows to problems.

Ids are unique, training and held-out problems disjoint, and excluded rows are counted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rlvr.core.env import Env
from rlvr.data.problems import Problem, fingerprint
from rlvr.data.sources import MAX_TRIES, Keep, Source, anything
from rlvr.envs.single_turn import SingleTurnEnv
from rlvr.errors import ConfigError, UserError
from rlvr.imports import is_ours
from rlvr.printable import ascii_text
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.metrics import Metric
from rlvr.rewards.trace import TracedAnswer
from rlvr.seeding import EVAL_SEED, derive_seed
from rlvr.tasks.base import NUM_TEXTS, CountTokens, Solution, Task, TaskContext, Worked, own_question, text_of
from rlvr.tasks.demonstrations import of_conversation
from rlvr.tasks.golds import UNREAD
from rlvr.tasks.loading import Data, overlap
from rlvr.tasks.prompting import plain
from rlvr.tasks.tool_play import ToolEnvironments, played
from rlvr.types import Attempt, Example, GradedAnswer, Message, TurnText

NUM_PROMPTS = 1_000
"""Prompts that are asked where they want their answers."""

NUM_SHOTS = 64
"""Examples of an endless source from which few-shot examples are chosen."""

END = " <eoe>"
"""Ends a completion of a task with its own vocabulary, as in `rlvr.models.scratch`."""


class DatasetTask(Task):
    """Problems from a `Source`, prompts from a `Prompter`, a verifier as reward, a metric for evaluation.

    Without `environments` an episode has one turn. Few-shot examples are training problems, never neighbors of the
    question: drawn by seed for each training example, and the same for all held-out examples and seeds. More of them
    begin with the fewer.
    """

    def __init__(
        self,
        context: TaskContext,
        *,
        data: Data,
        metric: Metric,
        max_prompt_tokens: int | None = None,
        environments: ToolEnvironments | None = None,
    ) -> None:
        self.name, self.source, self.notes, self.vocabulary = context.name, data.source, data.notes, data.vocabulary
        self._prompter, self.verifier, self._metric = context.prompter, context.verifier, metric.bound(context.verifier)
        self._sandbox, self._tool_format = context.sandbox, context.prompt.tool_format
        self._traced = TracedAnswer(self.verifier, self._prompter.answer_format)
        self._golds = data.golds
        self._seed, self._few_shot = context.seed, context.prompt.few_shot
        self._max_prompt_tokens, self.environments = max_prompt_tokens, environments
        self._tools = environments.tools if environments is not None else ()
        self._fill_shot_pool()

    @property
    def places(self) -> str:
        form, problems = self._prompter.answer_format, self.source.some(NUM_PROMPTS)[:NUM_PROMPTS]
        if form.answer_in != "stated":
            return ""
        asked = Counter(form.for_prompt(text_of(self._train_example(problem).messages)) for problem in problems)
        return places_of(asked)

    def train_example(self, index: int) -> Example:
        return self._train_example(self._problem(index))

    def _problem(self, index: int, stream: str = "train") -> Problem:
        """Problem `index` of the stream, or of another one if its gold cannot be read, which is noted once."""
        for attempt in range(MAX_TRIES):
            problem = self.source.train(index, stream if not attempt else f"{stream}, again {attempt}")
            if not self._golds or not self._golds.unread([problem]):
                return problem
        raise UserError(f"{self.name}: {MAX_TRIES:,} training rows drawn {UNREAD}: correct the data.")

    def _problems(self, num: int) -> list[Problem]:
        """The first `num` of the stream, each once; their golds are read at the same time."""
        if self._golds:
            self._golds.unread([self.source.train(index, "train") for index in range(num)])
        return list({problem.id: problem for problem in map(self._problem, range(num))}.values())

    def unread_golds(self) -> list[str]:
        if self._golds is None or self.source.sizes is None:
            return []
        problems = [*self.source.some(0), *self.source.held_out(self.source.sizes[1])]
        return [f"{problem.id}: {ascii_text(problem.answer[:60])!r}" for problem in self._golds.unread(problems)]

    def solutions(self, num: int) -> list[Solution]:
        """What leads to the golds: the data's own calls and texts, or their working in the required format."""
        solved = [(p, p.turns if self._tools else (self._prompter.worked(p),)) for p in self._problems(num) if p.answer]
        return [
            Solution(example=self._train_example(problem), turns=turns, is_bare=self._is_bare(problem))
            for problem, turns in solved
            if turns
        ]

    def _is_bare(self, problem: Problem) -> bool:
        has_working = problem.solution or problem.demonstration or problem.conversation
        return not (has_working or self._tools or self.vocabulary)

    def demonstrations(self, num: int) -> list[Solution]:
        """The user's own among all rows, and the rows without one; if there are none, the solutions."""
        problems = self._problems(self.source.sizes[0] if self.source.sizes else num)
        own = [p for p in problems if p.conversation or p.demonstration is not None]
        without = [p for p in problems if not p.conversation and p.demonstration is None]
        if not own:
            return self.solutions(num)
        return [*map(self._own, own[:num]), *(Solution(example=self._train_example(p), turns=()) for p in without)]

    def _own(self, problem: Problem) -> Solution:
        example = self._train_example(problem)
        if problem.conversation:
            return of_conversation(problem.conversation, example, self._tools)
        return Solution(example=example, turns=(problem.demonstration or "",))

    def worked(self, index: int) -> Worked | None:
        """A user's own demonstration keeps its text around the answer."""
        problem = self._problem(index)
        if not problem.answer:
            return None
        before, found, after = (problem.demonstration or "").rpartition(problem.answer)
        if found:
            return self._train_example(problem), lambda answer: f"{before}{answer}{after}"
        bare = replace(problem, solution="", demonstration=None)
        return self._train_example(problem), lambda answer: self._prompter.worked(replace(bare, answer=answer))

    def answered(self, answer: str, before: str = "") -> str | Message | None:
        return self._prompter.answered(answer, before)

    def eval_examples(self, num: int) -> list[Example]:
        wanted, readable = num, list[Problem]()
        while len(readable) < num:
            problems = self.source.held_out(wanted)
            unread = {problem.id for problem in self._golds.unread(problems)} if self._golds else set[str]()
            readable = [problem for problem in problems if problem.id not in unread]
            if len(problems) < wanted:
                break
            wanted += num - len(readable)
        return [self._eval_example(problem) for problem in readable]

    def env(self, example: Example) -> Env:
        if self.environments is not None:
            return self.environments.env(example)
        return SingleTurnEnv(example, self._traced, tools=example.tools)

    async def grade(self, example: Example, turns: Sequence[TurnText]) -> GradedAnswer:
        return await self.grade_attempt(Attempt.of(example, turns))

    async def grade_attempt(self, attempt: Attempt) -> GradedAnswer:
        """Apply the metric to an episode. Without a known answer nothing is right."""
        form = self._prompter.answer_format.for_prompt(attempt.prompt)
        if self._metric.reads_gold and not attempt.example.metadata.get("has_answer", True):
            return GradedAnswer(answer=form.answer_of(attempt), correct=False)
        if not is_ours(self._metric):
            attempt = attempt.with_own_example()
        return await self._metric.grade(replace(attempt, format=form, sandbox=self._sandbox))

    def tags(self, example: Example) -> tuple[str, ...]:
        return tuple(example.metadata.get("tags", ()))

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        """With tools, the turns of the problem. Unworked ones solve it in the data's own format (GSM8K: working, then
        `#### 72`), or give only the answer if the data has no working."""
        problem = self._problem(index, "demonstration")
        worked = random.Random(derive_seed(self._seed, self.name, "worked", index)).random() < worked_share
        if self._tools:
            return self._played(problem, worked)
        if problem.conversation is not None:
            raise UserError(
                f"{self.name} has demonstrations in chat messages, which need a chat template: use model=hf."
            )
        if not problem.answer:
            raise UserError(f"{self.name} has no reference answers to demonstrate: set warm_start.enabled=false.")
        completion = self._prompter.worked(problem) if worked else plain(problem)
        return text_of(self._train_example(problem).messages), completion + (END if self.vocabulary else "")

    def _played(self, problem: Problem, worked: bool) -> tuple[str, ...]:
        """An episode with tools; an unworked one has only the last turn, which answers without a search."""
        assert self.environments is not None
        if not problem.turns:
            raise UserError(
                f"{self.name} has no demonstrations of its tools: choose model=hf, or warm_start.enabled=false."
            )
        example = self._train_example(problem)
        env = self.environments.env(example)
        if env.max_turns is not None and len(problem.turns) > env.max_turns:
            raise UserError(
                f"task.max_turns={env.max_turns}: the demonstration of example {problem.id} has more; raise it."
            )
        return played(example, env, problem.turns if worked else problem.turns[-1:], self._tool_format)

    def texts(self) -> Iterator[str]:
        for problem in self.source.some(NUM_TEXTS):
            if problem.turns:
                yield "\n".join(self._played(problem, worked=True))
                continue
            prompt = text_of(self._prompter.messages(problem.question, (), self._fields(problem), problem.messages))
            yield f"{prompt}\n{self._prompter.worked(problem)}"

    def example(self, text: str) -> Example:
        """The example of a user's own question, prompted like held-out ones, with metadata `has_answer` False."""
        question, name = own_question(self.name, text)
        metadata = {"has_answer": False}
        return self._eval_example(
            Problem(id=name, key=fingerprint(question), question=question, answer="", metadata=metadata)
        )

    def limit_prompts(self, count_tokens: CountTokens, max_tokens: int) -> None:
        """Exclude, and note, examples with longer prompts than this or task.max_prompt_tokens."""
        limit = min(max_tokens, self._max_prompt_tokens or max_tokens)

        def fits(made: Callable[[Problem], Example]) -> Keep:
            return lambda problem: count_tokens(made(problem).messages, problem.tools or self._tools) <= limit

        fit = fits(self._train_example), fits(self._eval_example)
        self.notes += leave_out_long(self.name, self.source, *fit, limit)

    @property
    def sizes(self) -> tuple[int, int] | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Numbers of training and held-out problems; None for an endless source."""
        return self.source.sizes

    def hold_out_for(self, other: Task) -> None:
        """Exclude training problems that ask the same as a problem held out by the other task; noted."""
        if not isinstance(other, DatasetTask):
            return
        for _, num, total in self.source.leave_out(lambda problem: not other.source.holds_out(problem.key), anything):
            self.notes += overlap(num, total, f"held out by {other.name}")
        self._fill_shot_pool()

    def _train_example(self, problem: Problem) -> Example:
        return self._example(problem, derive_seed(self._seed, self.name, "shots", problem.id))

    def _eval_example(self, problem: Problem) -> Example:
        return self._example(problem, derive_seed(EVAL_SEED, self.name, "shots"))

    def _example(self, problem: Problem, shots_seed: int) -> Example:
        shots = self._shots(problem, shots_seed) if self._few_shot else ()
        return Example(
            id=problem.id,
            messages=self._prompter.messages(problem.question, shots, self._fields(problem), problem.messages),
            answer=problem.answer,
            tools=problem.tools,
            metadata={**problem.metadata, "task": self.name} | ({"tags": problem.tags} if problem.tags else {}),
            row=problem.row,
        )

    def _fields(self, problem: Problem) -> Mapping[str, str]:
        return {} if self.environments is None else self.environments.fields(problem)

    def _shots(self, problem: Problem, seed: int) -> list[Problem]:
        rng = random.Random(seed)
        chosen: dict[bytes, Problem] = {}
        while len(chosen) < self._few_shot:
            other = rng.choice(self._shot_pool)
            if other.key != problem.key and not (other.about and other.about == problem.about):
                chosen.setdefault(other.key, other)
        return list(chosen.values())

    def _fill_shot_pool(self) -> None:
        """Fill the pool of few-shot examples, before long prompts are excluded."""
        shown = (problem for problem in self.source.some(NUM_SHOTS) if problem.answer) if self._few_shot else ()
        self._shot_pool = tuple({problem.key: problem for problem in shown}.values())
        largest = max(Counter(problem.about or problem.key for problem in self._shot_pool).values(), default=1)
        if self._few_shot and len(self._shot_pool) < self._few_shot + largest:
            raise ConfigError(
                f"prompt.few_shot={self._few_shot}: {self.name} has {len(self._shot_pool)} different training examples "
                f"with an answer to show, and {self._few_shot + largest} are needed; lower it."
            )


def places_of(asked: Mapping[AnswerFormat, int]) -> str:
    """ "118 of 120 prompts ask for `Answer: ...`, 2 name no place: their whole completion is the answer"."""
    named = {form: count for form, count in asked.items() if form.answer_in != "whole"}
    total, unnamed = sum(asked.values()), sum(asked.values()) - sum(named.values())
    if not named:
        return f"{total:,} of {total:,} prompts name no place: the whole completion is the answer"
    first, *others = sorted(named.items(), key=lambda one: -one[1])
    told = [f"{first[1]:,} of {total:,} prompts ask for `{first[0].filled('...')}`"]
    told += [f"{count:,} for `{form.filled('...')}`" for form, count in others]
    told += [f"{unnamed:,} name no place: their whole completion is the answer"] if unnamed else []
    return ", ".join(told)


def leave_out_long(name: str, source: Source, fits: Keep, fits_held_out: Keep, limit: int) -> tuple[str, ...]:
    """Exclude problems that do not fit into `limit` tokens; returns notes. UserError if none remain."""
    notes: tuple[str, ...] = ()
    for kind, num, total in source.leave_out(fits, fits_held_out):
        if num and num == total:
            raise UserError(
                f"{name}: the prompts of all {total:,} {kind} examples have more than {limit:,} tokens; raise "
                "task.max_prompt_tokens, shorten the prompt, or use a model with more context."
            )
        if num:
            notes += (f"{num:,} of {total:,} {kind} examples have prompts of more than {limit:,} tokens: left out",)
    return notes
