"""The parts of a run as the checks use them, and what a check says."""

import asyncio
import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr.algorithms.objective import Objective
from rlvr.chat.coding import Coder
from rlvr.chat.rendering import Chat
from rlvr.config import Config
from rlvr.core.batch import to_batch
from rlvr.core.engine.base import Engine, OnToken
from rlvr.core.env import Reply
from rlvr.core.noise import ALLOWED_16_BIT, ALLOWED_32_BIT, SEEDS, embeddings_moved
from rlvr.core.packing import Layout, Packing
from rlvr.core.settings import cpu_tokens
from rlvr.core.trainer import LocalTeacher, RemoteTeacher, Trainer
from rlvr.engines.settings import LocalEngineSettings
from rlvr.errors import UserError
from rlvr.models.devices import half_dtype
from rlvr.models.layout import choose_layout
from rlvr.models.loading import value_head
from rlvr.models.policy import HubPolicy
from rlvr.records.checks import Check
from rlvr.run.assemble import make_trainer
from rlvr.run.opened import OpenRun
from rlvr.run.policies import open_engine
from rlvr.run.tasks import Tasks, context_tokens, make_chat
from rlvr.run.teachers import teachers
from rlvr.tasks.base import Said, Task
from rlvr.tasks.gold import all_gold_branches
from rlvr.types import (
    Completion,
    Episode,
    Example,
    Group,
    Message,
    SamplingParams,
    Score,
    StopReason,
    TokenBatch,
    Turn,
    TurnText,
)

SLOTS = 3  # of the engine: fewer than completions, so that finished ones are replaced
LENGTHS = (9, 3, 12, 6)  # of the completions of a group, in tokens
GROUPS = 2


def verdict(wrong: bool, bad: str, good: str, remedy: str, **evidence: Any) -> Check:
    """A failed check that says `bad` and its remedy if something is `wrong`, else one that says `good`."""
    if wrong:
        return Check(status="fail", says=bad, remedy=remedy, evidence=evidence)
    return Check(status="ok", says=good, evidence=evidence)


def first_fault(faults: Iterable[tuple[bool, str, str]], good: str, **evidence: Any) -> Check:
    """The verdict of several questions, each whether something is wrong, what, and its remedy: the first one counts."""
    says, remedy = next(((says, remedy) for wrong, says, remedy in faults if wrong), ("", ""))
    return verdict(bool(says), says, good, remedy, **evidence)


def skip(why: str, **evidence: Any) -> Check:
    return Check(status="skipped", says=why, evidence=evidence)


class Scripted:
    """An engine that gives prepared completions in turn."""

    policy_version, max_context_tokens = 0, sys.maxsize

    def __init__(self, completions: Sequence[Sequence[int]]) -> None:
        self._left = [tuple(ids) for ids in completions]

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        return finished(self._left.pop(0))

    def release(self, session: Hashable) -> None: ...

    def load_weights(self, version: int) -> None: ...

    def close(self) -> None: ...


def finished(ids: tuple[int, ...]) -> Completion:
    zeros = (0.0,) * len(ids)
    return Completion(
        token_ids=ids,
        behavior_logprobs=zeros,
        sampling_logprobs=zeros,
        stop_reason=StopReason.STOP,
        policy_version=0,
    )


class Interview:
    """Asks the same three times, whatever is answered."""

    max_turns: int | None = 3
    tools = ()

    def __init__(self, messages: tuple[Message, ...]) -> None:
        self._messages = messages

    async def start(self) -> tuple[Message, ...]:
        return self._messages

    async def step(self, said: Message) -> Reply:
        return Reply(messages=(Message(role="user", content=self._messages[-1].content),), done=False)

    async def score(self, turns: Sequence[TurnText]) -> Score:
        return Score(value=1.0)


class Patient:
    """The user's model with the run's chat, engine and trainer, each made when first used.

    They compute in float32 here, so that an error of the mathematics is not taken for rounding; `as_run` has the run's
    own precision and engine.
    """

    def __init__(self, run: OpenRun, policy: HubPolicy, *, exact: bool = True) -> None:
        self.as_run, config = self if not exact else Patient(run, policy, exact=False), run.config
        trainer: dict[str, Any] = {"warmup_steps": 0, "strategy": "single", "world_size": None}
        sections: dict[str, Any] = {}
        if exact:
            trainer |= {"precision": "fp32"}
            sections["engine"] = LocalEngineSettings(max_batch_size=SLOTS, dtype="float32")
            sections["rollout"] = config.rollout.model_copy(update={"max_staleness": 0})
        sections["trainer"] = config.trainer.model_copy(update=trainer)
        self.run, self.policy = replace(run, config=config.model_copy(update=sections)), policy

    @property
    def config(self) -> Config:
        return self.run.config

    @property
    def tasks(self) -> Tasks:
        return self.run.tasks

    @property
    def root(self) -> Path:
        return self.run.folder.root

    @property
    def model(self) -> Any:
        return self.policy.model

    @property
    def task(self) -> Task:
        return self.tasks.own.eval_sets()[0]

    @property
    def several_turns(self) -> bool:
        return self.config.task.num_turns > 1

    @cached_property
    def chat(self) -> Chat:
        return make_chat(self.config, self.policy, self.tasks.own)

    @cached_property
    def coder(self) -> Coder:
        return Coder(self.policy.tokenizer)

    def reads(self, text: str) -> bool:
        """Whether the tokenizer can encode the text; one of words knows no others."""
        try:
            return bool(self.coder.encode(text)) or not text
        except UserError:
            return False

    @cached_property
    def layout(self) -> Layout:
        return choose_layout(self.policy)

    @cached_property
    def engine(self) -> Engine:
        return open_engine(self.config, self.policy, self.root)

    @cached_property
    def teachers(self) -> dict[str, LocalTeacher | RemoteTeacher]:
        tokens = cpu_tokens(self.config.trainer.microbatch_tokens)
        return teachers(self.config, self.policy, tokens, note=lambda text: None)

    @cached_property
    def noise(self) -> float:
        """How far rounding alone moves a logprob of `batch` at most."""
        return self.noise_in(self.batch)

    def noise_in(self, batch: TokenBatch) -> float:
        """How far rounding alone moves a logprob of this batch at most: see `rlvr.core.noise`.

        Of the precision in which the model or a server computes.
        """
        trainer, half = self.trainer(layout="rows"), half_dtype(self.config.trainer.precision, self.model)
        dtype = half or (self.policy.dtype if self.config.engine.in_process else torch.bfloat16)

        def scored() -> Tensor:
            with torch.random.fork_rng(devices=[] if self.model.device.type == "cpu" else None):
                torch.manual_seed(0)  # what a model draws, as in dropout, is no rounding
                return logprobs(trainer, batch)

        plain = scored()
        largest = [float(plain[batch.loss_mask].abs().max()) * torch.finfo(torch.float32).eps]
        for seed in range(SEEDS):
            with embeddings_moved(self.model, dtype, seed):
                largest.append(difference(batch, plain, scored())[0])
        return max(filter(isfinite, largest))  # a moved pass that overflows says nothing of rounding

    @property
    def tolerance(self) -> float:
        """Largest difference that rounding explains between two ways to compute a logprob of `batch`."""
        return self.noise * self._times

    def tolerance_in(self, batch: TokenBatch) -> float:
        """The same for another batch: longer rows round more."""
        return self.noise_in(batch) * self._times

    @property
    def _times(self) -> float:
        exact = self.policy.dtype == torch.float32 and half_dtype(self.config.trainer.precision, self.model) is None
        return ALLOWED_32_BIT if exact and self.config.engine.in_process else ALLOWED_16_BIT

    def trainer(
        self, temperature: float | None = None, layout: Layout | None = None, *, epochs: int = 2, **settings: Any
    ) -> Trainer:
        """The run's trainer with other `settings`. With two passes over a batch it scores the old policy, and its loss
        is a function of the weights."""
        changed, policy = self.config.trainer.model_copy(update=settings), self.policy
        run = replace(self.run, config=self.config.model_copy(update={"trainer": changed}))
        algorithm = self.config.algorithm.model_copy(update={"num_epochs": epochs, "num_minibatches": 1})
        if "values" in algorithm.columns():
            critic = value_head(self.model.config.get_text_config().hidden_size).to(self.model.device)
            policy = replace(policy, value_head=critic)
        objective = Objective(
            algorithm=algorithm,
            max_completion_tokens=self.config.rollout.max_completion_tokens,
            temperature=self.config.rollout.temperature if temperature is None else temperature,
        )
        packing = Packing(layout=layout or self.layout, max_tokens=cpu_tokens(changed.microbatch_tokens))
        answers = partial(all_gold_branches, self.task, self.chat)
        return make_trainer(run, policy, objective, packing, self.teachers, answers)

    def prompt(self, index: int) -> tuple[Example, tuple[int, ...]]:
        """A training example, and the ids of its first prompt."""
        example = self.task.train_example(index)
        env = self.task.env(example)
        return example, self.chat.encode_prompt(asyncio.run(env.start()), env.tools)

    def params(self, index: int, temperature: float, max_tokens: int, **cut: Any) -> SamplingParams:
        """`cut`: top_p, top_k, min_p."""
        seed = self.config.seed + index
        return SamplingParams(
            max_tokens=max_tokens, stop_ids=self.chat.stop_ids, seed=seed, temperature=temperature, **cut
        )

    def sample(self, temperature: float = 1.0, **cut: Any) -> tuple[Group, ...]:
        """Completions of different lengths for two prompts, on fewer slots than completions; the first is rewarded."""
        prompts = [self.prompt(index) for index in range(GROUPS)]

        async def sampled() -> list[Completion]:
            self.engine.load_weights(0)  # weights may have changed since the last call
            asked = [
                self.engine.generate(ids, self.params(4 * n + k, temperature, length, **cut))
                for n, (_, ids) in enumerate(prompts)
                for k, length in enumerate(LENGTHS)
            ]
            return list(await asyncio.gather(*asked))

        completions, size = asyncio.run(sampled()), len(LENGTHS)
        return tuple(
            Group(
                example=example,
                episodes=tuple(
                    as_episode(ids, one, index, self.config.reward.parts)
                    for index, one in enumerate(completions[n * size :][:size])
                ),
            )
            for n, (example, ids) in enumerate(prompts)
        )

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """A sample at the run's temperature."""
        return self.sample(self.config.rollout.temperature)

    @cached_property
    def batch(self) -> TokenBatch:
        """The rows of `groups`."""
        return to_batch(self.groups)

    @cached_property
    def scored(self) -> Tensor:
        """The trainer's logprobs of `batch`, of each row alone."""
        return logprobs(self.trainer(layout="rows"), self.batch)

    def judged(self, trainer: Trainer) -> TokenBatch:
        """`batch` with the algorithm's columns and advantages."""
        return trainer.objective.advantages(trainer.score(self.batch, self.groups))

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Gives the weights back as they were before the block, without gradients."""
        before = [(parameter, parameter.detach().clone()) for parameter in self.policy.parameters()]
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in before:
                    parameter.copy_(value)
                    parameter.grad = None


def as_episode(prompt_ids: tuple[int, ...], completion: Completion, index: int, parts: Iterable[str] = ()) -> Episode:
    """The first of a group earns 1, with each part of the reward."""
    value = float(index == 0)
    return Episode(
        example_id="",
        sample_index=index,
        seed=0,
        turns=(Turn(prompt_ids=prompt_ids, completion=completion),),
        score=Score(value=value, parts=dict.fromkeys(parts, value)),
        stop_reason=StopReason.STOP,  # cut on purpose: not to be left out of the loss
    )


def logprobs(trainer: Trainer, batch: TokenBatch) -> Tensor:
    """[B, T] of the sampled tokens, whatever the algorithm's own columns are."""
    return trainer.predict(trainer.policy, batch).logprobs


def difference(batch: TokenBatch, first: Tensor, second: Tensor) -> tuple[float, dict[str, Any]]:
    """The largest difference between two logprobs of a sampled token, and where it is."""
    gaps = torch.where(batch.loss_mask, (first - second).abs().nan_to_num(torch.inf), 0.0)
    row, column = divmod(int(gaps.argmax()), gaps.shape[1])
    numbers = [round(float(x[row, column]), 6) for x in (first, second)]
    return float(gaps.max()), {"token_id": int(batch.ids[row, column]), "position": column, "logprobs": numbers}


@torch.no_grad()
def next_token(patient: Patient, ids: Sequence[int]) -> Tensor:
    """[V] probabilities after these ids, by the model's own forward pass."""
    given = torch.tensor([ids[-context_tokens(patient.policy) :]], device=patient.model.device)
    return patient.model(input_ids=given, use_cache=False).logits[0, -1].float().softmax(-1).cpu()


def around(first: str, second: str, one: str = "appended", other: str = "rendered") -> dict[str, str]:
    """Both texts around their first difference."""
    pairs = zip(first, second, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
    return {one: first[max(0, place - 40) : place + 40], other: second[max(0, place - 40) : place + 40]}


def solved(patient: Patient, num: int) -> list[tuple[Example, Sequence[Said]]]:
    """Up to `num` training examples, and the completions of their right episodes."""
    return [(solution.example, solution.turns) for solution in patient.task.solutions(num)]
