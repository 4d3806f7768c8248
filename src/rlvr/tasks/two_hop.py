"""Where does a person work? Each episode has its own world, in which a tool reveals one fact at a time.

    <q> where p3
    <call> search p3 </call>          <tool> p3 works-at o7 . </tool>
    <call> search o7 </call>          <tool> o7 located-in c4 . </tool>
    <ans> c4 </ans> <eoe>

Facts are drawn for every example, so weights cannot memorize them: without both searches an answer is a guess among the
cities. A hash of the (person, organization, city) chain decides whether it is held out, independent of the seed: no
training prompt or demonstration asks for a held-out chain, and evaluation asks for no others. All individual words are
trained on.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rlvr.core.env import Env
from rlvr.data.problems import is_held_out
from rlvr.envs.tools import make_tool
from rlvr.errors import ConfigError, UserError
from rlvr.registry import register
from rlvr.rewards.trace import Trace
from rlvr.seeding import EVAL_SEED, derive_seed
from rlvr.settings import PositiveInt, setting
from rlvr.tasks.base import Said, TaskContext, text_of
from rlvr.tasks.settings import HeldOutShare
from rlvr.tasks.words import CALL, CALL_END, END, NOTHING, REPLY, REPLY_END, STOP, WordsEnv, WordsSettings, WordsTask
from rlvr.types import Example, Message

ASK = "<q> where"
WORKS_AT, LOCATED_IN = "works-at", "located-in"
MAX_TRIES = 20_000  # draws before giving up on a kind of chain
SEARCH_SHARE = 4 / 7  # share of unworked demonstrations that search once, then guess; the others guess at once

Chain = tuple[str, str, str]
"""A person, their organization, and its city: `("p3", "o7", "c4")`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    facts: Mapping[str, str]  # {"p3": "p3 works-at o7", "o7": "o7 located-in c4", ...}
    chain: Chain
    trace: Trace = field(default_factory=Trace)

    def knows(self, reply: str) -> bool:
        return reply.removesuffix(f" {STOP}") in self.facts.values()


def search(name: str, state: Walk) -> str:
    """Look up where a person works, or which city an organization is in.

    Args:
        name: The person, such as p3, or the organization, such as o7.
    """
    state.trace.note("query", name)
    fact = state.facts.get(name)
    if fact is None:
        return f"{NOTHING} {STOP}"
    state.trace.note("document", fact, name in state.chain, name)
    return f"{fact} {STOP}"


@register("task", "two_hop")
class TwoHop(WordsSettings):
    """A new world in each episode: who works where, and in which city; a tool reveals one fact at a time."""

    has_tools: ClassVar[bool] = True
    shows_calls: ClassVar[bool] = False
    num_persons: PositiveInt = setting(40, "persons in a world; the question asks about one")
    num_organizations: PositiveInt = setting(30, "organizations of these persons")
    num_cities: PositiveInt = setting(20, "cities of these organizations")
    held_out_share: HeldOutShare = setting(
        0.2, "share of all (person, organization, city) chains, chosen by hash, that is never trained on"
    )
    max_turns: int = setting(4, "maximum number of completions per episode; two searches and an answer need 3", ge=3)

    @property
    def num_turns(self) -> int:
        return self.max_turns

    def open(self, context: TaskContext) -> TwoHopTask:
        return TwoHopTask(self, context)


class TwoHopTask(WordsTask):
    def __init__(self, settings: TwoHop, context: TaskContext) -> None:
        super().__init__(context)
        self._settings = settings
        self._persons, self._organizations, self._cities = (
            tuple(f"{letter}{number}" for number in range(count))
            for letter, count in (
                ("p", settings.num_persons),
                ("o", settings.num_organizations),
                ("c", settings.num_cities),
            )
        )
        self._tool = make_tool(search, timeout_s=1.0, inline=True)  # a dictionary lookup
        self.vocabulary = self.made_vocabulary(
            (*ASK.split(), CALL, CALL_END, REPLY, REPLY_END, self._tool.name, WORKS_AT, LOCATED_IN, NOTHING, STOP),
            (*self._persons, *self._organizations, *self._cities),
        )
        self._trained_chain(random.Random(0))
        if not self.eval_examples(1):
            raise self._impossible("evaluate on")

    def train_example(self, index: int) -> Example:
        seed = derive_seed(self._seed, "two_hop", "train", index)
        return self._example(self._trained_chain(random.Random(seed)), seed)

    def calls(self, example: Example, index: int) -> Sequence[Said]:
        return [{"name": self._tool.name, "arguments": {"name": name}} for name in example.metadata["chain"][:2]]

    def eval_examples(self, num: int) -> list[Example]:
        rng = random.Random(derive_seed(EVAL_SEED, "two_hop", "eval"))
        chains: dict[Chain, None] = {}
        while len(chains) < num and (chain := self._draw(rng, held_out=True, other_than=chains)) is not None:
            chains[chain] = None
        return [self._held_out_example(chain) for chain in chains]

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        """Worked ones find the answer. Of the others four in seven search once and then name any city, three name any
        city at once; RL has to regain the searches."""
        rng = random.Random(derive_seed(self._seed, "two_hop", "demonstration", index))
        kind, guess = rng.random(), rng.choice(self._cities)
        person, organization, city = self._trained_chain(rng)
        hops = ((person, WORKS_AT, organization), (organization, LOCATED_IN, city))
        if kind >= worked_share:
            searches = kind < worked_share + (1 - worked_share) * SEARCH_SHARE
            hops, city = hops[:1] if searches else (), guess
        parts = [text_of(self._messages(person))]
        for name, relation, found in hops:
            parts += [
                f"{CALL} {self._tool.name} {name} {CALL_END}",
                f"{REPLY} {name} {relation} {found} {STOP} {REPLY_END}",
            ]
        return (*parts, f"{self.answered(city)} {END}")

    def env(self, example: Example) -> Env:
        return WordsEnv(
            example,
            Walk(facts=self.facts(example), chain=example.metadata["chain"]),
            self._prompter.answer_format,
            tools=(self._tool,),
            verifier=self._verifier,
            max_turns=self._settings.max_turns,
        )

    def facts(self, example: Example) -> Mapping[str, str]:
        """The world of an example, `Walk.facts`: its chain, and random facts for everything else."""
        person, organization, city = example.metadata["chain"]
        draw = random.Random(derive_seed(example.metadata["world"], "world")).random
        organizations, cities = self._organizations, self._cities
        works_at = {name: organizations[int(draw() * len(organizations))] for name in self._persons}
        located_in = {name: cities[int(draw() * len(cities))] for name in organizations}
        works_at[person], located_in[organization] = organization, city
        return {
            name: f"{name} {relation} {place}"
            for relation, places in ((WORKS_AT, works_at), (LOCATED_IN, located_in))
            for name, place in places.items()
        }

    def example(self, text: str) -> Example:
        """For `<q> where p3`, `where p3` or `p3` a held-out chain of that person; UserError for other text."""
        words = text.split()
        if not words or words[-1] not in self._persons or words[:-1] not in ([], ["where"], ASK.split()):
            last = self._persons[-1]
            raise UserError(f"{text[:200]!r} is no question of task={self.name}: ask where p0 (to {last}).")
        rng = random.Random(derive_seed(EVAL_SEED, "two_hop", "asked", words[-1]))
        chain = self._draw(rng, held_out=True, person=words[-1])
        if chain is None:
            raise UserError(f"no chain of {words[-1]} is held out: ask where another person works.")
        return self._held_out_example(chain)

    def longest(self) -> Sequence[Message]:
        name = self._persons[0]
        turn = f"{CALL} {self._tool.name} {name} {CALL_END} {REPLY} {name} {WORKS_AT} {name} {STOP} {REPLY_END}"
        num_searches = self._settings.max_turns - 1
        return (*self._messages(name), *[Message(role="user", content=turn)] * num_searches)

    def is_held_out(self, chain: Chain) -> bool:
        """Whether a chain is never trained on; a hash of the words alone, independent of the seed."""
        return is_held_out(" ".join(chain).encode(), self._settings.held_out_share, b"rlvr-two-hop")

    def _messages(self, person: str) -> tuple[Message, ...]:
        return self._prompter.messages(f"{ASK} {person}")

    def _held_out_example(self, chain: Chain) -> Example:
        return self._example(chain, derive_seed(EVAL_SEED, "two_hop", *chain))

    def _example(self, chain: Chain, seed: int) -> Example:
        return Example(
            id=f"{' '.join(chain)} in world {seed:016x}",
            messages=self._messages(chain[0]),
            answer=chain[2],
            metadata={"task": self.name, "chain": chain, "world": seed},
        )

    def _trained_chain(self, rng: random.Random) -> Chain:
        chain = self._draw(rng, held_out=False)
        if chain is None:
            raise self._impossible("train on")
        return chain

    def _draw(
        self, rng: random.Random, *, held_out: bool, person: str | None = None, other_than: Collection[Chain] = ()
    ) -> Chain | None:
        for _ in range(MAX_TRIES):
            chain = (person or rng.choice(self._persons), rng.choice(self._organizations), rng.choice(self._cities))
            if self.is_held_out(chain) is held_out and chain not in other_than:
                return chain
        return None

    def _impossible(self, what: str) -> ConfigError:
        share = self._settings.held_out_share
        return ConfigError(f"task.held_out_share={share} leaves no chain to {what}: change it, or make a larger world.")
