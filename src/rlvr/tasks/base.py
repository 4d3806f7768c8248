"""What a task is: examples to train on, examples held out, environments, and the metric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from rlvr.core.env import Env
from rlvr.errors import UserError
from rlvr.rows import clean
from rlvr.tasks.problems import fingerprint
from rlvr.types import Example, GradedAnswer, Message, TurnText

CountTokens = Callable[..., int]
"""Messages, and the schemas of tools if there are any -> the tokens of their prompt."""

NUM_TEXTS = 2_000
"""Demonstrations that a tokenizer is learnt from."""


class Task(ABC):
    """Everything is a function of (data, settings, seed, index); held-out examples do not depend on the seed."""

    name: str  # part of the metrics' names
    stop_words: tuple[str, ...] = ()  # words that end a completion, beside the tokenizer's own end
    vocabulary: tuple[str, ...] | None = None  # words of a word-level tokenizer made for this task; None: free text
    notes: tuple[str, ...] = ()  # what loading found, in sentences: sizes, overlap, what was left out

    @abstractmethod
    def train_example(self, index: int) -> Example:
        """Example `index` of the endless, seeded training stream; never held out."""

    @abstractmethod
    def eval_examples(self, num: int) -> list[Example]:
        """The first `num` held-out examples, all different; always the same ones, fewer if there are no more."""

    @abstractmethod
    def env(self, example: Example) -> Env:
        """A fresh single-use environment."""

    def envs(self, example: Example, count: int) -> Sequence[Env]:
        """The environments of a group; they may be scored together."""
        return [self.env(example) for _ in range(count)]

    @abstractmethod
    async def grade(self, example: Example, turns: Sequence[TurnText]) -> GradedAnswer:
        """The metric: what was answered and whether it is right. Knows nothing of reward settings."""

    def tags(self, example: Example) -> tuple[str, ...]:
        """Names of the subsets whose accuracy is reported by itself, e.g. `("2_steps",)`."""
        return ()

    @abstractmethod
    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        """Prompt and completion `index` of an endless stream for supervised training; never held out.

        Of several turns: prompt, completion, reply, completion, ...; what the completions say is learnt. A share
        `worked_share` of them solve the problem in the asked-for format; which problem it is does not depend on it.
        """

    def texts(self) -> Iterator[str]:
        """Training prompts with their solutions, for a tokenizer to be learnt from; it ends."""
        return (" ".join(self.demonstration(index, 1.0)) for index in range(NUM_TEXTS))

    @abstractmethod
    def example(self, text: str) -> Example:
        """The example of a user's own question. Where no answer is known its `answer` is empty."""

    @abstractmethod
    def limit_prompts(self, count_tokens: CountTokens, max_tokens: int) -> None:
        """Leave out, and note, the examples whose prompt has more tokens; called once, before anything is drawn.

        Raises UserError if that leaves nothing.
        """

    def eval_sets(self) -> tuple[Task, ...]:
        """What is evaluated, each by itself: the task, or the parts of a mix."""
        return (self,)


def own_question(task: str, text: str) -> tuple[str, str]:
    """A question of the user's own, cleaned, and the id of its example. UserError if it is blank."""
    question = clean(text)
    if not question:
        raise UserError("the prompt is blank: write a question.")
    return question, f"{task}/{fingerprint(question).hex()}"


def text_of(messages: Sequence[Message]) -> str:
    """What the messages say, line by line."""
    return "\n".join(message.content for message in messages)
