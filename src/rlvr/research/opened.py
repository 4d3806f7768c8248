"""A run opened for a closer look: policy, engine, chat, task and rewards in one object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rlvr.errors import UserError, errors_from_here
from rlvr.run.result import Run

if TYPE_CHECKING:
    from rlvr.chat.rendering import Chat
    from rlvr.config import Config
    from rlvr.core.engine import LocalEngine
    from rlvr.core.episode import ChatModel
    from rlvr.core.executor import Executor
    from rlvr.core.packing import Layout
    from rlvr.core.value import State
    from rlvr.models.policy import HubPolicy
    from rlvr.rewards.parts import PartsVerifier
    from rlvr.tasks.base import Task
    from rlvr.tasks.late import LateGrader, NoLateGrades
    from rlvr.types import Episode, Example, Group

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The parts of a run at one of its checkpoints; `close`, or use it in a `with` block.

    with rlvr.open("runs/latest", step=20) as run:
        groups = run.sample(run.task.eval_examples(4), count=8)
        run.gold_logprobs(groups)
    """

    config: Config
    weights: str  # folder
    policy: HubPolicy
    engine: LocalEngine
    chat: Chat
    task: Task
    rewards: Mapping[str, PartsVerifier]  # by task
    layout: Layout
    late: LateGrader | NoLateGrades  # completes scores by the policy
    executor: Executor = field(repr=False)
    _stack: ExitStack = field(repr=False)

    @property
    def model(self) -> ChatModel:
        """Chat and engine, as `rlvr.core.episode.run_episode` takes them."""
        from rlvr.core.episode import ChatModel

        return ChatModel(engine=self.engine, chat=self.chat, max_context_tokens=self.engine.max_context_tokens)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the engine's or an environment's coroutine."""
        return self.executor.run(work)

    def sample(self, examples: Sequence[Example], count: int | None = None, *, seed: int = 0) -> list[Group]:
        """Episodes of each example, as in training; `count` of each, by default rollout.group_size."""
        from rlvr.core.rollout import RolloutSource

        settings = self.config.rollout.model_copy(update={"group_size": count or self.config.rollout.group_size})
        chosen = _Chosen(task=self.task, examples=examples)
        source = RolloutSource(task=chosen, model=self.model, settings=settings, seed=seed)
        return self.late.groups(self.run(source.sample(range(len(examples)), step=0)))

    def gold_logprobs(
        self, groups: Sequence[Group], *, every: int | None = None, answers: Sequence[str] | None = None
    ) -> list[list[float]]:
        """For each episode the log-probability of its example's answer before each turn, in nats.

        With `every`, also after each `every` tokens of a completion (`rlvr.core.value.states`).

        `answers`, one for each episode, replace the examples' own. UserError if the task does not know the format of
        its answers, or an example has none.
        """
        from rlvr.core.value import gold_logprobs
        from rlvr.tasks.gold import all_gold_branches

        episodes = [episode for group in groups for episode in group.episodes]
        branches = all_gold_branches(self.task, self.chat, groups, every=every, answers=answers)
        return gold_logprobs(self.policy, episodes, branches, layout=self.layout)

    def resample(
        self, places: Sequence[tuple[Example, Episode, State]], count: int, *, seed: int = 0
    ) -> list[list[Episode]]:
        """For each state of an episode `count` scored episodes that go on from there, as in training; all at once."""
        from rlvr.core.value import resample
        from rlvr.types import Group

        params = self.config.rollout.params(self.chat.stop_ids)

        async def all_of_them() -> list[list[Episode]]:
            work = (
                resample(
                    self.model,
                    partial(self.task.env, example),
                    example,
                    episode,
                    state,
                    count=count,
                    sampling=params,
                    seed=seed,
                )
                for example, episode, state in places
            )
            return await asyncio.gather(*work)

        found = zip(places, self.run(all_of_them()), strict=True)
        groups = self.late.groups([Group(example=place[0], episodes=tuple(episodes)) for place, episodes in found])
        return [list(group.episodes) for group in groups]

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True)
class _Chosen:
    """A task as rollouts use it, with the given examples for its training stream."""

    task: Task
    examples: Sequence[Example]

    def train_example(self, index: int) -> Example:
        return self.examples[index]

    def envs(self, example: Example, count: int) -> Sequence[Any]:
        return self.task.envs(example, count)


@errors_from_here
def open_run(
    run: Run | str | Path, *, step: int | None = None, functions: Mapping[str, Callable[..., Any]] | None = None
) -> Opened:
    """Open a run, or weights inside of its folder, with its own settings; the run is only read.

    Args:
        run: A run or its folder.
        step: Of a checkpoint, 0 for the weights before the first update; None: the final weights, or the newest.
        functions: The run's Python functions by their names in config.yaml; None: those of the `Run`.

    Raises UserError, one sentence, for errors that the caller can correct.
    """
    import torch

    from rlvr.core.executor import Background
    from rlvr.models.layout import choose_layout
    from rlvr.models.policy import HubPolicy
    from rlvr.run.inference import open_inference
    from rlvr.run.late import late_grader
    from rlvr.run.sources import own_config
    from rlvr.run.tasks import make_chat

    folder = Path(run.folder if isinstance(run, Run) else run)
    own = dict(functions or (run.functions if isinstance(run, Run) else {}))
    config = own_config(str(folder))
    if config is None:
        raise UserError(f"{folder} is no run folder: it has no config.yaml.")
    weights = weights_at(folder, step, config)
    with ExitStack() as stack:
        inference = stack.enter_context(open_inference(weights, config, own))
        policy, engine = inference.loaded.model, inference.engine
        assert isinstance(policy, HubPolicy)
        assert engine is not None
        chat, task = make_chat(config, policy, inference.tasks.own), inference.tasks.own
        return Opened(
            config=config,
            weights=inference.loaded.source,
            policy=policy,
            engine=engine,
            chat=chat,
            task=task,
            rewards=inference.tasks.verifiers,
            layout=choose_layout(policy),
            late=late_grader(config, policy, chat, task, engine.max_context_tokens),
            # a thread: a notebook's own has an event loop already
            executor=stack.enter_context(Background(num_threads=torch.get_num_threads())),
            _stack=stack.pop_all(),
        )
    raise AssertionError


def weights_at(run: Path, step: int | None, config: Config) -> str:
    """The weights of a run after `step` updates, 0 being those before the first one; None: as `weights_of`.

    UserError if they were not kept.
    """
    from rlvr.run.sources import weights_of
    from rlvr.training.checkpoint import list_checkpoints

    if step is None:
        return weights_of(str(run))
    kept = list_checkpoints(run / "checkpoints")
    if step in kept:
        return weights_of(str(kept[step]))
    pretrained = None if config.warm_start.enabled else config.model.pretrained
    start = str(run / "warm_start") if (run / "warm_start").is_dir() else pretrained and pretrained.name_or_path
    if step == 0 and start:
        return start
    if step in (there := kept_steps(run)):  # without a checkpoint, the last one
        return weights_of(str(run))
    there = sorted({*there, *([0] if start else [])})
    raise UserError(
        f"{run} keeps no weights of step {step}: there are {', '.join(map(str, there)) or 'none'} "
        "(trainer.checkpoint_every, trainer.keep_last)."
    )


def kept_steps(run: Path) -> list[int]:
    """The steps after which weights were kept: checkpoints, and the last one of a finished run."""
    from rlvr.records.jsonl import read_metrics
    from rlvr.training.checkpoint import list_checkpoints

    last = [int(row["step"]) for row in read_metrics(run / "metrics.jsonl")[-1:]] if (run / "final").is_dir() else []
    return sorted({*list_checkpoints(run / "checkpoints"), *last})
