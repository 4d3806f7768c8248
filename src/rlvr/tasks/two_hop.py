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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from rlvr.core.env import Env, Reply
from rlvr.data.problems import is_held_out
from rlvr.envs.tool_env import ToolEnv
from rlvr.envs.tools import make_tool
from rlvr.errors import ConfigError, UserError
from rlvr.registry import register
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.text import ExactMetric
from rlvr.rewards.trace import Trace
from rlvr.run_view import RunView
from rlvr.seeding import EVAL_SEED, derive_seed
from rlvr.settings import PositiveInt, setting
from rlvr.tasks.base import CountTokens, Task, TaskContext, Worked, text_of
from rlvr.tasks.demonstrations import Demonstration, calling
from rlvr.tasks.settings import HeldOutShare, TaskSettings
from rlvr.types import Attempt, Example, GradedAnswer, Message, TraceStep, TurnText

END = "<eoe>"
CALL, CALL_END, REPLY, REPLY_END = "<call>", "</call>", "<tool>", "</tool>"
ASK = "<q> where"
WORKS_AT, LOCATED_IN, NOTHING, STOP = "works-at", "located-in", "nothing", "."
MAX_TRIES = 20_000  # draws before giving up on a kind of chain
SEARCH_SHARE = 4 / 7  # share of unworked demonstrations that search once, then guess; the others guess at once

WORDS_OF_A_TURN = 4  # <call> search p3 </call>
METRIC = ExactMetric()

Chain = tuple[str, str, str]
"""A person, their organization, and its city: `("p3", "o7", "c4")`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    facts: Mapping[str, str]  # {"p3": "p3 works-at o7", "o7": "o7 located-in c4", ...}
    chain: Chain
    trace: Trace = field(default_factory=Trace)


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


class WordsEnv(ToolEnv):
    """Replies between marks, in words of the vocabulary.

    Replies `nothing .` to invalid calls: the vocabulary has no words for error messages.
    """

    def __init__(self, example: Example, walk: Walk, form: AnswerFormat, **settings: Any) -> None:
        super().__init__(example, state=walk, **settings)
        self._walk, self._format = walk, form

    async def _ending(self, attempt: Attempt) -> tuple[TraceStep, ...]:
        grade = await METRIC.grade(replace(attempt, format=self._format))
        if grade.answer is None:
            return ()
        return self._walk.trace.ending((), grade.answer, grade.correct)

    async def step(self, said: Message) -> Reply:
        reply = await super().step(said)
        facts = {f"{fact} {STOP}" for fact in self._walk.facts.values()}
        messages = []
        for message in reply.messages:
            fact = message.content if message.content in facts else f"{NOTHING} {STOP}"
            messages.append(replace(message, content=f"{REPLY} {fact} {REPLY_END}"))
        return replace(reply, messages=tuple(messages))


@register("task", "two_hop")
class TwoHop(TaskSettings):
    """A new world in each episode: who works where, and in which city; a tool reveals one fact at a time."""

    prompt: ClassVar[str] = "two_hop"
    reward = "two_hop"
    is_generated: ClassVar[bool] = True
    made_of_words: ClassVar[bool] = True
    has_tools: ClassVar[bool] = True
    shows_calls: ClassVar[bool] = False
    stop_words: ClassVar[tuple[str, ...]] = (CALL_END, END)
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

    def check_run(self, run: RunView) -> None:
        super().check_run(run)
        prompt, most = run.prompt, run.rollout.max_completion_tokens
        for key, value, fits, wanted in (
            ("rollout.max_completion_tokens", most, most >= WORDS_OF_A_TURN, "4 or more: a call has 4 words"),
            ("prompt.answer_in", prompt.answer_in, prompt.answer_in == "solution", "solution: `<ans> c4 </ans>`"),
            ("prompt.tool_format", prompt.tool_format, prompt.tool_format == "words", "words, as it shows calls"),
        ):
            if not fits:
                raise ConfigError(f"{key}={value}: task=two_hop needs {wanted}.")

    def open(self, context: TaskContext) -> TwoHopTask:
        return TwoHopTask(self, context)


class TwoHopTask(Task):
    stop_words = TwoHop.stop_words

    def __init__(self, settings: TwoHop, context: TaskContext) -> None:
        self.name, self._settings, self._seed = context.name, settings, context.seed
        self._prompter, self._verifier = context.prompter, context.verifier
        self._persons, self._organizations, self._cities = (
            tuple(f"{letter}{number}" for number in range(count))
            for letter, count in (
                ("p", settings.num_persons),
                ("o", settings.num_organizations),
                ("c", settings.num_cities),
            )
        )
        self._tool = make_tool(search, timeout_s=1.0, inline=True)  # a dictionary lookup
        marks = self._prompter.answer_format.required_markers()
        self._answer_start, self._answer_end = marks.solution_start, marks.solution_end
        self.vocabulary = (
            *("<pad>", "<boe>", END, *ASK.split(), CALL, CALL_END, REPLY, REPLY_END, self._tool.name),
            *(WORKS_AT, LOCATED_IN, NOTHING, STOP, self._answer_start, self._answer_end),
            *(*self._persons, *self._organizations, *self._cities),
        )
        for mark in (self._answer_start, self._answer_end):
            if self.vocabulary.count(mark) > 1 or mark.split()[1:]:
                raise ConfigError(f"the marker {mark!r} is not one word of its own: choose prompt.markers=words.")
        self._trained_chain(random.Random(0))
        if not self.eval_examples(1):
            raise self._impossible("evaluate on")

    def train_example(self, index: int) -> Example:
        seed = derive_seed(self._seed, "two_hop", "train", index)
        return self._example(self._trained_chain(random.Random(seed)), seed)

    def worked(self, index: int) -> Worked:
        return self.train_example(index), lambda answer: f"{self._answer_start} {answer} {self._answer_end}"

    def demonstrations(self, num: int) -> Iterator[Demonstration]:
        """Both searches, then the city."""
        for example in map(self.train_example, range(num)):
            calls = [{"name": self._tool.name, "arguments": {"name": name}} for name in example.metadata["chain"][:2]]
            answer = f"{self._answer_start} {example.answer} {self._answer_end} {END}"
            said = [*(calling(call, number) for number, call in enumerate(calls)), answer]
            yield Demonstration(example=example, env=self.env(example), said=said)

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
        return (*parts, f"{self._answer_start} {city} {self._answer_end} {END}")

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

    async def grade(self, example: Example, turns: Sequence[TurnText]) -> GradedAnswer:
        """Whether exactly the city is between the markers; independent of the rewards' code."""
        return await METRIC.grade(replace(Attempt.of(example, turns), format=self._prompter.answer_format))

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

    def limit_prompts(self, count_tokens: CountTokens, max_tokens: int) -> None:
        """Excludes nothing: ConfigError if an episode of max_turns does not fit."""
        name = self._persons[0]
        turn = f"{CALL} {self._tool.name} {name} {CALL_END} {REPLY} {name} {WORKS_AT} {name} {STOP} {REPLY_END}"
        num_searches = self._settings.max_turns - 1
        needed = count_tokens((*self._messages(name), *[Message(role="user", content=turn)] * num_searches))
        if needed > max_tokens:
            raise ConfigError(
                f"task.max_turns={self._settings.max_turns}: prompt, searches and replies have {needed} tokens, but "
                f"{max_tokens} are left for them; lower it, or raise model.max_context_tokens."
            )

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
