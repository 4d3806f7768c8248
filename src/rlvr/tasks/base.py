"""What a task is: examples to train on, examples held out, environments, and the metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from rlvr.envs.base import Env
from rlvr.types import Example, Message, ToolSchema, TurnText, Verdict


class CountTokens(Protocol):
    """Counts the tokens of a prompt."""

    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = (), /) -> int:
        """How many tokens the prompt of these messages and tools has."""
        ...


class Task(Protocol):
    """Everything is a function of (data, settings, seed, index); held-out examples do not depend on the seed."""

    @property
    def name(self) -> str:
        """Part of the metrics' names."""
        ...

    @property
    def stop_words(self) -> tuple[str, ...]:
        """Words that end a completion, beside the tokenizer's own end."""
        ...

    @property
    def vocabulary(self) -> tuple[str, ...] | None:
        """The words of a word-level tokenizer made for this task; None for free text."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What loading found, in sentences: sizes, overlap, what was left out."""
        ...

    def train_example(self, index: int) -> Example:
        """Example `index` of the endless, seeded training stream; never held out."""
        ...

    def eval_examples(self, num: int) -> list[Example]:
        """The first `num` held-out examples; always the same ones, fewer if there are no more."""
        ...

    def env(self, example: Example) -> Env:
        """A fresh single-use environment."""
        ...

    def envs(self, example: Example, count: int) -> Sequence[Env]:
        """The environments of a group; they may be scored together."""
        ...

    async def judge(self, example: Example, turns: Sequence[TurnText]) -> Verdict:
        """The metric: what was answered and whether it is right. Knows nothing of reward settings."""
        ...

    def tags(self, example: Example) -> tuple[str, ...]:
        """Names of the subsets whose accuracy is reported by itself, e.g. `("2_steps",)`."""
        ...

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        """Prompt and completion `index` of an endless stream for supervised training; never held out.

        Of several turns: prompt, completion, reply, completion, ...; what the completions say is learnt.
        """
        ...

    def texts(self) -> Iterator[str]:
        """Training prompts with their solutions, for a tokenizer to be learnt from; it ends."""
        ...

    def example(self, text: str) -> Example:
        """The example of a user's own question. Where no answer is known its `answer` is empty."""
        ...

    def limit_prompts(self, count_tokens: CountTokens, max_tokens: int) -> None:
        """Leave out, and note, the examples whose prompt has more tokens; called once, before anything is drawn.

        Raises UserError if that leaves nothing.
        """
        ...

    def eval_sets(self) -> tuple[Task, ...]:
        """What is evaluated, each by itself: the task, or the parts of a mix."""
        ...
