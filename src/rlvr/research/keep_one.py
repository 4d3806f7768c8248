"""Which of nine facts does the question need? The policy chooses before it reads.

    r2 e9 d0 e1 r3 e7 d1 e4 r3 e2 d2 e5 ... <q> which r3 e7     what a search returned: d1 says that e7 r3 e4
    <call> keep e7 d1 </call>
    r3 e7 d1 e4 <q> what r3 e7                                  a fresh context with what was kept
    <ans> e4 </ans> <eoe>

A fact's id follows its subject: a call that names the subject finds the id as a copying head does. The warm start
learns that with each of five seeds; with the id before the subject with three. A model that has learnt to read few
facts answers wrongly among many. Every example draws its own facts, about different subjects; 4 in 9 of the others
share the question's relation. A hash of the fact that is asked for decides whether it is held out, independent of the
seed: no example of RL asks for it. Demonstrations ask for any of the facts they show.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from rlvr.core.env import Env, Reply
from rlvr.data.problems import is_held_out
from rlvr.envs.tools import make_tool
from rlvr.errors import ConfigError, UserError
from rlvr.registry import register
from rlvr.rewards.base import Verifier
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.trace import Trace
from rlvr.seeding import EVAL_SEED, derive_seed
from rlvr.settings import NonNegativeInt, Share, setting
from rlvr.tasks.base import Said, TaskContext
from rlvr.tasks.settings import HeldOutShare
from rlvr.tasks.words import CALL, CALL_END, END, NOTHING, REPLY, REPLY_END, STOP, WordsEnv, WordsSettings, WordsTask
from rlvr.types import Attempt, Example, Message, Score

ASK, WHICH, WHAT = "<q>", "which", "what"
FEW = 3  # facts that the reader is trained on, and of easy examples, at most
MAX_TRIES = 20_000  # draws before giving up on a held-out or trained fact

Fact = tuple[str, str, str]
"""A subject, a relation and the answer: `("e7", "r3", "e4")`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """What the search of an example returned, by id in order, and what was kept of it."""

    facts: Mapping[str, Fact]
    asked: Fact
    ask: Callable[[Mapping[str, Fact], Fact], tuple[Message, ...]]  # the prompt that asks for the answer
    kept: dict[str, None] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)

    def knows(self, reply: str) -> bool:
        return False  # the environment answers with a fresh context

    def reading(self, ids: Sequence[str]) -> tuple[Message, ...] | None:
        """A fresh prompt that asks for the answer, with only these facts; None if one does not exist."""
        known = {name: fact for name, fact in self.facts.items() if name in ids}
        return self.ask(known, self.asked) if len(known) == len(set(ids)) else None


def keep(about: str, ids: list[str], state: Searched) -> str:
    """Keep these facts; all others are forgotten.

    Args:
        about: The subject of the facts, such as e7; it decides nothing.
        ids: The ids of the facts, such as d1.
    """
    state.trace.note("query", f"{about} {' '.join(ids)}")
    for name in ids:
        if name in state.facts:
            fact = state.facts[name]
            state.kept[name] = None
            state.trace.note("document", " ".join(fact), fact == state.asked, name)
    return STOP


class KeepEnv(WordsEnv):
    """Answers a call of `keep` with a fresh context."""

    def __init__(self, example: Example, found: Searched, form: AnswerFormat, **settings: Any) -> None:
        super().__init__(example, found, form, **settings)
        self._found = found

    async def step(self, said: Message) -> Reply:
        reply = await super().step(said)
        fresh = self._found.reading(tuple(self._found.kept)) if self._found.trace.steps else None
        return reply if reply.done or fresh is None else Reply(messages=fresh, done=False, restarts=True)


@dataclass(frozen=True)
class KeptVerifier:
    """What was kept counts as retrieved."""

    verifier: Verifier

    @property
    def name(self) -> str:
        return self.verifier.name

    async def verify(self, attempt: Attempt) -> Score:
        return await self.verifier.verify(replace(attempt, retrieved=tuple(attempt.state.kept)))


@register("task", "keep_one")
class KeepOne(WordsSettings):
    """Facts that a search returned, of which the question needs one: the policy keeps some, then answers from these."""

    reward = "keep_one"
    has_tools: ClassVar[bool] = True
    shows_calls: ClassVar[bool] = False
    rereads: ClassVar[bool] = True
    words_of_a_turn: ClassVar[int] = 5  # <call> keep e7 d1 </call>
    filter: Literal["keep", "none", "gold"] = setting(
        "keep",
        "keep: the policy chooses the facts that it reads; none: it reads all of them; gold: it reads the right one",
    )
    num_facts: int = setting(9, "facts of an example", ge=1, le=100)
    num_entities: int = setting(30, "different subjects and answers", ge=2)
    num_relations: int = setting(6, "different relations", ge=1)
    easy_examples: NonNegativeInt = setting(0, f"first examples of the training stream, with 1 to {FEW} facts")
    keep_share: Share = setting(
        0.35,
        f"share of the warm start's demonstrations that keep facts among num_facts; others keep, and answer, among 1 "
        f"to {FEW}. Of the calls a share worked_share keeps the right fact, others the first",
    )
    held_out_share: HeldOutShare = setting(
        0.2,
        "share of all facts, chosen by hash, that no example of RL asks for; the warm start's demonstrations may",
    )

    @property
    def num_turns(self) -> int:
        return 2 if self.filter == "keep" else 1

    def open(self, context: TaskContext) -> KeepOneTask:
        return KeepOneTask(self, context)


class KeepOneTask(WordsTask):
    def __init__(self, settings: KeepOne, context: TaskContext) -> None:
        super().__init__(context)
        if settings.num_facts > settings.num_entities:
            raise ConfigError(
                f"task.num_facts={settings.num_facts}: every fact needs a subject of its own; raise task.num_entities."
            )
        self._settings = settings
        self._ids, self._entities, self._relations = (
            tuple(f"{letter}{number}" for number in range(count))
            for letter, count in (
                ("d", settings.num_facts),
                ("e", settings.num_entities),
                ("r", settings.num_relations),
            )
        )
        self._tool = make_tool(keep, timeout_s=1.0, inline=True)
        self.vocabulary = self.made_vocabulary(
            (ASK, WHICH, WHAT, CALL, CALL_END, REPLY, REPLY_END, self._tool.name, NOTHING, STOP),
            (*self._ids, *self._entities, *self._relations),
        )
        self._asked(random.Random(0), held_out=False)
        self._asked(random.Random(0), held_out=True)

    def train_example(self, index: int) -> Example:
        rng = random.Random(derive_seed(self._seed, "keep_one", "train", index))
        is_easy = index < self._settings.easy_examples
        return self._example(rng, 1 + index % FEW if is_easy else self._settings.num_facts)

    def eval_examples(self, num: int) -> list[Example]:
        return [
            self._example(random.Random(derive_seed(EVAL_SEED, "keep_one", index)), held_out=True)
            for index in range(num)
        ]

    def calls(self, example: Example, index: int) -> Sequence[Said]:
        """The right fact kept, if the policy chooses."""
        asked = example.metadata["asked"]
        right = [name for name, fact in example.metadata["facts"].items() if fact == asked]
        call = {"name": self._tool.name, "arguments": {"about": asked[0], "ids": right}}
        return [call] if self._settings.filter == "keep" else []

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        """Few facts, and for each of them in any order a call that keeps one, an answer, and the answer without marks,
        which is learnt first; or many facts, and calls only. Of the calls a share `worked_share` keeps the right fact,
        others the first."""
        rng = random.Random(derive_seed(self._seed, "keep_one", "demonstration", index))
        many, worked = rng.random() < self._settings.keep_share, rng.random() < worked_share
        facts, _ = self._facts(rng, self._settings.num_facts if many else 1 + index % FEW)
        first, documents = next(iter(facts)), []
        for name in rng.sample([*facts], min(FEW, len(facts))):
            subject, relation, object = fact = facts[name]
            call = f"{CALL} {self._tool.name} {subject} {name if worked else first} {CALL_END}"
            documents.append((self._question(WHICH, fact), call))
            if not many:
                answer = f"{self.answered(object)} {END}"
                documents += [(self._question(WHAT, fact), answer), (f"{relation} {subject}", object)]
        rng.shuffle(documents)
        (opening, answer), *rest = documents
        return (f"{self._text(facts)} {opening}", answer, *(part for pair in rest for part in pair))

    def env(self, example: Example) -> Env:
        found = Searched(facts=example.metadata["facts"], asked=example.metadata["asked"], ask=self._reading)
        return KeepEnv(
            example,
            found,
            self._prompter.answer_format,
            tools=(self._tool,) if self._settings.filter == "keep" else (),
            verifier=KeptVerifier(self._verifier),
            max_turns=self._settings.num_turns,
        )

    def example(self, text: str) -> Example:
        """For `what r3 e7` or `r3 e7` an example with a held-out fact about them; UserError for other text."""
        words = text.split()
        relation, subject = words[-2:] if len(words) > 1 else ("", "")
        known = subject in self._entities and relation in self._relations
        if not known or words[:-2] not in ([], [WHAT], [WHICH], [ASK, WHAT], [ASK, WHICH]):
            last = f"{self._relations[-1]} {self._entities[-1]}"
            raise UserError(f"{text[:200]!r} is no question of task={self.name}: ask what r0 e0 (to {last}).")
        rng = random.Random(derive_seed(EVAL_SEED, "keep_one", "asked", subject, relation))
        return self._example(rng, held_out=True, about=(subject, relation))

    def longest(self) -> Sequence[Message]:
        facts, asked = self._facts(random.Random(0), self._settings.num_facts)
        return self._messages(facts, WHICH, asked)

    def is_held_out(self, fact: Fact) -> bool:
        """Whether no example of RL asks for a fact; a hash of the words alone, independent of the seed."""
        return is_held_out(" ".join(fact).encode(), self._settings.held_out_share, b"rlvr-keep-one")

    def _example(
        self, rng: random.Random, size: int | None = None, *, held_out: bool = False, about: Sequence[str] | None = None
    ) -> Example:
        facts, asked = self._facts(rng, size or self._settings.num_facts, held_out=held_out, about=about)
        shown, ask = facts, WHICH
        if self._settings.filter != "keep":
            ask = WHAT
        if self._settings.filter == "gold":
            shown = {name: fact for name, fact in facts.items() if fact == asked}
        return Example(
            id=f"{self._question(ask, asked)} of {self._text(facts)}",
            messages=self._messages(shown, ask, asked),
            answer=asked[2],
            metadata={"task": self.name, "facts": facts, "asked": asked},
        )

    def _messages(self, facts: Mapping[str, Fact], ask: str, asked: Fact) -> tuple[Message, ...]:
        return self._prompter.messages(f"{self._text(facts)} {self._question(ask, asked)}".strip())

    def _reading(self, facts: Mapping[str, Fact], asked: Fact) -> tuple[Message, ...]:
        return self._messages(facts, WHAT, asked)

    def _text(self, facts: Mapping[str, Fact]) -> str:
        return " ".join(f"{relation} {subject} {name} {found}" for name, (subject, relation, found) in facts.items())

    def _question(self, ask: str, fact: Fact) -> str:
        return f"{ASK} {ask} {fact[1]} {fact[0]}"

    def _facts(
        self, rng: random.Random, size: int, *, held_out: bool = False, about: Sequence[str] | None = None
    ) -> tuple[dict[str, Fact], Fact]:
        """Facts by id in any order, and the one that is asked for."""
        asked = self._asked(rng, held_out=held_out, about=about)
        others = [name for name in self._entities if name != asked[0]]
        drawn = [asked]
        for subject in rng.sample(others, size - 1):
            relation = asked[1] if rng.random() < 1 / 3 else rng.choice(self._relations)
            drawn.append((subject, relation, rng.choice(self._entities)))
        rng.shuffle(drawn)
        return dict(zip(rng.sample(self._ids, size), drawn, strict=True)), asked

    def _asked(self, rng: random.Random, *, held_out: bool, about: Sequence[str] | None = None) -> Fact:
        for _ in range(MAX_TRIES):
            subject, relation = about or (rng.choice(self._entities), rng.choice(self._relations))
            fact = (subject, relation, rng.choice(self._entities))
            if self.is_held_out(fact) is held_out:
                return fact
        share, what = self._settings.held_out_share, "evaluate" if held_out else "train"
        raise ConfigError(f"task.held_out_share={share} leaves no fact to {what} on: change it, or add entities.")
