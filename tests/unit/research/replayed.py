"""A step to replay without a run: four updates of a policy of a few thousand weights, and the last by hand.

The update is that of GRPO with a KL in the loss, in float64 and plain torch: no code of ours but the seed of the random
order of minibatches.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlvr.core.batch import to_batch
from rlvr.core.rollout import SampledGroups
from rlvr.core.trainer import Trainer
from rlvr.research.repeat import Repeated, TrainerState
from rlvr.seeding import derive_seed
from rlvr.types import Episode, Group, Score, StopReason
from tests.unit.core.fakes import completion, episode, group
from tests.unit.core.tiny import VOCABULARY, plain_logprobs, tiny_policy, tiny_trainer

STEP, WARMUP, MAX_STEPS, PEAK, FINAL = 4, 2, 9, 3e-3, 0.1
CLIP, KL, DECAY, MAX_NORM, BETAS = 0.2, 0.3, 0.02, 0.4, (0.9, 0.95)
SETTINGS = (
    *("algorithm.num_minibatches=2", "algorithm.num_epochs=2", f"algorithm.kl_coef={KL}"),
    *(f"trainer.learning_rate={PEAK}", "trainer.schedule=cosine", f"trainer.warmup_steps={WARMUP}"),
    *(f"trainer.max_steps={MAX_STEPS}", f"trainer.final_learning_rate_share={FINAL}"),
    *(f"trainer.weight_decay={DECAY}", f"trainer.max_grad_norm={MAX_NORM}"),
)
"""A schedule, several minibatches and epochs, a clip that acts, weight decay."""
RATE = PEAK * (FINAL + (1 - FINAL) * (1 + math.cos(math.pi * (STEP - 1 - WARMUP) / (MAX_STEPS - 1 - WARMUP))) / 2)

Weights = Mapping[str, Tensor]


def sampled(generator: torch.Generator, trainer: Trainer) -> list[Group]:
    """Three groups of four: tool tokens inside, an episode of two rows, one that failed, one cut off."""

    def ids(low: int, high: int) -> tuple[int, ...]:
        length = int(torch.randint(low, high, (1,), generator=generator))
        return tuple(torch.randint(3, len(VOCABULARY), (length,), generator=generator).tolist())

    def one(number: int, prompt: tuple[int, ...]) -> Episode:
        first, reward = ids(3, 7), float(torch.randint(2, (1,), generator=generator))
        turns = [(prompt, first)]
        if number % 4 == 1:  # a tool's reply, and another turn
            turns.append(((*prompt, *first, *ids(2, 4)), ids(2, 5)))
        if number == 6:  # a template rewrote the history
            turns.append((ids(3, 5), ids(3, 6)))
        stop = StopReason.LENGTH if number == 7 else StopReason.STOP
        score = (
            Score(value=math.nan, status="error")
            if number == 10
            else Score(value=reward + (5.0 if number == 6 else number % 4 / 8))
        )
        return episode(*((before, completion(*said, stop=stop)) for before, said in turns), score=score)

    prompts = [ids(2, 5) for _ in range(3)]
    return [group(*(one(4 * place + number, prompt) for number in range(4))) for place, prompt in enumerate(prompts)]


def with_logprobs(groups: Sequence[Group], trainer: Trainer) -> list[Group]:
    """As the policy would have sampled them."""
    batch = to_batch(groups)
    found = plain_logprobs(trainer.policy, batch)  # pyright: ignore[reportArgumentType]
    rows = iter([line[mask].tolist() for line, mask in zip(found, batch.loss_mask, strict=True)])
    left: list[float] = []

    def turn(one: Any) -> Any:
        nonlocal left
        left = left or next(rows)
        length = len(one.completion.token_ids)
        values, left = tuple(left[:length]), left[length:]
        return replace(one, completion=replace(one.completion, behavior_logprobs=values, sampling_logprobs=values))

    return [
        replace(one, episodes=tuple(replace(e, turns=tuple(map(turn, e.turns))) for e in one.episodes))
        for one in groups
    ]


def length(weights: Weights) -> float:
    return math.sqrt(sum(float(one.square().sum()) for one in weights.values()))


@dataclass(frozen=True)
class Case:
    made: Repeated
    metrics: Mapping[str, float]  # of the step, as the loop logged them
    start: nn.Module  # the reference
    before: nn.Module
    moments: Mapping[str, Mapping[str, Tensor]]  # by name of the weight


def made_step(*overrides: str) -> Case:
    """The fourth step, made as the loop makes it."""
    policy = tiny_policy()
    start = copy.deepcopy(policy.model)
    trainer = tiny_trainer(policy, *SETTINGS, *overrides)
    generator = torch.Generator().manual_seed(3)
    for step in range(STEP - 1):
        groups = with_logprobs(sampled(generator, trainer), trainer)
        trainer.update(trainer.objective.advantages(trainer.score(to_batch(groups), groups)), step)
    groups = with_logprobs(sampled(generator, trainer), trainer)
    before = copy.deepcopy(policy.model)
    moments = {name: copy.deepcopy(dict(trainer.optimizer.state[p])) for name, p in policy.model.named_parameters()}
    run = cast("Any", SimpleNamespace(trainer=trainer, objective=trainer.objective))
    made = Repeated(step=STEP, opened=cast("Any", None), run=run, on_progress=lambda done, total: None)
    made.before = TrainerState.of(trainer)
    batch = trainer.objective.advantages(trainer.score(to_batch(groups), groups))
    metrics, batch = trainer.update(batch, STEP - 1)
    made.sampled = SampledGroups(groups=tuple(groups), num_refilled=0, num_dropped=0)
    made.batch, made.metrics = batch, metrics
    return Case(made, metrics, start, before, moments)


# --------------------------------------------------------------------------------------------------------- by hand


@dataclass
class Row:
    ids: Tensor
    sampled: list[int]  # places of sampled tokens
    trained: list[int]  # those in the loss
    episode: int
    group: int
    reward: float
    valid: bool


@dataclass
class ByHand:
    """The update; `model` is the policy after it, float64."""

    case: Case
    single: bool = False  # one epoch and minibatch
    rows: list[Row] = field(init=False)
    gradients: list[Weights] = field(default_factory=list)  # of each optimizer step, before the clip
    weights: list[Weights] = field(default_factory=list)  # before each
    model: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        self.rows = list(self._rows())
        self.model, self.before, self.reference = (
            copy.deepcopy(model).double() for model in (self.case.before, self.case.before, self.case.start)
        )
        with torch.no_grad():
            self.old = [self.logprobs(self.before, row, row.sampled) for row in self.rows]

    def _rows(self) -> Iterator[Row]:
        number = 0
        for place, one in enumerate(self.case.made.sampled.groups):
            for e in one.episodes:
                spans: list[tuple[list[int], list[int]]] = []
                for turn in e.turns:
                    prompt, said = list(turn.prompt_ids), list(turn.completion.token_ids)
                    if spans and prompt[: len(spans[-1][0])] == spans[-1][0]:
                        ids, places = spans.pop()
                    else:
                        ids, places = [], []
                    spans.append((prompt + said, places + list(range(len(prompt), len(prompt + said)))))
                valid = e.score.status != "error"
                for ids, places in spans:
                    reward = e.score.value if valid else 0.0
                    yield Row(torch.tensor(ids), places, list(places), number, place, reward, valid)
                number += 1

    def logprobs(self, model: nn.Module, row: Row, places: Sequence[int]) -> Tensor:
        logits = model(input_ids=row.ids[None], use_cache=False).logits[0].log_softmax(-1)
        return torch.stack([logits[place - 1, row.ids[place]] for place in places])

    def advantages(self) -> list[float]:
        """Of each row: the reward minus the mean of its group's valid episodes, over their deviation."""
        found = []
        for row in self.rows:
            others = {one.episode: one.reward for one in self.rows if one.group == row.group and one.valid}
            values = torch.tensor(list(others.values()), dtype=torch.float64)
            std = values.std() if len(values) > 1 else torch.tensor(0.0)
            found.append(float((row.reward - values.mean()) / (std + 1e-4)) if row.valid and len(values) else 0.0)
        return found

    def order(self) -> list[list[int]]:
        """Rows of each minibatch: two in each of two epochs, whole episodes; or all rows once."""
        if self.single:
            return [list(range(len(self.rows)))]
        names, found = sorted({row.episode for row in self.rows}), []
        for epoch in range(2):
            generator = torch.Generator().manual_seed(derive_seed(0, "minibatches", STEP - 1, epoch))
            drawn = torch.randperm(len(names), generator=generator).tolist()
            half = math.ceil(len(names) / 2)
            for part in (drawn[:half], drawn[half:]):
                found.append([n for n, row in enumerate(self.rows) if row.episode in {names[one] for one in part}])
        return found

    def loss(self, model: nn.Module, chosen: Sequence[int], advantages: Sequence[float]) -> Tensor:
        """Mean over the trained tokens of some rows: clipped ratio, and k3 to the start."""
        total, count = torch.zeros((), dtype=torch.float64), 0
        for number in chosen:
            row = self.rows[number]
            if not row.valid or not row.trained:
                continue
            keep = [row.sampled.index(place) for place in row.trained]
            now = self.logprobs(model, row, row.trained)
            ratio, advantage = (now - self.old[number][keep]).exp(), advantages[number]
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            with torch.no_grad():
                to_start = self.logprobs(self.reference, row, row.trained)
            gap = now - to_start
            total = total + (-surrogate + KL * ((-gap).exp() - 1 + gap)).sum()
            count += len(row.trained)
        return total / max(count, 1)

    def grads(self, model: nn.Module, chosen: Sequence[int], advantages: Sequence[float]) -> Weights:
        loss = self.loss(model, chosen, advantages)
        found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        pairs = zip(model.named_parameters(), found, strict=True)
        return {name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs}

    def run(self) -> dict[str, float]:
        """Make the update; metrics by rlvr's names."""
        advantages = self.advantages()
        for chosen in self.order():
            self.weights.append({name: p.detach().clone() for name, p in self.model.named_parameters()})
            self.gradients.append(self.grads(self.model, chosen, advantages))
            self.model.load_state_dict(self.updated(self.gradients), strict=False)
        norms = [length(one) for one in self.gradients]
        trained = sum(len(row.trained) for row in self.rows if row.valid)
        return {
            "policy/learning_rate": RATE,
            "policy/grad_norm": sum(norms) / len(norms),
            "policy/updates": float(len(norms)),
            "policy/trained_tokens": 2.0 * trained,  # two epochs
        }

    def updated(self, gradients: Sequence[Weights]) -> Weights:
        """Weights after AdamW's steps with these gradients, clipped, from the weights before the update."""
        weights, found = self.before.state_dict(), {}
        for name, moments in self.case.moments.items():
            weight, mean, square = weights[name], moments["exp_avg"].double(), moments["exp_avg_sq"].double()
            for count, one in enumerate(gradients, start=int(moments["step"]) + 1):
                g = one[name] * min(1.0, MAX_NORM / (length(one) + 1e-6))
                mean = BETAS[0] * mean + (1 - BETAS[0]) * g
                square = BETAS[1] * square + (1 - BETAS[1]) * g * g
                root = (square / (1 - BETAS[1] ** count)).sqrt() + 1e-8
                weight = weight * (1 - RATE * DECAY * (weight.dim() >= 2))
                weight = weight - RATE * mean / (1 - BETAS[0] ** count) / root
            found[name] = weight
        return found

    def change(self, rows: Sequence[int]) -> float:
        """Mean change of the logprobs of these rows' sampled tokens, as a probability."""
        with torch.no_grad():
            now = torch.cat([self.logprobs(self.model, self.rows[n], self.rows[n].sampled) for n in rows])
        return math.expm1(float((now - torch.cat([self.old[n] for n in rows])).mean()))
