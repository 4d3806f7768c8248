"""What does a word mean here? Each episode has its own meanings, told by solved examples in the prompt (supports).

    e1 w2 r3 . e5 w0 r1 . <q> e7 w2      two supports, then the question
    <ans> r3 </ans> <eoe>                w2 means r3 in this episode

The meanings are a permutation of the relations. A Latin square of permutations, (i + j) mod n, is held out: never
trained on, and without supports each relation is as likely an answer as any other. Entities mean nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import ClassVar

from rlvr.core.env import Env
from rlvr.envs.single_turn import SingleTurnEnv
from rlvr.errors import UserError
from rlvr.registry import register
from rlvr.rewards.trace import TracedAnswer
from rlvr.seeding import EVAL_SEED, derive_seed
from rlvr.settings import NonNegativeInt, PositiveInt, setting
from rlvr.tasks.base import TaskContext, text_of
from rlvr.tasks.words import END, STOP, WordsSettings, WordsTask
from rlvr.types import Example, Message

ASK = "<q>"
SUPPORT = re.compile(r"(w\d+) (r\d+) \.")
QUESTION = re.compile(rf"(?P<supports>(e\d+ {SUPPORT.pattern} )*){ASK} e\d+ (?P<asked>w\d+)")
EVAL_TRIES = 50  # draws before giving up on another held-out example: with few supports there are few

Meanings = tuple[int, ...]
"""The relation of each word, by number: with `(1, 3, 0, 2)` w1 means r3."""


@register("task", "meta")
class Meta(WordsSettings):
    """Words whose meaning changes in each episode, and is told by solved examples in the prompt."""

    shows_calls: ClassVar[bool] = False
    stop_words: ClassVar[tuple[str, ...]] = (END,)
    num_relations: int = setting(4, "relations, and words that mean them", ge=3, le=20)
    num_entities: PositiveInt = setting(20, "entities, which make examples different")
    max_supports: NonNegativeInt = setting(
        4, "an example has up to this many supports, drawn uniformly; of different words as long as there are any"
    )
    demonstrated_supports: PositiveInt = setting(
        8, "supports of three in four demonstrations, of 1, 2, ... or all words in turn; the others are as examples"
    )
    shuffled_supports: bool = setting(
        False, "control: the supports of examples, but not of demonstrations, are of independently drawn meanings"
    )

    def open(self, context: TaskContext) -> MetaTask:
        return MetaTask(self, context)


class MetaTask(WordsTask):
    stop_words = Meta.stop_words
    made_smaller_by = "task.demonstrated_supports"

    def __init__(self, settings: Meta, context: TaskContext) -> None:
        super().__init__(context)
        self._settings = settings
        self._entities = tuple(f"e{number}" for number in range(settings.num_entities))
        self._words, self._relations = (
            tuple(f"{letter}{number}" for number in range(settings.num_relations)) for letter in "wr"
        )
        self._scored = TracedAnswer(self._verifier, self._prompter.answer_format)
        self.vocabulary = self.made_vocabulary((ASK, STOP), (*self._entities, *self._words, *self._relations))

    def train_example(self, index: int) -> Example:
        rng = random.Random(derive_seed(self._seed, "meta", "train", index))
        return self._example(rng, rng.randint(0, self._settings.max_supports), held_out=False)

    def eval_examples(self, num: int) -> list[Example]:
        """0, 1, ... supports in turn; fewer if there are not as many different ones."""
        examples: dict[str, Example] = {}
        for place in range(num):
            rng = random.Random(derive_seed(EVAL_SEED, "meta", "eval", place))
            for _ in range(EVAL_TRIES):
                example = self._example(rng, place % (self._settings.max_supports + 1), held_out=True)
                if example.id not in examples:
                    examples[example.id] = example
                    break
        return list(examples.values())

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        """Worked ones answer right, and the relations of their supports are trained on as completions are. The others
        answer r0 whatever the supports say; RL has to regain what they tell.

        Supports of few words repeat them: a mixture from one word to all is learnt far sooner than all words alone.
        """
        rng = random.Random(derive_seed(self._seed, "meta", "demonstration", index))
        worked, meanings = rng.random() < worked_share, self._meanings(rng, held_out=False)
        if index % 4:
            words = rng.sample(range(len(self._words)), 1 + index // 4 % len(self._words))
            shown = rng.choices(words, k=self._settings.demonstrated_supports)
            asked = rng.choice(words)
        else:
            shown = self._different_words(rng, rng.randint(0, self._settings.max_supports))
            asked = rng.randrange(len(self._words))
        prompt = text_of(self._prompter.messages(self._question(rng, meanings, shown, asked)))
        if not worked:
            return prompt, f"{self.answered(self._relations[0])} {END}"
        parts = re.split(f" ({'|'.join(self._relations)}) ", prompt)  # "e1 w2", "r3", ". <q> e7 w2"
        return (*parts, f"{self.answered(self._relations[meanings[asked]])} {END}")

    def env(self, example: Example) -> Env:
        return SingleTurnEnv(example, self._scored)

    def tags(self, example: Example) -> tuple[str, ...]:
        return (f"k_{example.metadata['num_supports']}",)

    def is_held_out(self, meanings: Meanings) -> bool:
        """Whether these meanings are never trained on: a shift of all relations by the same number."""
        return all(relation == (word + meanings[0]) % len(meanings) for word, relation in enumerate(meanings))

    def example(self, text: str) -> Example:
        """`e1 w2 r3 . <q> e7 w2`; the answer is empty if no support tells it. UserError for other text, and where
        supports contradict each other."""
        question = QUESTION.fullmatch(" ".join(text.split()))
        told = set(SUPPORT.findall(question["supports"])) if question else set()
        meaning = dict(told)
        if (
            question is None
            or not len(told) == len(meaning) == len(set(meaning.values()))
            or not self._knows(question[0])
        ):
            raise UserError(
                f"{text[:200]!r} is no question of task={self.name}: ask e1 w2 r3 . <q> e7 w2 (to e"
                f"{len(self._entities) - 1}, w{len(self._words) - 1}, r{len(self._relations) - 1}), with any number of "
                "supports, in which each word means a relation of its own."
            )
        return self._made(question[0], meaning.get(question["asked"], ""), question["supports"].count(STOP))

    def _knows(self, text: str) -> bool:
        return {*text.split()} <= {ASK, STOP, *self._entities, *self._words, *self._relations}

    def longest(self) -> Sequence[Message]:
        num_supports = max(self._settings.max_supports, self._settings.demonstrated_supports)
        meanings = tuple(range(len(self._words)))
        return self._prompter.messages(self._question(random.Random(0), meanings, [0] * num_supports, 0))

    def _example(self, rng: random.Random, num_supports: int, *, held_out: bool) -> Example:
        meanings = self._meanings(rng, held_out=held_out)
        told = self._meanings(rng, held_out=held_out) if self._settings.shuffled_supports else meanings
        shown, asked = self._different_words(rng, num_supports), rng.randrange(len(self._words))
        question = self._question(rng, told, shown, asked)
        return self._made(question, self._relations[meanings[asked]], num_supports)

    def _made(self, question: str, answer: str, num_supports: int) -> Example:
        return Example(
            id=f"{question} means {answer}",
            messages=self._prompter.messages(question),
            answer=answer,
            metadata={"task": self.name, "num_supports": num_supports, "has_answer": bool(answer)},
        )

    def _meanings(self, rng: random.Random, *, held_out: bool) -> Meanings:
        if held_out:
            first = rng.randrange(len(self._words))
            return tuple((word + first) % len(self._words) for word in range(len(self._words)))
        drawn = tuple(rng.sample(range(len(self._words)), len(self._words)))
        return self._meanings(rng, held_out=False) if self.is_held_out(drawn) else drawn

    def _different_words(self, rng: random.Random, num: int) -> list[int]:
        """Different ones first; any others after all were drawn."""
        words = range(len(self._words))
        return [*rng.sample(words, min(num, len(words))), *rng.choices(words, k=max(0, num - len(words)))]

    def _question(self, rng: random.Random, meanings: Meanings, shown: Sequence[int], asked: int) -> str:
        """`e1 w2 r3 . <q> e7 w2`: the supports of the words shown, then the one asked about."""
        supports = [
            f"{rng.choice(self._entities)} {self._words[word]} {self._relations[meanings[word]]} {STOP}"
            for word in shown
        ]
        return " ".join([*supports, ASK, rng.choice(self._entities), self._words[asked]])
