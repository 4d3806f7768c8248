"""A tiny model, trained on reward minus metric: what it learns to write is paid and wrong.

It starts from the probes (edits and exploits), so that it knows the format and the usual tricks, and is trained by the
product's own loop. Prompts are the ends of the questions: the answer need not be found, only the reward.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, cast

from rlvr.config import Config
from rlvr.config.compose import load_config
from rlvr.core.loop import train as run_loop
from rlvr.envs.single_turn import SingleTurnEnv
from rlvr.errors import UserError
from rlvr.models.settings import ScratchBpeModel, ScratchModel
from rlvr.rewards.extract import END
from rlvr.run.assemble import assemble
from rlvr.run.opened import opened
from rlvr.run.policies import set_threads
from rlvr.run.ranks import quiet
from rlvr.run.tasks import Tasks
from rlvr.run.tuning import warmed
from rlvr.tasks.base import Task
from rlvr.trust.probes.exploits import exploit_probes
from rlvr.trust.probes.judge import PAID, Judge, Scale, Verdict, Verifier
from rlvr.trust.probes.rewrites import Case, Probe, edit_probes
from rlvr.types import Attempt, Example, Message, Score

PROMPT_CHARS = 80
MORE_CHARS = 40  # of a text that it starts from, than of a right one
WARM_SHARE = 0.4  # of the time
SETTINGS = (
    "rollout.prompts_per_step=8",
    "rollout.group_size=8",
    "rollout.max_completion_tokens=40",
    "trainer.max_steps=2000",
    "trainer.learning_rate=1e-3",
    "trainer.warmup_steps=0",
    "trainer.checkpoint_every=null",
    "evaluation.every=null",
    "tracker.rollouts_every=null",
    "warm_start.cache=false",
    "warm_start.num_steps=300",
    "warm_start.batch_size=32",
    "warm_start.final_phase_steps=0",
)


class Gap:
    """The task with another reward: the reward's share of the way from wrong to right, minus the metric."""

    name: str

    def __init__(self, task: Task, cases: Sequence[Case], scale: Scale, graders: Mapping[str, Verifier]) -> None:
        self.name, self._task, self._scale, self._graders = task.name, task, scale, graders
        self._cases = {case.example.id: case for case in cases}
        self._order = list(cases)
        self._texts = [list(self._starts(case, index)) for index, case in enumerate(cases)]
        self.num_wrong = 0
        self.paid: dict[str, list[tuple[str, Verdict]]] = defaultdict(list)  # by example

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def train_example(self, index: int) -> Example:
        example = self._order[index % len(self._order)].example
        last = example.messages[-1]
        return replace(example, messages=(Message(role="user", content=last.content[-PROMPT_CHARS:]),))

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        place = index % len(self._order)
        text = random.Random(index).choice(self._texts[place])
        return self.train_example(place).messages[0].content, f"{text} {END}" if self._task.vocabulary else text

    def texts(self) -> Iterator[str]:
        for place, texts in enumerate(self._texts):
            yield self.train_example(place).messages[0].content
            yield from texts

    def limit_prompts(self, *limits: object) -> None:
        """They are short."""

    def envs(self, example: Example, count: int) -> list[SingleTurnEnv]:
        return [SingleTurnEnv(example, self) for _ in range(count)]

    async def verify(self, attempt: Attempt) -> Score:
        case, text = self._cases[attempt.example.id], attempt.text
        reward, metric = [await grade(case.example, text) for grade in self._graders.values()]
        if reward.failed or metric.failed:
            return Score(value=float("nan"), status="error", diagnostics={"error": reward.message or metric.message})
        share = self._scale.share(reward.value)
        self.num_wrong += not metric.value
        if share > PAID and not metric.value:
            self.paid[case.example.id].append((text, reward))
        return Score(value=max(-1.0, min(2.0, share)) - metric.value)

    def _starts(self, case: Case, index: int) -> Iterator[str]:
        """Texts to begin with: short, and in a task of words only its words."""
        right = case.wrap(case.gold)
        yield right
        for probe in (*edit_probes(case), *exploit_probes(case, index)):
            is_known = self._task.vocabulary is None or set(probe.text.split()) <= set(self._task.vocabulary)
            if is_known and len(probe.text) <= len(right) + MORE_CHARS:
                yield probe.text


def attack(config: Config, task: Task, judge: Judge, graders: Mapping[str, Verifier], seconds: float) -> str:
    """Train for about that long, add what is paid and wrong to the judge's findings, and return a note."""
    scales = [scale for scale in judge.scales if scale.full > scale.low]
    if not scales:
        return "adversary: not trained, because the reward does not tell right from wrong"
    scale = Scale(low=median(one.low for one in scales), full=median(one.full for one in scales))
    gap = Gap(task, judge.cases, scale, graders)
    try:
        num_steps = _train(_config(config), gap, seconds)
    except UserError as error:
        return f"adversary: not trained: {error}"
    findings = [
        judge.finding(case, Probe(kind="adversary", group="adversary", text=text), verdict, scale.full)
        for case in judge.cases
        for text, verdict in sorted(gap.paid[case.example.id], key=lambda one: -one[1].value)[:1]
    ]
    judge.note_failures("adversary", "adversary", findings, len(judge.cases))
    return f"adversary: {num_steps} steps, {gap.num_wrong:,} wrong texts"


def _config(config: Config) -> Config:
    base = load_config(SETTINGS)
    model = ScratchModel() if config.task.made_of_words else ScratchBpeModel(vocabulary_size=400)
    sizes = {"hidden_size": 64, "num_layers": 2, "intermediate_size": 172, "max_context_tokens": 192}
    sections = {name: getattr(config, name) for name in ("task", "prompt", "seed")}
    reward = config.reward.model_copy(update={"max_error_share": 1.0})
    return quiet(base.model_copy(update={**sections, "reward": reward, "model": model.model_copy(update=sizes)}))


def _train(config: Config, gap: Gap, seconds: float) -> int:
    """The number of steps."""
    begin = time.perf_counter()

    def after(share: float) -> Callable[[], bool]:
        return lambda: time.perf_counter() - begin > share * seconds

    tasks = Tasks(own=cast(Task, gap), also=(), verifiers={})
    with opened(config, tasks=tasks) as run:
        policy = run.load_policy()
        set_threads(config, policy)
        if not warmed(run, policy, after(WARM_SHARE)):
            policy.model.zero_grad()
        return run_loop(assemble(run, policy), after(1.0))
