"""A model of any kind, ready to be tried on a task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rlvr import imports
from rlvr.app.chats import ChatTask, make_chat
from rlvr.app.policies import context_tokens, set_threads
from rlvr.app.tasks import Tasks, open_tasks
from rlvr.config import Config
from rlvr.config.compose import NO_TRACKER, load_config, load_task_config
from rlvr.engines.local import LocalEngine
from rlvr.engines.openai import PREFIX, Endpoint, open_endpoint
from rlvr.errors import UserError, nearest
from rlvr.evaluation.endpoint import EndpointPlayer
from rlvr.evaluation.players import LocalPlayer, Player
from rlvr.models.devices import choose_device, choose_products
from rlvr.models.fingerprint import fingerprint
from rlvr.models.loading import load_for_inference
from rlvr.models.policy import Policy
from rlvr.models.settings import PretrainedModel
from rlvr.tasks.settings import Functions
from rlvr.training.checkpoint import list_checkpoints, verify

Result = TypeVar("Result")

MARKS_OF = "llama"
"""The type whose markers prompts for an endpoint have with prompt.markers=auto: they are text to any model."""
UNKNOWN = (
    "the endpoint's model is not known here: no example is left out for the length of its prompt, and "
    "prompt.markers=auto means those of Llama"
)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model, loaded once for any number of tasks: weights in this process, or an endpoint."""

    name: str  # as it was asked for
    source: str  # the folder or Hub id that the weights came from, or the endpoint
    model: Policy | Endpoint
    fingerprint: str  # of everything that decides what is sampled; of an endpoint its address and name

    @property
    def policy(self) -> Policy:
        """The weights. UserError for an endpoint."""
        if isinstance(self.model, Endpoint):
            raise UserError(f"{self.name} is an endpoint, which has no weights here: name a folder or a Hub id.")
        return self.model


@dataclass(frozen=True, kw_only=True)
class Inference:
    """A model with the tasks and settings to try it on."""

    loaded: Loaded
    config: Config
    tasks: Tasks
    engine: LocalEngine | None  # None: an endpoint
    max_context_tokens: int | None  # None: an endpoint, which knows it

    @property
    def source(self) -> str:
        """The folder or Hub id that the weights came from, or the endpoint."""
        return self.loaded.source

    @property
    def policy(self) -> Policy:
        """The weights. UserError for an endpoint."""
        return self.loaded.policy

    @property
    def notes(self) -> list[str]:
        """What loading the data found, and what is unusual about how prompts are rendered."""
        if isinstance(self.loaded.model, Endpoint):
            return [*self.tasks.notes, UNKNOWN]
        examples = [(task, example) for task in self.tasks.eval_sets for example in task.eval_examples(1)]
        rendered = [make_chat(self.config, self.policy, task).note(example.messages) for task, example in examples]
        return [*self.tasks.notes, *dict.fromkeys(note for note in rendered if note is not None)]

    def player(self, task: ChatTask) -> Player:
        """What plays the task's episodes."""
        if self.engine is None or self.max_context_tokens is None:
            assert isinstance(self.loaded.model, Endpoint)
            return EndpointPlayer(endpoint=self.loaded.model, stop_words=tuple(task.stop_words))
        chat = make_chat(self.config, self.policy, task)
        return LocalPlayer(engine=self.engine, chat=chat, max_context_tokens=self.max_context_tokens)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work` in an event loop of its own; connections are closed before it ends."""

        async def closing() -> Result:
            try:
                return await work
            finally:
                if isinstance(self.loaded.model, Endpoint):
                    await self.loaded.model.close()

        return asyncio.run(closing())


def inference_config(
    model: str, overrides: Sequence[str], *, task: str | None = None, config_dir: str | None = None
) -> Config:
    """The settings to try a model with: those of the configuration, or of the task, called `task`; without it those of
    the run that the model belongs to. A `task` that the run evaluates beside its own is asked as the run does.

    Raises:
        UserError: the model belongs to no run, and `task` is None.
    """
    root = None if model.startswith(PREFIX) else run_of(Path(model))
    if root is None and task is None:
        raise _no_task(model)
    if root is None:
        return load_task_config(task or "", overrides, config_dir=config_dir)
    imports.look_in(config_dir)
    own = load_config([*(overrides if task is None else []), NO_TRACKER], config_name="config", config_dir=str(root))
    if task is None:
        return own
    if task not in {**own.evaluation.also, **own.task.bundles}:
        return load_task_config(task, overrides, config_dir=config_dir)
    config = load_config([*overrides, NO_TRACKER], config_name="config", config_dir=str(root))
    return config.with_bundle({**config.evaluation.also, **config.task.bundles}[task])


@contextmanager
def open_model(model: str, settings: PretrainedModel | None = None, device: str = "auto") -> Iterator[Loaded]:
    """A run folder, checkpoint, model folder or Hub id with its weights loaded, or an endpoint that answers.

    `openai:http://127.0.0.1:8000/v1#NAME` is a model behind the chat completions of an endpoint. `settings` say how
    the weights under an adapter are kept; whole models are float32. `device` is what `trainer.device` may be.

    Raises:
        UserError: there is no such model, it is damaged, or the endpoint does not answer.
    """
    if model.startswith(PREFIX):
        endpoint = open_endpoint(model)
        yield Loaded(name=model, source=model, model=endpoint, fingerprint=endpoint.fingerprint)
        return
    source = weights_of(Path(model), run_of(Path(model)))
    policy = load_for_inference(source, settings, choose_device(device))
    yield Loaded(name=model, source=source, model=policy, fingerprint=fingerprint(policy))


@contextmanager
def open_inference(model: str | Loaded, config: Config, functions: Functions | None = None) -> Iterator[Inference]:
    """A model, named or loaded already, ready to be tried on the configuration's tasks. Processes of verifiers end with
    the block.

    Raises:
        UserError: there is no such model, or it is damaged; what the tasks' data lack.
    """
    with ExitStack() as stack:
        if isinstance(model, str):
            settings = config.model if isinstance(config.model, PretrainedModel) else None
            model = stack.enter_context(open_model(model, settings, config.trainer.device))
        if isinstance(model.model, Endpoint):
            tasks = stack.enter_context(open_tasks(config, MARKS_OF, functions or {}))
            yield Inference(loaded=model, config=config, tasks=tasks, engine=None, max_context_tokens=None)
            return
        policy = model.model
        choose_products(policy.model.device, config.trainer.precision)
        set_threads(config, policy)
        context = context_tokens(policy)
        family = policy.model.config.get_text_config().model_type
        tasks = stack.enter_context(open_tasks(config, family, functions or {}))
        tasks.fit(config, policy, context)
        engine = LocalEngine(policy.model, max_batch_size=config.engine.max_batch_size, max_context_tokens=context)
        stack.callback(engine.close)
        yield Inference(loaded=model, config=config, tasks=tasks, engine=engine, max_context_tokens=context)


def _no_task(model: str) -> UserError:
    if model.startswith(PREFIX):
        return UserError(f"{model} is an endpoint and so has no task of its own: add --task, e.g. --task gsm8k.")
    if not Path(model).exists():
        return UserError(
            f"there is no folder {model}{_near(Path(model))}: name a run folder, or a Hub id with --task, e.g. --task "
            "rpn."
        )
    return UserError(f"{model} is no run folder and so has no task of its own: add --task, e.g. --task rpn.")


def _near(path: Path) -> str:
    """` (did you mean runs/latest?)`, where a folder beside has nearly this name."""
    folder = path.parent
    names = [one.name for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []
    near = nearest(path.name, names)
    return f" (did you mean {folder / near}?)" if near else ""


def with_absolute_model(config: Config) -> Config:
    """The folder that `model.name_or_path` stands for (of a run its `final/`), by its full name: `runs/latest` and
    relative paths mean something else at a resume."""
    if not isinstance(config.model, PretrainedModel) or not Path(config.model.name_or_path).is_dir():
        return config
    path = Path(config.model.name_or_path)
    source = Path(weights_of(path, run_of(path))).resolve()
    return config.model_copy(update={"model": config.model.model_copy(update={"name_or_path": str(source)})})


def run_of(path: Path) -> Path | None:
    """The run folder that `runs/x`, `runs/x/final`, `runs/x/warm_start` or `runs/x/checkpoints/step_000010` is in."""
    path = path.absolute()
    candidates = {path: True, path.parent: path.name in ("final", "warm_start")}
    candidates[path.parent.parent] = path.parent.name == "checkpoints"
    candidates[path.parent.parent.parent] = path.name == "model" and path.parent.parent.name == "checkpoints"
    return next((root for root, fits in candidates.items() if fits and (root / "config.yaml").is_file()), None)


def weights_of(path: Path, root: Path | None) -> str:
    """The Hub-format folder (or Hub id) to load: `final/` of a run, or its newest checkpoint."""
    if root is not None and path.absolute() == root:
        if (root / "final").is_dir():
            return str(path / "final")
        checkpoints = list_checkpoints(path / "checkpoints")
        if not checkpoints:
            raise UserError(
                f"{path} has neither final/ nor a checkpoint yet: let the run go on, or use {path}/warm_start."
            )
        path = checkpoints[max(checkpoints)]
    if (path / "manifest.json").is_file():
        verify(path)
        return str(path / "model")
    is_folder_name = path.is_absolute() or len(path.parts) > 2 or (path.parent != Path() and path.parent.is_dir())
    if is_folder_name and not path.exists():
        raise UserError(
            f"there is no folder {path}{_near(path)}: name a run folder, a checkpoint, a model folder or a Hub id."
        )
    return str(path)
