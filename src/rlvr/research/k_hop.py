"""Chains of any number of facts: trained on two and three hops, tested on up to five. The outermost relation is first:

    <q> r4 r1 r3 e7                   the r4 of the r1 of the r3 of e7
    <call> search e7 r3 </call>       <tool> e7 r3 e9 . </tool>
    <call> search e9 r1 </call>       <tool> e9 r1 e2 . </tool>
    <call> search e2 r4 </call>       <tool> e2 r4 e5 . </tool>
    <ans> e5 </ans> <eoe>

Facts are drawn for every example, so weights cannot memorize them. A hash of a chain's relations decides whether it is
held out, independent of the seed: no training prompt asks for it, nor what a turn of `mode=peel` leaves of one.

With `mode=peel` the environment keeps the place in the question. What a search found replaces the innermost relation
and its entity, in a fresh context; right or wrong, the environment does not say:

    <q> r4 r1 r3 e7                   <call> search e7 r3 </call>
    <q> r4 r1 e9                      <call> search e9 r1 </call>
    <q> r4 e2                         <call> search e2 r4 </call>
    <q> e5                            <ans> e5 </ans> <eoe>
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, zip_longest
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlvr.core.env import Env, Reply
from rlvr.data.problems import is_held_out
from rlvr.envs.tools import make_tool
from rlvr.errors import ConfigError, UserError
from rlvr.registry import register
from rlvr.rewards.trace import Trace
from rlvr.seeding import EVAL_SEED, derive_seed
from rlvr.settings import PositiveInt, setting, wrong
from rlvr.tasks.base import Said, TaskContext, text_of
from rlvr.tasks.settings import HeldOutShare
from rlvr.tasks.words import CALL, CALL_END, END, NOTHING, REPLY, REPLY_END, STOP, WordsEnv, WordsSettings, WordsTask
from rlvr.types import Example, Message

ASK, NOTED = "<q>", "noted"
MAX_TRIES = 20_000  # draws before giving up on a kind of chain

Mode = Literal["flat", "plan", "filler", "shuffled_plan", "peel"]
NumHops = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
Chain = tuple[str, ...]
"""An entity, and its relations in the order of the searches: `("e7", "r3", "r1", "r4")`."""
Fact = tuple[str, str, str]
"""`("e7", "r3", "e9")`: the r3 of e7 is e9."""
LookUp = Callable[[str, str], str | None]
"""Entity, relation -> entity; None for other words."""
Ask = Callable[[Chain], tuple[Message, ...]]


@dataclass(kw_only=True, slots=True)
class KHopWalk:
    """An episode: the facts of its world, and what is left of the question."""

    look_up: LookUp
    facts: Collection[Fact]  # those of the chain
    left: Chain
    trace: Trace = field(default_factory=Trace)

    def knows(self, reply: str) -> bool:
        words = reply.split()
        return reply == f"{NOTED} {STOP}" or (len(words) == 4 and self.look_up(words[0], words[1]) == words[2])


def search(name: str, relation: str, state: KHopWalk) -> str:
    """Look up a fact.

    Args:
        name: The entity, such as e7.
        relation: The relation, such as r3.
    """
    state.trace.note("query", f"{name} {relation}")
    reply = state.look_up(name, relation)
    if reply is None:
        return f"{NOTHING} {STOP}"
    fact = (name, relation, reply)
    state.trace.note("document", " ".join(fact), fact in state.facts, f"{name} {relation}")
    state.left = (reply, *state.left[2:])
    return f"{' '.join(fact)} {STOP}"


def plan(steps: str) -> str:
    """Write down the relations in the order of the searches.

    Args:
        steps: The relations, such as r3 r1 r4.
    """
    return f"{NOTED} {STOP}" if steps else f"{NOTHING} {STOP}"


class PeelEnv(WordsEnv):
    """Asks what is left of the question after each turn, in a fresh context."""

    def __init__(self, example: Example, walk: KHopWalk, *args: Any, ask: Ask, **settings: Any) -> None:
        super().__init__(example, walk, *args, **settings)
        self._walk, self._ask = walk, ask

    async def step(self, said: Message) -> Reply:
        reply = await super().step(said)
        if reply.done:
            return reply
        return Reply(messages=self._ask(self._walk.left), done=False, restarts=True)


@register("task", "k_hop")
class KHop(WordsSettings):
    """Chains of facts, searched one at a time: trained on two and three hops, tested on up to five."""

    has_tools: ClassVar[bool] = True
    shows_calls: ClassVar[bool] = False
    mode: Mode = setting(
        "peel",
        "peel: each turn answers one hop, and the next one reads what is left of the question in a fresh context; "
        "flat: searches in one context; plan: it first writes the relations in order; controls of plan: filler writes "
        "as many stops, shuffled_plan the relations in any order",
    )
    num_entities: PositiveInt = setting(16, "entities in a world")
    num_relations: PositiveInt = setting(8, "relations; those of a chain differ")
    train_hops: NumHops = setting((2, 3), "lengths of the chains of training examples and demonstrations")
    eval_hops: NumHops = setting((2, 3, 4, 5), "lengths of held-out chains, each with its own accuracy")
    held_out_share: HeldOutShare = setting(
        0.2, "share of all chains of relations, chosen by hash, that is never trained on"
    )

    @property
    def max_hops(self) -> int:
        return max(*self.train_hops, *self.eval_hops)

    @property
    def plans(self) -> bool:
        return self.mode not in ("flat", "peel")

    @property
    def num_turns(self) -> int:
        return self.plans + self.max_hops + 1

    @property
    def words_of_a_turn(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """`<call> search e7 r3 </call>`, `<call> plan r3 r1 r4 </call>`"""
        return max(5, self.plans * (self.max_hops + 3))

    @model_validator(mode="after")
    def _relations_suffice(self) -> Self:
        if self.max_hops > self.num_relations:
            raise wrong("num_relations", f"too small for {self.max_hops} hops: the relations of a chain differ")
        return self

    def open(self, context: TaskContext) -> KHopTask:
        return KHopTask(self, context)


class KHopTask(WordsTask):
    def __init__(self, settings: KHop, context: TaskContext) -> None:
        super().__init__(context)
        self._settings = settings
        self._entities = tuple(f"e{number}" for number in range(settings.num_entities))
        self._relations = tuple(f"r{number}" for number in range(settings.num_relations))
        functions = (search, plan) if settings.plans else (search,)
        self._tools = tuple(make_tool(function, timeout_s=1.0, inline=True) for function in functions)
        self.vocabulary = self.made_vocabulary(
            (ASK, CALL, CALL_END, REPLY, REPLY_END, search.__name__, plan.__name__, NOTED, NOTHING, STOP),
            (*self._relations, *self._entities),
        )
        for held_out, lengths in enumerate((settings.train_hops, settings.eval_hops)):
            if not all(self._draw(random.Random(0), hops, held_out=bool(held_out)) for hops in lengths):
                raise ConfigError(
                    f"task.held_out_share={settings.held_out_share} leaves no chain to "
                    f"{'evaluate' if held_out else 'train'} on: change it, or add relations."
                )

    def train_example(self, index: int) -> Example:
        seed = derive_seed(self._seed, "k_hop", "train", index)
        return self._example(self._trained_chain(random.Random(seed)), seed)

    def eval_examples(self, num: int) -> list[Example]:
        """The lengths take turns, as long as there are chains of them."""
        each = [self._held_out_chains(hops, num) for hops in self._settings.eval_hops]
        chains = [chain for row in zip_longest(*each) for chain in row if chain is not None]
        return [self._held_out_example(chain) for chain in chains[:num]]

    def tags(self, example: Example) -> tuple[str, ...]:
        """`("hops_3",)`"""
        return (f"hops_{len(example.metadata['chain']) - 1}",)

    def calls(self, example: Example, index: int) -> Sequence[Said]:
        """All searches, after a plan if the mode has one."""
        return [
            call for call, _ in self._calls(example, random.Random(derive_seed(self._seed, "k_hop", "plan", index)))
        ]

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        """Worked ones find the answer; others stop before any of the searches and name any entity.

        With `mode=peel` one context of the episode: its next step, or any entity.
        """
        rng = random.Random(derive_seed(self._seed, "k_hop", "demonstration", index))
        worked, guess = rng.random() < worked_share, rng.choice(self._entities)
        example = self._example(self._trained_chain(rng), rng.getrandbits(60))
        hops, answer = example.metadata["chain"], example.answer if worked else guess
        if self._settings.mode == "peel":
            done = rng.randrange(len(hops))
            found = (hops[0], *(fact[2] for fact in example.metadata["facts"]))[done]
            steps = self._steps(example, rng)[done : done + worked]
            said = steps[0][0] if steps else f"{self.answered(answer)} {END}"
            return text_of(self._messages((found, *hops[done + 1 :]))), said
        steps = self._steps(example, rng)
        if not worked:
            steps = steps[: self._settings.plans + rng.randrange(len(hops) - 1)]
        return (text_of(example.messages), *chain.from_iterable(steps), f"{self.answered(answer)} {END}")

    def _steps(self, example: Example, rng: random.Random) -> list[tuple[str, str]]:
        """The calls of an episode before its answer, and their replies, as texts."""
        return [
            (f"{CALL} {call['name']} {' '.join(call['arguments'].values())} {CALL_END}", f"{REPLY} {said} {REPLY_END}")
            for call, said in self._calls(example, rng)
        ]

    def _calls(self, example: Example, rng: random.Random) -> list[tuple[dict[str, Any], str]]:
        names = ("name", "relation")
        calls = [
            (
                {"name": search.__name__, "arguments": dict(zip(names, fact[:2], strict=True))},
                f"{' '.join(fact)} {STOP}",
            )
            for fact in example.metadata["facts"]
        ]
        if self._settings.plans:
            planned = list(example.metadata["chain"][1:])
            if self._settings.mode == "shuffled_plan":
                rng.shuffle(planned)
            words = " ".join([STOP] * len(planned) if self._settings.mode == "filler" else planned)
            calls.insert(0, ({"name": plan.__name__, "arguments": {"steps": words}}, f"{NOTED} {STOP}"))
        return calls

    def env(self, example: Example) -> Env:
        look_up = partial(self._look_up, example.metadata["world"])
        walk = KHopWalk(look_up=look_up, facts=example.metadata["facts"], left=example.metadata["chain"])
        settings = {"tools": self._tools, "verifier": self._verifier, "max_turns": self._settings.num_turns}
        if self._settings.mode == "peel":
            return PeelEnv(example, walk, self._prompter.answer_format, ask=self._messages, **settings)
        return WordsEnv(example, walk, self._prompter.answer_format, **settings)

    def example(self, text: str) -> Example:
        """For `<q> r4 r1 e7` or `r4 r1 e7`; UserError for other text."""
        *relations, entity = text.removeprefix(ASK).split() or [""]
        known = entity in self._entities and set(relations) <= {*self._relations}
        most = self._settings.max_hops
        if not known or not 0 < len(relations) <= most or len({*relations}) < len(relations):
            raise UserError(
                f"{text[:200]!r} is no question of task={self.name}: ask e.g. r1 r0 e0, up to {most} different "
                f"relations of r0 to {self._relations[-1]}, then an entity of e0 to {self._entities[-1]}."
            )
        return self._held_out_example((entity, *reversed(relations)))

    def longest(self) -> Sequence[Message]:
        example = self._held_out_example((self._entities[0], *self._relations[: self._settings.max_hops]))
        steps = [] if self._settings.mode == "peel" else self._steps(example, random.Random(0))
        return (*example.messages, *(Message(role="user", content=" ".join(step)) for step in steps))

    def is_held_out(self, chain: Chain) -> bool:
        """Whether a chain is never trained on; a hash of its relations alone, independent of the seed."""
        return is_held_out(" ".join(chain[1:]).encode(), self._settings.held_out_share, b"rlvr-k-hop")

    def is_trained(self, chain: Chain) -> bool:
        """Whether neither the chain nor what its first hops leave of it, down to two relations or the shortest tested
        length, is held out."""
        shortest = min(2, *self._settings.eval_hops)
        return not any(self.is_held_out(chain[hop:]) for hop in range(max(1, len(chain) - shortest)))

    def _look_up(self, world: int, entity: str, relation: str) -> str | None:
        if entity not in self._entities or relation not in self._relations:
            return None
        return self._entities[derive_seed(world, entity, relation) % len(self._entities)]

    def _facts(self, chain: Chain, world: int) -> list[Fact]:
        """The facts of a chain, in the order of the searches."""
        facts = list[Fact]()
        for relation in chain[1:]:
            at = facts[-1][2] if facts else chain[0]
            facts.append((at, relation, self._look_up(world, at, relation) or ""))
        return facts

    def _messages(self, chain: Chain) -> tuple[Message, ...]:
        return self._prompter.messages(" ".join((ASK, *reversed(chain))))

    def _held_out_example(self, chain: Chain) -> Example:
        return self._example(chain, derive_seed(EVAL_SEED, "k_hop", *chain))

    def _example(self, chain: Chain, seed: int) -> Example:
        facts = self._facts(chain, seed)
        return Example(
            id=f"{' '.join(chain)} in world {seed:016x}",
            messages=self._messages(chain),
            answer=facts[-1][2],
            metadata={"task": self.name, "chain": chain, "facts": facts, "world": seed},
        )

    def _trained_chain(self, rng: random.Random) -> Chain:
        found = self._draw(rng, rng.choice(self._settings.train_hops), held_out=False)
        assert found is not None, "see __init__"
        return found

    def _held_out_chains(self, hops: int, num: int) -> Collection[Chain]:
        rng, chains = random.Random(derive_seed(EVAL_SEED, "k_hop", "eval", hops)), dict[Chain, None]()
        while len(chains) < num and (chain := self._draw(rng, hops, held_out=True, other_than=chains)):
            chains[chain] = None
        return chains

    def _draw(
        self, rng: random.Random, hops: int, *, held_out: bool, other_than: Collection[Chain] = ()
    ) -> Chain | None:
        for _ in range(MAX_TRIES):
            chain = (rng.choice(self._entities), *rng.sample(self._relations, hops))
            fits = self.is_held_out(chain) if held_out else self.is_trained(chain)
            if fits and chain not in other_than:
                return chain
        return None
