"""Generated arithmetic in reverse Polish notation: `<boe> 4 0 1 + + = 4 1 + = 5 <eoe>`.

A hash of the expression decides whether it is held out, independent of the seed: held-out expressions never occur as
training prompts or demonstrations, and evaluation uses no others. The *lines* of a derivation are not filtered: a
held-out expression of fewer than `complexity_range[1]` operators can occur as an intermediate line of a longer training
expression (`4 1 +` above). Those with the most operators cannot, so their accuracy is the strict metric.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlvr.core.env import Env
from rlvr.data.problems import is_held_out
from rlvr.envs.single_turn import SingleTurnEnv
from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.rewards.base import Verifier
from rlvr.rewards.expressions import Arithmetic, ExpressionError, derivation, evaluate, parse
from rlvr.rewards.rpn import BEGIN, END, EQUALS, RpnVerifier
from rlvr.run_view import RunView
from rlvr.seeding import EVAL_SEED, derive_seed
from rlvr.settings import PositiveFloat, PositiveInt, plain, setting, wrong
from rlvr.tasks import rpn_metric
from rlvr.tasks.base import CountTokens, Solution, Task, TaskContext, Worked, text_of
from rlvr.tasks.settings import HeldOutShare, TaskSettings
from rlvr.tasks.shapes import OPERAND, OPERATOR, chain_shape, count_shapes, unrank_shape
from rlvr.types import Example, GradedAnswer, Message, TurnText

SHAPE_TRIES, FILL_TRIES = 50, 200  # draws before giving up on an expression
Weights = tuple[PositiveFloat, ...] | None


@register("task", "rpn")
class Rpn(TaskSettings):
    """Generated arithmetic in reverse Polish notation: `<boe> 4 0 1 + + = 4 1 + = 5 <eoe>`."""

    reward = "rpn"
    answer_kind = "number"
    is_generated: ClassVar[bool] = True
    made_of_words: ClassVar[bool] = True
    writes_prompts: ClassVar[bool] = True
    stop_words: ClassVar[tuple[str, ...]] = (END,)
    operators: Annotated[tuple[Literal["+", "-", "*"], ...], Field(min_length=1)] = setting(
        ("+", "-", "*"), "operators to draw from, uniformly"
    )
    operand_range: tuple[int, int] = setting((0, 6), "smallest and largest operand, both included")
    modulus: Annotated[int, Field(ge=2, le=10_000)] | None = setting(
        7, "modulus of all arithmetic; null: plain integers"
    )
    max_abs_value: Annotated[int, Field(ge=1, le=10_000)] | None = setting(
        None, "plain integers: bound on the absolute value of every intermediate result", only_if="modulus is None"
    )
    shape: Literal["chain", "tree"] = setting(
        "tree",
        "chain: the left operand is always the running result; tree: uniform over all expression shapes",
        only_if="complexity_range[1] > 1",
    )
    complexity_range: tuple[PositiveInt, PositiveInt] = setting((1, 3), "fewest and most operators in an expression")
    complexity_weights: Weights = setting(
        (1.0, 2.0, 4.0), "training weights of each number of operators in complexity_range; null: uniform"
    )
    eval_complexity_weights: Weights = setting((1.0, 2.0, 2.0), "the same for held-out examples; null: uniform")
    held_out_share: HeldOutShare = setting(0.1, "share of all expressions, chosen by hash, that is never trained on")
    max_prompt_tokens: PositiveInt = setting(16, "longest prompt; complexity_range must fit into it")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(set(self.operators)) < len(self.operators):
            raise wrong("operators", "names an operator twice; name each once")
        for key in ("complexity_range", "operand_range"):
            first, last = getattr(self, key)
            if first > last:
                raise wrong(key, f"the smaller number comes first; write [{last},{first}]")
        fewest, most = self.complexity_range
        for key in ("complexity_weights", "eval_complexity_weights"):
            weights, usual = getattr(self, key), type(self).model_fields[key].default
            if weights not in (None, usual) and len(weights) != most - fewest + 1:
                raise wrong(key, "needs one weight for each number of operators in complexity_range, or null")
        if prompt_tokens(most) > self.max_prompt_tokens:
            raise wrong("max_prompt_tokens", f"{most} operators need {prompt_tokens(most)}; raise it, or ask for fewer")
        if self.modulus is None and self.max_abs_value is None:
            raise wrong("modulus", "plain integers need a bound on results; set task.max_abs_value, e.g. 99")
        smallest, largest = self.bounds
        if self.operand_range[0] < smallest or self.operand_range[1] > largest:
            limit = f"modulus={self.modulus}" if self.modulus else f"max_abs_value={self.max_abs_value}"
            raise wrong("operand_range", f"task.{limit} leaves the numbers {smallest}..{largest}; narrow it")
        return self

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest word: 0..modulus-1, or -max_abs_value..max_abs_value for plain integers."""
        bound = self.max_abs_value or 0
        return (0, self.modulus - 1) if self.modulus is not None else (-bound, bound)

    def weights(self, key: str) -> tuple[float, ...]:
        """One weight per number of operators; the default weights only fit the default range."""
        count = self.complexity_range[1] - self.complexity_range[0] + 1
        given = getattr(self, key) or ()
        return given if len(given) == count else (1.0,) * count

    def check_run(self, run: RunView) -> None:
        super().check_run(run)
        for part in run.reward.parts.values():
            if part.reads_answer:
                raise ConfigError(
                    f"reward: a part of type {part.name} reads the whole completion, and task=rpn writes its steps, "
                    "then `= answer`; choose reward=rpn."
                )

    def open(self, context: TaskContext) -> RpnTask:
        return RpnTask(self, context.seed, context.verifier, name=context.name)


def prompt_tokens(num_operators: int) -> int:
    """Tokens of `<boe> expression =`: k operators, k + 1 operands, two marks."""
    return 2 * num_operators + 3


@lru_cache(maxsize=64)
def _eval_examples(kind: type[RpnTask], settings: str) -> dict[int, list[Example]]:
    """Those that were drawn in this process, by their number: they depend on nothing else."""
    return {}


class RpnTask(Task):
    stop_words = Rpn.stop_words

    def __init__(self, settings: Rpn, seed: int, verifier: Verifier, name: str = "rpn") -> None:
        self.name, self.settings, self.seed = name, settings, seed
        smallest, largest = settings.bounds
        self.arithmetic = Arithmetic(
            operators=settings.operators, smallest=smallest, largest=largest, modulus=settings.modulus
        )
        self.verifier = RpnVerifier(verifier)
        self.vocabulary = ("<pad>", BEGIN, END, EQUALS, *settings.operators, *self.arithmetic.values)
        low, high = settings.operand_range
        self._operands = tuple(str(value) for value in range(low, high + 1))
        self._sizes = range(settings.complexity_range[0], settings.complexity_range[1] + 1)
        self._cumulative = tuple(accumulate(settings.weights("complexity_weights")))
        self._eval_examples = _eval_examples(type(self), settings.model_dump_json())
        for size in self._sizes:
            self._drawn(random.Random(size), size)
        if not self.eval_examples(1):
            raise self._impossible("held-out expression")

    def train_example(self, index: int) -> Example:
        return self._example(self._train_words(self._rng("train", index)))

    def solutions(self, num: int) -> list[Solution]:
        """The steps: `4 1 + = 5`."""
        examples = {example.id: example for example in map(self.train_example, range(num))}.values()
        return [Solution(example=example, turns=(self._steps(example),)) for example in examples]

    def _steps(self, example: Example) -> str:
        return f" {EQUALS} ".join(derivation(example.metadata["expression"].split(), self.arithmetic)[1:])

    def worked(self, index: int) -> Worked:
        return self.train_example(index), str

    def answered(self, answer: str, before: str = "") -> str:
        return f"{EQUALS} {answer}" if before and not before.endswith(EQUALS) else answer

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        """Worked ones write the steps, `4 1 + = 5 <eoe>`; others answer directly, `5 <eoe>`."""
        rng = self._rng("demonstration", index)
        worked = rng.random() < worked_share
        lines = derivation(self._train_words(rng), self.arithmetic)
        completion = f" {EQUALS} ".join(lines[1:] if worked else lines[-1:])
        return f"{BEGIN} {lines[0]} {EQUALS}", f"{completion} {END}"

    def eval_examples(self, num: int) -> list[Example]:
        """The number of operators is drawn with eval_complexity_weights; sizes without further held-out expressions are
        dropped, and the others fill in. Drawn once a process: with few held-out expressions that takes many tries."""
        if num not in self._eval_examples:
            rng = random.Random(derive_seed(EVAL_SEED, "rpn", "eval"))
            weights = dict(zip(self._sizes, self.settings.weights("eval_complexity_weights"), strict=True))
            examples: dict[str, Example] = {}
            while len(examples) < num and weights:
                (size,) = rng.choices(tuple(weights), tuple(weights.values()))
                words = self._draw(rng, size, lambda text: self.is_held_out(text) and text not in examples)
                if words is None:
                    del weights[size]
                else:
                    examples[" ".join(words)] = self._example(words)
            self._eval_examples[num] = list(examples.values())
        return list(self._eval_examples[num])

    def example(self, text: str) -> Example:
        words = parse(text, self.arithmetic)
        if len(words) + 2 > self.settings.max_prompt_tokens:
            limit = f"task.max_prompt_tokens={self.settings.max_prompt_tokens}"
            raise ExpressionError(f"'{' '.join(words)}' makes a prompt of {len(words) + 2} tokens, above {limit}.")
        return self._example(words)

    def env(self, example: Example) -> Env:
        return SingleTurnEnv(example, self.verifier, state=self.arithmetic)

    async def grade(self, example: Example, turns: Sequence[TurnText]) -> GradedAnswer:
        """Exact answer; independent of the reward's code and settings."""
        return rpn_metric.grade(text_of(example.messages), turns[-1].completion, example.answer)

    def tags(self, example: Example) -> tuple[str, ...]:
        return (f"{example.metadata['num_operators']}_operators",)

    def limit_prompts(self, count_tokens: CountTokens, max_tokens: int) -> None:
        """Excludes nothing: ConfigError if the longest prompt, with the most operators, does not fit."""
        num_tokens = count_tokens(self._example(self._drawn(random.Random(0), self._sizes[-1])).messages)
        if num_tokens > max_tokens:
            raise ConfigError(
                f"task.complexity_range={list(self.settings.complexity_range)}: {self._sizes[-1]} operators make a "
                f"prompt of {num_tokens} tokens, but {max_tokens} are left for one; lower it."
            )

    def is_held_out(self, expression: str) -> bool:
        """Whether an expression is never trained on; a hash of the text alone, independent of the seed."""
        return is_held_out(expression.encode(), self.settings.held_out_share, b"rlvr-rpn-split")

    def _rng(self, stream: str, index: int) -> random.Random:
        return random.Random(derive_seed(self.seed, "rpn", stream, index))

    def _example(self, words: Sequence[str]) -> Example:
        expression = " ".join(words)
        return Example(
            id=expression,
            messages=(Message(role="user", content=f"{BEGIN} {expression} {EQUALS}"),),
            answer=str(evaluate(words, self.arithmetic)),
            metadata={"num_operators": len(words) // 2, "expression": expression},
        )

    def _train_words(self, rng: random.Random) -> list[str]:
        size = self._sizes[bisect(self._cumulative, rng.random() * self._cumulative[-1], hi=len(self._sizes) - 1)]
        return self._drawn(rng, size)

    def _drawn(self, rng: random.Random, size: int) -> list[str]:
        """Words of a training expression. ConfigError if there is none of this size."""
        words = self._draw(rng, size, lambda text: not self.is_held_out(text))
        if words is None:
            raise self._impossible(f"expression of {size} operators to train on")
        return words

    def _impossible(self, what: str) -> ConfigError:
        names = ("held_out_share", "max_abs_value", "operand_range", "complexity_range")
        said = ", ".join(f"task.{name}={plain(getattr(self.settings, name))}" for name in names)
        return ConfigError(f"{said} leave no {what}: allow more operators or operands.")

    def _draw(self, rng: random.Random, size: int, accept: Callable[[str], bool]) -> list[str] | None:
        """Words of an accepted expression with `size` operators, or None after many draws.

        A rejected draw keeps its shape, so that shapes stay uniform; a shape without accepted words is finally
        replaced.
        """
        draw = rng.random
        words_of = {OPERAND: self._operands, OPERATOR: self.settings.operators}
        chain = self.settings.shape == "chain"
        for _ in range(SHAPE_TRIES):
            shape = chain_shape(size) if chain else unrank_shape(size, rng.randrange(count_shapes(size)))
            for _ in range(FILL_TRIES):
                drawn = (words_of[symbol] for symbol in shape)
                words = [choices[int(draw() * len(choices))] for choices in drawn]
                if self._has_words(words) and accept(" ".join(words)):
                    return words
        return None

    def _has_words(self, words: Sequence[str]) -> bool:
        """Whether every intermediate result is in the vocabulary; always true with a modulus."""
        try:
            return self.arithmetic.modulus is not None or evaluate(words, self.arithmetic) is not None
        except ExpressionError:
            return False
