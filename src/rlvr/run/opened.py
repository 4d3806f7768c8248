"""A run put together in one place: its console, data, folder and model, each opened when it is first used."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from rlvr import imports
from rlvr.config import Config
from rlvr.core.world import ALONE, World
from rlvr.models.devices import choose_device, choose_products
from rlvr.models.heads import use_float32_head
from rlvr.models.policy import HubPolicy
from rlvr.models.settings import ModelContext
from rlvr.run.run_folder import RunFolder
from rlvr.run.tasks import Tasks, open_tasks
from rlvr.run.teachers import check_tokens
from rlvr.tasks.base import Functions
from rlvr.tasks.prompting import resolve_markers
from rlvr.tracking.console import Console

Stopped = Callable[[], bool]


def never() -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """The parts of a run.

    with opened(config) as run:
        run.tasks.own.train_example(0)  # reads the data, and no weights
        assemble(run, run.load_policy())  # engine, sampler, trainer, checkpoints
    """

    config: Config
    console: Console
    make_tasks: Callable[[], Tasks]
    make_folder: Callable[[], RunFolder]
    world: World = ALONE
    stopped: Stopped = never  # whether this process was asked to stop

    @property
    def tasks(self) -> Tasks:
        return self.make_tasks()

    @property
    def folder(self) -> RunFolder:
        return self.make_folder()

    def load_model(self) -> HubPolicy:
        """A model as it is loaded, or made from scratch."""
        choose_products(choose_device(self.config.trainer.device), self.config.trainer.precision)
        return open_model(self.config, self.tasks)

    def load_policy(self) -> HubPolicy:
        """A model before any training; removes examples that do not fit its context."""
        config, policy = self.config, self.load_model()
        if config.model.pretrained is None:  # its tokenizer was not known before
            check_tokens(config, policy.tokenizer)
        return self.tasks.fit(config, policy)


@contextmanager
def opened(
    config: Config,
    functions: Functions | None = None,
    *,
    tasks: Tasks | None = None,
    folder: AbstractContextManager[RunFolder] | None = None,
    world: World = ALONE,
    stopped: Stopped = never,
) -> Iterator[OpenRun]:
    """The parts of a run; what they opened ends with the block.

    `tasks` are used instead of those of the configuration, `folder` is entered when it is first used; by default it is
    a temporary one.
    """
    with ExitStack() as stack:
        console = stack.enter_context(_console(config, world))

        @cache
        def make_tasks() -> Tasks:
            return tasks or stack.enter_context(open_tasks(config, config.model.family(), functions or {}))

        @cache
        def make_folder() -> RunFolder:
            return stack.enter_context(folder or temporary_run())

        yield OpenRun(
            config=config,
            console=console,
            make_tasks=make_tasks,
            make_folder=make_folder,
            world=world,
            stopped=stopped,
        )


@contextmanager
def temporary_run() -> Iterator[RunFolder]:
    """A run folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="rlvr-") as root:
        yield RunFolder(root=Path(root))


def open_model(config: Config, tasks: Tasks) -> HubPolicy:
    """The model before any training."""
    context = ModelContext(
        seed=config.seed,
        device=choose_device(config.trainer.device),
        vocabulary=tasks.own.vocabulary,
        texts=tasks.own.texts,
        markers=partial(_markers, config),
    )
    with imports.code_of(config.model, f"model={config.model.name}: open"):
        policy = config.model.open(context)
        if not isinstance(policy, HubPolicy):
            raise TypeError(f"it must return a HubPolicy (rlvr.models.policy), not {type(policy).__name__}")
    if config.model.head_dtype == "float32":  # also in its warm start
        use_float32_head(policy.model)
    return policy


def _markers(config: Config) -> list[str]:
    family = config.model.family()
    sets = [resolve_markers(bundle.prompt, config.markers, family) for bundle in config.trained.values()]
    return list(dict.fromkeys(text for markers in sets if markers for text in markers.model_dump().values()))


def _console(config: Config, world: World) -> Console:
    """Lines of rank 0; the other ranks print none."""
    tracker, headline = config.tracker, config.evaluation.headline
    parts = [item for bundle in config.trained.values() for item in bundle.reward.parts.items()]
    penalties = frozenset(name for name, part in parts if part.is_penalty)
    mode = tracker.console if world.is_first else "none"
    return Console(mode, tracker.log_every, config.trainer.max_steps, headline=headline, penalties=penalties)
