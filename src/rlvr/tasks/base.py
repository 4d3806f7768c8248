"""The task interface: training and held-out examples, environments, metric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlvr.core.env import Env
from rlvr.data.problems import fingerprint
from rlvr.data.rows import clean
from rlvr.errors import UserError
from rlvr.types import Example, GradedAnswer, Message, ToolCall, TurnText

if TYPE_CHECKING:
    from rlvr.rewards.base import Verifier
    from rlvr.rewards.sandbox import Sandbox
    from rlvr.tasks.prompting import Prompter
    from rlvr.tasks.prompts import Prompt

CountTokens = Callable[..., int]
"""Messages and tool schemas -> number of prompt tokens."""

Worked = tuple[Example, Callable[[str], str]]
"""An example, and its completion for an answer: `wrap("72")` is `<SOLUTION>72</SOLUTION>`."""

NUM_TEXTS = 2_000
"""Number of demonstrations for training a tokenizer."""

NUM_DEMONSTRATED = 1_000
"""Number of examples of an endless task that demonstrations show by default."""

Said = str | Mapping[str, Any] | Message
"""A completion: a text as it stands, without its end token; a call `{"name": ..., "arguments": ...}`, or a message, as
the chat writes it."""

Functions = Mapping[str, Callable[..., Any]]
"""Import path -> function, for functions of a script or notebook that cannot be imported."""

Reads = Literal["all", "held_out", "nothing"]
"""The required part of a task's data. Training reads all; a user's own question needs none."""


@dataclass(frozen=True, kw_only=True)
class TaskContext:
    """Arguments for opening a task."""

    name: str  # name in metrics
    seed: int
    prompt: Prompt
    prompter: Prompter
    reward: Verifier | None  # its parts; None if the task scores its episodes itself
    sandbox: Sandbox  # processes for code that can hang
    functions: Functions
    open: Callable[[str, int], Task]  # opens one of the settings' `bundles`: its name, seed
    reads: Reads = "all"

    @property
    def verifier(self) -> Verifier:
        """The reward; for tasks that do not score their episodes themselves."""
        assert self.reward is not None
        return self.reward


@dataclass(frozen=True, kw_only=True)
class Solution:
    """`Solution(example=..., turns=({"name": "search", "arguments": {"name": "p3"}}, "<ans> c4 </ans>"))`

    A right episode; `turns` are its completions. After each of them others say `replies`; None: what the task's
    environment says.
    """

    example: Example
    turns: Sequence[Said]
    replies: Sequence[Sequence[Message]] | None = None
    is_bare: bool = False  # an answer without working, as the data have none


def calling(turn: Said, number: int) -> str | Message:
    """A completion as a text, or as a message: a call is one that says nothing else."""
    if not isinstance(turn, Mapping):
        return turn
    call = ToolCall(id=f"call_{number}", name=turn["name"], arguments=dict(turn.get("arguments", {})))
    return Message(role="assistant", content="", tool_calls=(call,))


class Task(ABC):
    """A function of (data, settings, seed, index); held-out examples do not depend on the seed."""

    name: str  # part of the metrics' names
    stop_words: tuple[str, ...] = ()  # words that end a completion, besides the tokenizer's end token
    vocabulary: tuple[str, ...] | None = None  # words of a word-level tokenizer made for this task; None: free text
    sizes: tuple[int, int] | None = None  # numbers of training and held-out examples; None: endless
    notes: tuple[str, ...] = ()  # notes of loading, as sentences: sizes, overlap, exclusions

    @property
    def places(self) -> str:
        """Where the answers of completions are read, a sentence with counts of prompts; empty: at one place for all."""
        return ""

    @abstractmethod
    def train_example(self, index: int) -> Example:
        """Example `index` of the endless, seeded training stream; never held out."""

    @abstractmethod
    def eval_examples(self, num: int) -> list[Example]:
        """The first `num` distinct held-out examples, always the same; fewer if there are no more."""

    def solutions(self, num: int) -> list[Solution]:
        """Right episodes of up to `num` different training examples in the prompt's format; empty if none is known."""
        return []

    def demonstrations(self, num: int) -> list[Solution]:
        """Up to `num` right episodes to learn from, the user's own where there are any; an example of which none is
        known may be among them without turns."""
        return self.solutions(num)

    def worked(self, index: int) -> Worked | None:
        """A training example, and its completion with any answer in the prompt's format; of an episode with tools the
        last turn. None if not known."""
        return None

    def answered(self, answer: str, before: str = "") -> str | Message | None:
        """A last completion that answers this and nothing else, in the prompt's format; None if that is not known.

        `before` is the part of the completion that is there already: the answer follows it.
        """
        return None

    def unread_golds(self) -> list[str]:
        """Id and gold of all rows that reward or metric cannot read, and that loading did not look at."""
        return []

    def num_examples(self, wanted: int | None) -> int:
        """That many training examples, fewer if there are no more; None: all, or a thousand of an endless stream."""
        there = self.sizes[0] if self.sizes else wanted or NUM_DEMONSTRATED
        return min(there, wanted or there)

    @abstractmethod
    def env(self, example: Example) -> Env:
        """A fresh single-use environment."""

    def envs(self, example: Example, count: int) -> Sequence[Env]:
        """The environments of a group; they may be scored together."""
        return [self.env(example) for _ in range(count)]

    @abstractmethod
    async def grade(self, example: Example, turns: Sequence[TurnText]) -> GradedAnswer:
        """The metric: the answer and whether it is right. Independent of reward settings."""

    def tags(self, example: Example) -> tuple[str, ...]:
        """Names of the subsets with their own accuracy, e.g. `("2_steps",)`."""
        return ()

    @abstractmethod
    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        """Prompt and completion `index` of an endless stream for supervised training; never held out.

        With several turns: prompt, completion, reply, completion, ...; only completions are trained on. A share
        `worked_share` of them solve the problem in the required format; the choice of the problem does not depend on
        it.
        """

    def texts(self) -> Iterator[str]:
        """Finite training prompts with solutions, to train a tokenizer on."""
        return (" ".join(self.demonstration(index, 1.0)) for index in range(NUM_TEXTS))

    @abstractmethod
    def example(self, text: str) -> Example:
        """The example of a user's own question; `answer` is empty if unknown."""

    @abstractmethod
    def limit_prompts(self, count_tokens: CountTokens, max_tokens: int) -> None:
        """Exclude, and note, examples with longer prompts; called once, before anything is drawn.

        Raises UserError if none remain.
        """

    def hold_out_for(self, other: Task) -> None:  # noqa: B027 - tasks without rows have nothing to leave out
        """Never train on what `other` evaluates, where both read rows of data."""

    def eval_sets(self) -> tuple[Task, ...]:
        """The separately evaluated tasks: the task itself, or the parts of a mix."""
        return (self,)


def own_question(task: str, text: str) -> tuple[str, str]:
    """A user's question, cleaned, and its example id. UserError if it is blank."""
    question = clean(text)
    if not question:
        raise UserError("the prompt is blank: write a question.")
    return question, f"{task}/{fingerprint(question).hex()}"


def text_of(messages: Sequence[Message]) -> str:
    """The text of the messages, line by line."""
    return "\n".join(message.content for message in messages)
