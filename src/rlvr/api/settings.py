"""From the arguments of a call to a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr.api.files import import_path
from rlvr.config.compose import DATA_CONFIG, DEFAULT_CONFIG, load_config, load_task_config
from rlvr.config.lines import chooses, override_lines
from rlvr.config.schema import (
    Config,
    CustomPart,
    FinqaProgramPart,
    GeneratorTask,
    HubTask,
    JsonlTask,
    MixTask,
    PartsReward,
    ReasoningGymPart,
    RpnTask,
)
from rlvr.errors import ConfigError

RewardFunction = Callable[..., float | None]
"""Called with those of prompt, completion, answer and metadata that it names; None: no answer could be read."""

Values = Mapping[str, Any]
Functions = dict[str, Callable[..., Any]]

SCRATCH = ("scratch", "scratch_bpe")


@dataclass(frozen=True, kw_only=True)
class Call:
    """The arguments that `train` and `evaluate` share."""

    model: str | Path | Values | None = None
    data: str | Callable[..., Any] | None = None  # a file, or a function that yields rows
    eval_data: str | None = None
    reward: RewardFunction | str | Values | None = None
    values: Values = field(default_factory=dict)

    @property
    def chooses(self) -> bool:
        """Whether the call chooses in a group, which the configuration of a run cannot do any more."""
        named = {"model": self.model if isinstance(self.model, Mapping) else None, "reward": self.reward}
        given = isinstance(self.model, str | Path) or self.data is not None or self.eval_data is not None
        return given or chooses({**named, **self.values})

    @property
    def functions(self) -> Functions:
        """The functions of the call, by the name that the configuration has for them."""
        given: tuple[Any, ...] = (self.data, self.reward)
        return {import_path(one): one for one in given if callable(one)}

    def lines(self, own: Config | None = None) -> list[str]:
        """The lines of the command that says the same. `own`: on top of a run's, whose choices are made already."""
        values: dict[str, Any] = {}
        if isinstance(self.model, Mapping) or self.model in SCRATCH:
            values["model"] = self.model
        elif self.model is not None:
            values |= {"model": "hf", "model.name_or_path": str(self.model)}
        if callable(self.data):
            values |= {"task": "generator", "task.source": import_path(self.data)}
        elif self.data is not None:
            values |= {"task": "jsonl", "task.path": self.data}
        if self.eval_data is not None:
            values["task.eval_path"] = self.eval_data
        if callable(self.reward) and own is not None:
            values[f"reward.parts.{_custom_part(own)}.function"] = import_path(self.reward)
        elif callable(self.reward):
            values |= {"reward": "custom", "reward.parts.custom.function": import_path(self.reward)}
            values |= {} if chooses({"prompt": self.values.get("prompt")}) else {"prompt": "plain"}
        elif self.reward is not None:
            values["reward"] = self.reward
        return [*override_lines(values), *override_lines(self.values)]


def training(call: Call, config_name: str | None, config_dir: str | Path | None) -> Config:
    """The configuration to train with; that of the run itself if the call goes on with one and chooses nothing."""
    if config_name is None and config_dir is None and not call.chooses and (own := _resumed(call.values)) is not None:
        return load_config(call.lines(own), config_name="config", config_dir=str(call.values["run_dir"]))
    lines = call.lines()
    if config_name is None and call.data is not None:
        config_name = DATA_CONFIG
        lines = [f"name={'generator' if callable(call.data) else 'jsonl'}", *lines]  # of the run folder
    folder = None if config_dir is None else str(config_dir)
    return load_config(lines, config_name=config_name or DEFAULT_CONFIG, config_dir=folder)


def evaluation(call: Call, source: str, task: str | None) -> Config:
    """The configuration to evaluate the model `source` with: as far as it can be that of its run, and with `call.data`
    the held-out rows are those.
    """
    from rlvr.app import inference_config, run_of

    root = run_of(Path(source)) if task is None else None
    if call.data is None:
        own = None if root is None else _config_of(root)
        return inference_config(source, call.lines(own), task=task)
    assert not callable(call.data)
    if root is None:
        return load_task_config(task or "jsonl", Call(**{**vars(call), "eval_data": call.data}).lines())
    return _on_rows(call, call.data, root)


def _on_rows(call: Call, file: str, root: Path) -> Config:
    """The configuration of the run in `root` with other rows to hold out; they are asked as the run asked its own."""
    own = _config_of(root)
    of_task = {key: value for key, value in call.values.items() if key.startswith("task.")}
    if isinstance(own.task, JsonlTask):  # what it was trained on stays: examples to show come from there
        config = _of_run(root, Call(reward=call.reward, values=call.values), own)
        return _only(config, task=config.task.model_copy(update={"eval_path": file}))
    metric = {"task.metric": own.task.metric} if isinstance(own.task, HubTask | GeneratorTask) else {}
    other = load_task_config("jsonl", Call(data=file, eval_data=file, values=metric | of_task).lines())
    rest = {key: value for key, value in call.values.items() if key not in of_task}
    config = _of_run(root, Call(reward=call.reward, values=rest), own)
    if isinstance(own.task, RpnTask | MixTask):
        return _only(config, task=other.task, reward=other.reward, prompt=other.prompt)
    return _only(config, task=other.task, reward=config.reward if _scores_rows(config) else other.reward)


def _of_run(root: Path, call: Call, own: Config) -> Config:
    return load_config(call.lines(own), config_name="config", config_dir=str(root))


def _only(config: Config, **sections: Any) -> Config:
    """With these sections, and nothing evaluated beside."""
    evaluation = config.evaluation.model_copy(update={"also": {}})
    return config.model_copy(update={"evaluation": evaluation, **sections})


def _scores_rows(config: Config) -> bool:
    """Whether the reward needs nothing of an example but its answer."""
    parts = config.reward.parts.values() if isinstance(config.reward, PartsReward) else ()
    return not any(isinstance(part, FinqaProgramPart | ReasoningGymPart) for part in parts)


def _custom_part(config: Config) -> str:
    """The name of the reward's part that is a function of the user's."""
    parts = config.reward.parts if isinstance(config.reward, PartsReward) else {}
    names = [name for name, part in parts.items() if isinstance(part, CustomPart)]
    if len(names) != 1:
        raise ConfigError(
            f"reward: the run's own reward has {len(names)} functions, so none can take the place of its only one; "
            "leave reward out."
        )
    return names[0]


def _resumed(values: Values) -> Config | None:
    """The configuration of the run to go on with, if there is one."""
    root = Path(str(values.get("run_dir")))
    return _config_of(root) if values.get("resume") and (root / "config.yaml").is_file() else None


def _config_of(root: Path) -> Config:
    from rlvr.training.run_folder import RunFolder, read_config

    return read_config(RunFolder(root=root))
