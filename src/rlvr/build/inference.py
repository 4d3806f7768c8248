"""A model of any kind, ready to be tried on a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlvr.build.chats import make_chat
from rlvr.build.policies import context_tokens, set_threads
from rlvr.build.tasks import Functions, Tasks, open_tasks
from rlvr.config.compose import load_config, load_task_config
from rlvr.config.schema import Config, PretrainedModel
from rlvr.engines.local import LocalEngine
from rlvr.errors import UserError
from rlvr.models.loading import load_for_inference
from rlvr.models.policy import Policy
from rlvr.training.checkpoint import list_checkpoints, verify


@dataclass(frozen=True, kw_only=True)
class Inference:
    """A model with the tasks and settings to try it on."""

    source: str  # the folder or Hub id that the weights came from
    config: Config
    tasks: Tasks
    policy: Policy
    engine: LocalEngine
    max_context_tokens: int

    @property
    def notes(self) -> list[str]:
        """What loading the data found, and what is unusual about how prompts are rendered."""
        examples = [(task, example) for task in self.tasks.eval_sets for example in task.eval_examples(1)]
        rendered = [make_chat(self.config, self.policy, task).note(example.messages) for task, example in examples]
        return [*self.tasks.notes, *dict.fromkeys(note for note in rendered if note is not None)]


def inference_config(model: str, overrides: Sequence[str], *, task: str | None = None) -> Config:
    """The settings to try a model with: those of the configuration, or of the task, called `task`; without it those of
    the run that the model belongs to.

    Raises:
        UserError: the model belongs to no run, and `task` is None.
    """
    root = run_of(Path(model))
    if task is not None:
        return load_task_config(task, overrides)
    if root is not None:
        return load_config(overrides, config_name="config", config_dir=str(root))
    raise _no_task(model)


@contextmanager
def open_inference(model: str, config: Config, functions: Functions | None = None) -> Iterator[Inference]:
    """A run folder, checkpoint, model folder or Hub id, ready to generate. Processes of verifiers end with the block.

    Raises:
        UserError: there is no such model, or it is damaged.
    """
    source = _weights(Path(model), run_of(Path(model)))
    settings = config.model if isinstance(config.model, PretrainedModel) else None
    policy = load_for_inference(source, settings)
    set_threads(config, policy)
    context = context_tokens(policy)
    with open_tasks(config, policy.model.config.get_text_config().model_type, functions or {}) as tasks:
        tasks.fit(config, policy, context)
        yield Inference(
            source=source,
            config=config,
            tasks=tasks,
            policy=policy,
            engine=LocalEngine(policy.model, max_batch_size=config.engine.max_batch_size, max_context_tokens=context),
            max_context_tokens=context,
        )


def _no_task(model: str) -> UserError:
    if not Path(model).exists():
        return UserError(f"there is no folder {model}: name a run folder, or a Hub id with --task, e.g. --task rpn.")
    return UserError(f"{model} is no run folder and so has no task of its own: add --task, e.g. --task rpn.")


def run_of(path: Path) -> Path | None:
    """The run folder that `runs/x`, `runs/x/final`, `runs/x/warm_start` or `runs/x/checkpoints/step_000010` is in."""
    path = path.absolute()
    candidates = {path: True, path.parent: path.name in ("final", "warm_start")}
    candidates[path.parent.parent] = path.parent.name == "checkpoints"
    candidates[path.parent.parent.parent] = path.name == "model" and path.parent.parent.name == "checkpoints"
    return next((root for root, fits in candidates.items() if fits and (root / "config.yaml").is_file()), None)


def _weights(path: Path, root: Path | None) -> str:
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
        raise UserError(f"there is no folder {path}: name a run folder, a checkpoint, a model folder or a Hub id.")
    return str(path)
