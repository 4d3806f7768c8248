"""A run opened for a closer look: policy, engine, chat, task and rewards in one object."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
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
        return self.run(source.sample(range(len(examples)), step=0))

    def gold_logprobs(
        self, groups: Sequence[Group], *, every: int | None = None, answers: Sequence[str] | None = None
    ) -> list[list[float]]:
        """For each episode the log-probability of its example's answer before each turn, in nats.

        With `every`, also after every so many tokens of a completion (`rlvr.core.value.states`).

        `answers`, one for each episode, replace the examples' own. UserError if the task does not know the format of
        its answers, or an example has none.
        """
        from rlvr.core.value import gold_logprobs, states
        from rlvr.tasks.gold import gold_branches

        pairs = [(group.example, episode) for group in groups for episode in group.episodes]
        golds = answers or [example.answer for example, _ in pairs]
        tools, branches = self.task.env(self.task.train_example(0)).tools, []
        for (example, episode), gold in zip(pairs, golds, strict=True):
            found = gold_branches(self.task, self.chat, episode, gold, states(episode, every), tools)
            if found is None:
                raise UserError(f"example {example.id}: has no answer whose format task={self.task.name} knows.")
            branches.append(found)
        return gold_logprobs(self.policy, [episode for _, episode in pairs], branches, layout=self.layout)

    def resample(self, example: Example, episode: Episode, state: State, count: int, *, seed: int = 0) -> list[Episode]:
        """`count` scored episodes that go on from a state of this one, as in training."""
        from rlvr.core.value import resample

        params = self.config.rollout.params(self.chat.stop_ids)
        work = resample(
            self.model,
            lambda: self.task.env(example),
            example,
            episode,
            state,
            count=count,
            sampling=params,
            seed=seed,
        )
        return self.run(work)

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
    from rlvr.run.sources import own_config, weights_at
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
        return Opened(
            config=config,
            weights=inference.loaded.source,
            policy=policy,
            engine=engine,
            chat=make_chat(config, policy, inference.tasks.own),
            task=inference.tasks.own,
            rewards=inference.tasks.verifiers,
            layout=choose_layout(policy),
            # a thread: a notebook's own has an event loop already
            executor=stack.enter_context(Background(num_threads=torch.get_num_threads())),
            _stack=stack.pop_all(),
        )
    raise AssertionError
