"""Tasks made of words: tiny worlds with a vocabulary of their own, for models made from scratch.

    <q> where p3
    <call> search p3 </call>          <tool> p3 works-at o7 . </tool>
    <ans> c4 </ans> <eoe>

A task names its `words` and the tools of its world; marks, the metric and the end of a completion are common.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from rlvr.core.env import Reply
from rlvr.envs.tool_env import ToolEnv
from rlvr.errors import ConfigError
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.text import ExactMetric
from rlvr.rewards.trace import Trace
from rlvr.run_view import RunView
from rlvr.tasks.base import CountTokens, Said, Solution, Task, TaskContext, Worked
from rlvr.tasks.settings import TaskSettings
from rlvr.types import Attempt, Example, GradedAnswer, Message, TraceStep, TurnText

END = "<eoe>"
CALL, CALL_END, REPLY, REPLY_END = "<call>", "</call>", "<tool>", "</tool>"
NOTHING, STOP = "nothing", "."
METRIC = ExactMetric()


class ToolState(Protocol):
    """The state of an episode, which its tools get."""

    @property
    def trace(self) -> Trace: ...

    def knows(self, reply: str) -> bool:
        """Whether a tool of this world says this."""
        ...


class WordsEnv(ToolEnv):
    """Replies between marks, in words of the vocabulary.

    Replies `nothing .` to invalid calls: the vocabulary has no words for error messages.
    """

    def __init__(self, example: Example, world: ToolState, form: AnswerFormat, **settings: Any) -> None:
        super().__init__(example, state=world, **settings)
        self._world, self._format = world, form

    async def _ending(self, attempt: Attempt) -> tuple[TraceStep, ...]:
        grade = await METRIC.grade(replace(attempt, format=self._format))
        if grade.answer is None:
            return ()
        return self._world.trace.ending((), grade.answer, grade.correct)

    async def step(self, said: Message) -> Reply:
        reply = await super().step(said)
        messages = []
        for message in reply.messages:
            text = message.content if self._world.knows(message.content) else f"{NOTHING} {STOP}"
            messages.append(replace(message, content=f"{REPLY} {text} {REPLY_END}"))
        return replace(reply, messages=tuple(messages))


class WordsSettings(TaskSettings):
    """Settings that every task made of words has."""

    prompt: ClassVar[str] = "two_hop"
    reward = "two_hop"
    is_generated: ClassVar[bool] = True
    made_of_words: ClassVar[bool] = True
    words_of_a_turn: ClassVar[int] = 4  # of the longest completion: <call> search p3 </call>
    stop_words: ClassVar[tuple[str, ...]] = (CALL_END, END)

    def check_run(self, run: RunView) -> None:
        super().check_run(run)
        prompt, most, least = run.prompt, run.rollout.max_completion_tokens, self.words_of_a_turn
        for key, value, fits, wanted in (
            ("rollout.max_completion_tokens", most, most >= least, f"{least} or more: a call has {least} words"),
            ("prompt.answer_in", prompt.answer_in, prompt.answer_in == "solution", "solution: `<ans> c4 </ans>`"),
            ("prompt.tool_format", prompt.tool_format, prompt.tool_format == "words", "words, as it shows calls"),
        ):
            if not fits:
                raise ConfigError(f"{key}={value}: task={self.name} needs {wanted}.")


class WordsTask(Task):
    """Marks, metric and room of a task made of words. A subclass sets `vocabulary` with `made_vocabulary`."""

    stop_words = WordsSettings.stop_words
    made_smaller_by = "task.max_turns"  # a setting that shortens the longest episode

    def __init__(self, context: TaskContext) -> None:
        self.name, self._seed = context.name, context.seed
        self._prompter, self._verifier = context.prompter, context.verifier
        marks = self._prompter.answer_format.required_markers()
        self._answer_start, self._answer_end = marks.solution_start, marks.solution_end

    def made_vocabulary(self, before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
        """Special words, words of the task, the answer's marks, more words. ConfigError for a mark that is no word of
        its own."""
        vocabulary = ("<pad>", "<boe>", END, *before, self._answer_start, self._answer_end, *after)
        for mark in (self._answer_start, self._answer_end):
            if vocabulary.count(mark) > 1 or mark.split()[1:]:
                raise ConfigError(f"the marker {mark!r} is not one word of its own: choose prompt.markers=words.")
        return vocabulary

    def answered(self, answer: str, before: str = "") -> str:
        """The completion that answers: `<ans> c4 </ans>`, without its end."""
        return f"{self._answer_start} {answer} {self._answer_end}"

    def calls(self, example: Example, index: int) -> Sequence[Said]:
        """The calls of a right episode of training example `index`, before its answer."""
        return ()

    def solutions(self, num: int) -> list[Solution]:
        """The calls, then the answer."""
        examples = map(self.train_example, range(num))
        return [
            Solution(example=example, turns=(*self.calls(example, index), self.answered(example.answer)))
            for index, example in enumerate(examples)
        ]

    def worked(self, index: int) -> Worked:
        return self.train_example(index), self.answered

    async def grade(self, example: Example, turns: Sequence[TurnText]) -> GradedAnswer:
        """Whether exactly the answer is between the markers; independent of the rewards' code."""
        return await METRIC.grade(replace(Attempt.of(example, turns), format=self._prompter.answer_format))

    @abstractmethod
    def longest(self) -> Sequence[Message]:
        """The longest prompt of an episode: of its last turn."""

    def limit_prompts(self, count_tokens: CountTokens, max_tokens: int) -> None:
        """Excludes nothing: ConfigError if the longest episode does not fit."""
        needed = count_tokens(self.longest())
        if needed > max_tokens:
            raise ConfigError(
                f"task={self.name}: prompt, calls and replies of its longest episode have {needed} tokens, but "
                f"{max_tokens} are left for them; raise model.max_context_tokens, or make the task smaller, e.g. with "
                f"{self.made_smaller_by}."
            )
