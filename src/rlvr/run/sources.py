"""Resolves MODEL arguments: run folder, weights, and evaluation settings. Checks them before loading anything heavy."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr import imports
from rlvr.algorithms.columns import START
from rlvr.config import Config
from rlvr.config.compose import NO_TRACKER, load_config, load_task_config
from rlvr.errors import ConfigError, UserError
from rlvr.models.gguf import SUFFIX
from rlvr.models.hub import is_local
from rlvr.places import ENDPOINT, check_one_run, near


def own_config(model: str, overrides: Sequence[str] = (), config_dir: str | None = None) -> Config | None:
    """The settings of the model's run, if it has one; nothing is reported to its trackers."""
    imports.look_in(config_dir)
    if model.startswith(ENDPOINT):
        from rlvr.engines.openai import read_address

        read_address(model)
        return None
    root = run_of(Path(model))
    return root and load_config([*overrides, NO_TRACKER], config_name="config", config_dir=str(root))


def inference_config(
    model: str, overrides: Sequence[str], *, task: str | None = None, config_dir: str | None = None
) -> Config:
    """Settings to evaluate a model: those of the configuration or task `task`, else those of the model's run.

    For a `task` that the run evaluates through `evaluation.also`, its settings apply.

    Raises:
        UserError: the model belongs to no run, and `task` is None; ConfigError if it is there or an endpoint.
    """
    of_run = own_config(model, overrides if task is None else (), config_dir)
    if task is None:
        return of_run or _refuse(model)
    if of_run is None or task not in {**of_run.evaluation.also, **of_run.task.bundles}:
        return load_task_config(task, overrides, config_dir=config_dir)
    config = own_config(model, overrides) or of_run
    return config.with_bundle({**config.evaluation.also, **config.task.bundles}[task], name=task)


def _refuse(model: str) -> Config:
    if model.startswith(ENDPOINT) or is_local(model):
        raise ConfigError(f"{model} is no run folder and so has no task of its own: add --task, e.g. --task rpn.")
    raise UserError(
        f"there is no folder {model}{near(Path(model))}: name a run folder, or a Hub id with --task, e.g. --task rpn."
    )


def with_absolute_model(config: Config) -> Config:
    """Make `model.name_or_path` and `algorithm.teacher` absolute (for a run its `final/`): `runs/latest` and relative
    paths would change on resume. UserError for a folder that is missing."""
    changed: dict[str, Any] = {}
    model, teacher = config.model.pretrained, getattr(config.algorithm, "teacher", None)
    if model is not None and Path(model.name_or_path).exists():
        changed["model"] = model.model_copy(update={"name_or_path": _absolute(model.name_or_path)})
    if isinstance(teacher, str) and teacher != START and not teacher.startswith(ENDPOINT):
        changed["algorithm"] = config.algorithm.model_copy(update={"teacher": _absolute(teacher)})
    return config.model_copy(update=changed)


def _absolute(model: str) -> str:
    """The weights of a folder or file; a Hub id as it is."""
    weights = Path(weights_of(model))
    return str(weights.resolve() if weights.exists() else weights)


def servable(model: str) -> str:
    """The weights to serve, as `weights_of`. ConfigError for an endpoint."""
    if model.startswith(ENDPOINT):
        raise ConfigError(f"{model} is an endpoint already: name a folder or a Hub id to serve.")
    return weights_of(model)


def run_of(path: Path) -> Path | None:
    """The run folder of `runs/x`, `runs/x/final`, `runs/x/warm_start` or `runs/x/checkpoints/step_000010`.

    UserError for a folder of runs."""
    check_one_run(path)
    path = path.absolute()
    inside = re.compile(r"|final|warm_start|checkpoints/[^/]+(/model)?")
    roots = [root for root in (path, *path.parents[:3]) if (root / "config.yaml").is_file()]
    return next((root for root in roots if inside.fullmatch(path.relative_to(root).as_posix().lstrip("."))), None)


def weights_of(model: str) -> str:
    """The Hub-format folder (GGUF file, Hub id) to load: `final/` of a run, or its newest checkpoint.

    UserError if there is no such folder, or nothing saved in it.
    """
    from rlvr.training.checkpoint import list_checkpoints, verify

    path = Path(model)
    if path.absolute() == run_of(path):
        if (path / "final").is_dir():
            return str(path / "final")
        checkpoints = list_checkpoints(path / "checkpoints")
        if not checkpoints:
            raise UserError(
                f"{path} has neither final/ nor a checkpoint yet: go on with rlvr train run_dir={path} resume=true"
                + (f", or use {path}/warm_start." if (path / "warm_start").is_dir() else ".")
            )
        path = checkpoints[max(checkpoints)]
    if (path / "manifest.json").is_file():
        verify(path)
        return str(path / "model")
    is_folder_name = path.is_absolute() or len(path.parts) > 2 or (path.parent != Path() and path.parent.is_dir())
    if is_folder_name and not path.exists():
        kind = "file" if path.suffix == SUFFIX else "folder"
        raise UserError(
            f"there is no {kind} {path}{near(path)}: name a run folder, a checkpoint, a model folder or a Hub id."
        )
    return str(path)
