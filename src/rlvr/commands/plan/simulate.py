"""Training steps on any number of GPUs and servers in virtual time, event by event.

An event is the end of the next completion of an engine, or of the trainer's work on a batch. Between two events the
running completions of an engine are the same, so the time of its steps is known in closed form: a batch costs a few
operations a completion, not a token. The schedule is that of `core.loop` and `core.rollout`: batches are issued at most
`max_staleness` steps ahead and trained on in order; completions of the earlier step start first; new weights reach
completions in flight, whose keys and values are computed again.
"""

import math
import random
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

STAGES = ("generation", "scoring", "update", "sync", "other")


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of work on one device."""

    step: float = 0.0  # an engine step,
    row: float = 0.0  # and for each of its completions,
    context: float = 0.0  # and for each token that these have behind them
    admission: float = 0.0  # starting completions,
    prompt_token: float = 0.0  # and for each token of their different prompts
    turn: float = 0.0  # chat, environment and reward of a completion, in the engine's thread
    scoring: float = 0.0
    scored_token: float = 0.0
    update: float = 0.0  # an optimizer step,
    trained_token: float = 0.0  # and for each token of each epoch
    exchange: float = 0.0  # gradients between several GPUs, for each optimizer step
    sync: float = 0.0  # new weights for the engines
    other: float = 0.0  # advantages, metrics, files: the whole batch, by every process,
    episode: float = 0.0  # and for each episode


@dataclass(frozen=True, kw_only=True)
class Workload:
    prompts: int  # per step
    group_size: int
    episodes: tuple[tuple[int, ...], ...]  # tokens of the turns of episodes to draw from: ((17,), (30,), ...)
    prompt_tokens: float = 0.0
    reply_tokens: float = 0.0  # between two turns
    epochs: int = 1
    minibatches: int = 1
    trained_share: float = 1.0  # of the rows: others cannot move the gradient
    max_staleness: int = 0


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`Cluster(costs=..., slots=256, gpus=8, servers=4)`: eight GPUs that train and four others that sample."""

    costs: Costs
    slots: int  # completions that an engine decodes at a time
    gpus: int = 1
    servers: int = 0  # 0: each GPU samples its share of the prompts, too
    beside: float = 0.5  # speed of training and of sampling on one GPU while both go on
    stragglers: float = 0.0  # standard deviation of the logarithm of a device's speed, drawn anew for each step


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Mean seconds of a step, as `time/..._share` of the metrics divides them."""

    generation: float  # waiting for rollouts
    scoring: float
    update: float
    sync: float
    other: float

    @property
    def step(self) -> float:
        return sum(getattr(self, name) for name in STAGES)


def simulate(cluster: Cluster, workload: Workload, *, num_steps: int = 8, seed: int = 0) -> StepTimes:
    """The first `num_steps` steps of a run; the same numbers for the same arguments."""
    return _Run(cluster, workload, random.Random(seed)).means(num_steps)


@dataclass(eq=False)
class _Episode:
    step: int
    group: int
    turns: tuple[int, ...]
    tokens: float  # behind it
    turn: int = 0


class _Actor:
    """Something with a next event; an event with another stamp than its actor's is out of date."""

    stamp = 0


class _Engine(_Actor):
    def __init__(self, cluster: Cluster, workload: Workload, number: int) -> None:
        self._costs, self._slots, self._work, self.number = cluster.costs, cluster.slots, workload, number
        self._is_local = cluster.servers == 0
        self.running: list[tuple[float, int, _Episode]] = []  # a heap: engine step of the end, number, episode
        self.waiting: list[tuple[int, int, _Episode]] = []  # a heap: training step, number, episode
        self.speed, self._slowness = 1.0, 1.0
        self._steps, self._tokens = 0.0, 0.0  # engine steps made; tokens behind the running completions
        self._time = 0.0  # up to which it is computed, or from which on it decodes
        self._due = math.inf  # when the next completion ends
        self._count = 0

    @property
    def load(self) -> int:
        return len(self.running) + len(self.waiting)

    def add(self, episode: _Episode) -> None:
        self._count += 1
        heappush(self.waiting, (episode.step, self._count, episode))

    def settle(self, now: float) -> list[_Episode]:
        """Decode until `now`; returns the episodes whose completions have ended."""
        if now < self._time:
            return []
        elapsed, self._time = (now - self._time) * self.speed, now
        if not self.running:
            return []
        pace, growth = self._pace()
        # elapsed = made pace + made^2 growth / 2
        made = elapsed / pace if growth < 1e-12 * pace else (math.sqrt(pace**2 + 2 * growth * elapsed) - pace) / growth
        end = self.running[0][0]
        made = end - self._steps if now >= self._due else min(made, end - self._steps)
        self._steps = end if now >= self._due else self._steps + made  # exactly, where an event says so
        self._tokens += made * len(self.running)
        ended = []
        while self.running and self.running[0][0] <= self._steps:
            ended.append(heappop(self.running)[2])
            ended[-1].tokens += ended[-1].turns[ended[-1].turn] - 1
            self._tokens -= ended[-1].tokens
        return ended

    def admit(self) -> None:
        """Start waiting completions. The local engine waits until an eighth of its slots are free, as its scheduler."""
        free = self._slots - len(self.running)
        worth_it = max(1, min(len(self.waiting), self._slots // 8)) if self._is_local and self.running else 1
        if not self.waiting or free < worth_it:
            return
        groups, new_tokens = set[tuple[int, int]](), 0.0
        count = min(free, len(self.waiting))
        for _ in range(count):
            _, number, episode = heappop(self.waiting)
            if episode.turn:
                new_tokens += self._work.reply_tokens
                episode.tokens += 1 + self._work.reply_tokens
            else:
                groups.add((episode.step, episode.group))
            # the first token comes with the prompt
            heappush(self.running, (self._steps + episode.turns[episode.turn] - 1, number, episode))
            self._tokens += episode.tokens
        new_tokens += len(groups) * self._work.prompt_tokens
        costs = self._costs
        self._time += (costs.admission + costs.prompt_token * new_tokens + costs.turn * count) / self.speed

    def renew(self, slowness: float) -> None:
        """New weights: everything behind running completions is computed again."""
        self._slowness = slowness
        if self.running:
            self._time += (self._costs.admission + self._costs.prompt_token * self._tokens) / self.speed

    def next_event(self) -> float:
        """When the next completion ends, if nothing happens before."""
        self._due = math.inf
        if self.running:
            left = self.running[0][0] - self._steps
            pace, growth = self._pace()
            self._due = self._time + (left * pace + left**2 * growth / 2) / self.speed
        return self._due

    def _pace(self) -> tuple[float, float]:
        """p and g, with which k engine steps take k p + k^2 g / 2 seconds: each is g longer than the one before."""
        costs, rows = self._costs, len(self.running)
        growth = costs.context * rows
        pace = costs.step + costs.row * rows + costs.context * self._tokens - growth / 2
        return max(1e-12, pace) * self._slowness, growth * self._slowness


@dataclass(eq=False)
class _Trainer(_Actor):
    step: int = 0
    parts: dict[str, float] = field(default_factory=dict)  # seconds of its present work by stage
    began: float = 0.0
    left: float = 0.0  # seconds of that work, at full speed, from `time` on
    time: float = 0.0
    speed: float = 1.0

    def change_speed(self, now: float, speed: float) -> None:
        self.left, self.time, self.speed = self.left - (now - self.time) * self.speed, now, speed


class _Run:
    def __init__(self, cluster: Cluster, workload: Workload, draw: random.Random) -> None:
        self._cluster, self._work, self._draw = cluster, workload, draw
        self._engines = [_Engine(cluster, workload, n) for n in range(cluster.servers or cluster.gpus)]
        self._loads = [(0, engine.number) for engine in self._engines]  # a heap; may be out of date
        self._active = set[int]()  # engines with running completions
        self._trainer = _Trainer()
        self._events: list[tuple[float, int, _Actor, int]] = []
        self._num_events = 0
        self._missing: deque[int] = deque()  # unfinished episodes of the issued batches, the trainer's first
        self._tokens: deque[float] = deque()  # of the same batches
        self._is_shared = not cluster.servers and workload.max_staleness > 0
        self._spent: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    def means(self, num_steps: int) -> StepTimes:
        trainer, waiting_since = self._trainer, 0.0
        self._issue(0.0, num_steps)
        while trainer.step < num_steps:
            now, _, actor, stamp = heappop(self._events)
            if stamp != actor.stamp:
                continue
            if isinstance(actor, _Engine):
                self._visit(actor, now)
            else:
                self._finish_step(now, num_steps)
                waiting_since = now
            if not trainer.parts and self._missing and self._missing[0] == 0:
                self._spent["generation"] += now - waiting_since
                self._start_work(now)
            speed = self._cluster.beside if self._is_shared and self._active else 1.0
            if trainer.parts and speed != trainer.speed:
                trainer.change_speed(now, speed)
                self._schedule(trainer, now + trainer.left / speed)
        return StepTimes(**{name: seconds / num_steps for name, seconds in self._spent.items()})

    def _issue(self, now: float, num_steps: int) -> None:
        """Issue batches up to max_staleness steps ahead."""
        work, last = self._work, min(self._trainer.step + self._work.max_staleness, num_steps - 1)
        while (step := self._trainer.step + len(self._missing)) <= last:
            self._missing.append(work.prompts * work.group_size)
            self._tokens.append(work.prompts * work.prompt_tokens)
            for group in range(work.prompts):
                for turns in self._draw.choices(work.episodes, k=work.group_size):
                    self._tokens[-1] += sum(turns) + work.reply_tokens * (len(turns) - 1)
                    self._submit(_Episode(step, group, turns, work.prompt_tokens))
        for engine in self._engines:
            self._visit(engine, now)

    def _submit(self, episode: _Episode) -> None:
        """To the rank's own engine, or to the least busy server."""
        if not self._cluster.servers:
            self._engines[episode.group % len(self._engines)].add(episode)
            return
        while self._engines[self._loads[0][1]].load != self._loads[0][0]:
            heappop(self._loads)
        engine = self._engines[self._loads[0][1]]
        engine.add(episode)
        heappush(self._loads, (engine.load, engine.number))

    def _visit(self, engine: _Engine, now: float) -> None:
        """Bring an engine up to date, and plan its next event."""
        for episode in engine.settle(now):
            episode.turn += 1
            if episode.turn < len(episode.turns):
                engine.add(episode)
            else:
                self._missing[episode.step - self._trainer.step] -= 1
        engine.admit()
        if self._is_shared:
            engine.speed = self._cluster.beside if self._trainer.parts else 1.0
        if engine.running:
            self._active.add(engine.number)
        else:
            self._active.discard(engine.number)
        heappush(self._loads, (engine.load, engine.number))
        self._schedule(engine, engine.next_event())

    def _schedule(self, actor: _Actor, time: float) -> None:
        actor.stamp += 1
        self._num_events += 1
        heappush(self._events, (time, self._num_events, actor, actor.stamp))

    def _start_work(self, now: float) -> None:
        costs, work, trainer, gpus = self._cluster.costs, self._work, self._trainer, self._cluster.gpus
        tokens, updates = self._tokens[0] / gpus, work.epochs * work.minibatches
        slowest = max(self._noise() for _ in range(gpus))
        update = updates * costs.update + work.epochs * work.trained_share * tokens * costs.trained_token
        trainer.parts = {
            "scoring": slowest * (costs.scoring + costs.scored_token * tokens),
            "update": slowest * update + (updates * costs.exchange if gpus > 1 else 0.0),
            "sync": costs.sync,
            "other": costs.other + costs.episode * work.prompts * work.group_size,
        }
        trainer.left, trainer.began, trainer.time, trainer.speed = sum(trainer.parts.values()), now, now, 1.0
        self._schedule(trainer, now + trainer.left)
        if self._is_shared:
            for engine in self._engines:
                self._visit(engine, now)

    def _finish_step(self, now: float, num_steps: int) -> None:
        """The trainer has finished a step: new weights for the engines, and the next batch."""
        trainer = self._trainer
        stretch = (now - trainer.began) / (sum(trainer.parts.values()) or 1.0)
        for name, seconds in trainer.parts.items():
            self._spent[name] += stretch * seconds
        trainer.parts = {}
        for engine in self._engines:
            self._visit(engine, now)
            engine.renew(self._noise())
        trainer.step += 1
        self._missing.popleft()
        self._tokens.popleft()
        self._issue(now, num_steps)

    def _noise(self) -> float:
        """How much longer a device takes."""
        spread = self._cluster.stragglers
        return self._draw.lognormvariate(0.0, spread) if spread else 1.0
