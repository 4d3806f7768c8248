"""From the arguments of a call to a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rlvr.api.files import import_path
from rlvr.config import Config
from rlvr.config.checks import check_resumes
from rlvr.config.compose import DATA_CONFIG, DEFAULT_CONFIG, load_config, load_task_config
from rlvr.config.config import SECTIONS
from rlvr.errors import ConfigError
from rlvr.lines import override_lines
from rlvr.tasks.multihop import TOOLS
from rlvr.tasks.settings import MetricSettings

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
    tools: Sequence[Callable[..., Any]] = ()
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
        given: tuple[Any, ...] = (self.data, self.reward, *self.tools)
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
        elif self.reward is not None:
            values["reward"] = self.reward
        if self.tools:
            values["task.tools"] = [*TOOLS, *map(import_path, self.tools)]
        return [*override_lines(values), *override_lines(self.values)]


def training(call: Call, config_name: str | None, config_dir: str | Path | None) -> Config:
    """The configuration to train with; that of the run itself if the call goes on with one and chooses nothing."""
    if config_name is None and config_dir is None and not call.chooses and (own := _resumed(call.values)) is not None:
        return load_config(call.lines(own), config_name="config", config_dir=str(call.values["run_dir"]))
    lines = call.lines()
    if config_name is None and call.data is not None:
        config_name = DATA_CONFIG
        if "name" not in call.values:  # of the run folder
            lines = [f"name={'generator' if callable(call.data) else 'jsonl'}", *lines]
    folder = None if config_dir is None else str(config_dir)
    load = partial(load_config, config_name=config_name or DEFAULT_CONFIG, config_dir=folder)
    config = _asked_plainly(call, lines, load)
    check_resumes(config)
    return config


def _asked_plainly(call: Call, lines: list[str], load: Callable[[list[str]], Config]) -> Config:
    """With prompt=plain where a function scores whole completions; a task with tools keeps its own prompt."""
    config = load(lines)
    is_plain = callable(call.reward) and not chooses({"prompt": call.values.get("prompt")})
    if not is_plain or config.task.has_tools or config.task.writes_prompts:
        return config
    return load([*lines, "prompt=plain"])


def evaluation(call: Call, source: str, task: str | None) -> Config:
    """The configuration to evaluate the model `source` with: as far as it can be that of its run, and with `call.data`
    the held-out rows are those.
    """
    from rlvr.app import inference_config, run_of

    root = run_of(Path(source)) if task is None else None
    if call.data is None:
        own = None if root is None else _config_of(root)
        load = partial(inference_config, source, task=task)
        return load(call.lines(own)) if own is not None else _asked_plainly(call, call.lines(), load)
    assert not callable(call.data)
    if root is None:
        held_out = Call(**{**vars(call), "eval_data": call.data})
        return _asked_plainly(
            call, held_out.lines(), partial(load_task_config, DATA_CONFIG if task in (None, "jsonl") else task)
        )
    return _on_rows(call, call.data, root)


def _on_rows(call: Call, file: str, root: Path) -> Config:
    """The configuration of the run in `root` with other rows to hold out; they are asked as the run asked its own."""
    own = _config_of(root)
    of_task = {key: value for key, value in call.values.items() if key.startswith("task.")}
    if own.task.name == "jsonl":  # what it was trained on stays: examples to show come from there
        config = _of_run(root, Call(reward=call.reward, values=call.values), own)
        return _only(config, task=config.task.model_copy(update={"eval_path": file}))
    metric = {"task.metric": own.task.metric} if isinstance(own.task, MetricSettings) else {}
    other = load_config(Call(data=file, eval_data=file, values=metric | of_task).lines(), config_name=DATA_CONFIG)
    rest = {key: value for key, value in call.values.items() if key not in of_task}
    config = _of_run(root, Call(reward=call.reward, values=rest), own)
    if own.task.writes_prompts:
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
    return not any(part.needs_metadata for part in config.reward.parts.values())


def chooses(values: Mapping[str, Any]) -> bool:
    """Whether one of the values is the choice of a group, and not a value inside a section."""
    of_sections = [value for key, value in values.items() if key in SECTIONS]
    return any(isinstance(value, str) or (isinstance(value, Mapping) and "name" in value) for value in of_sections)


def _custom_part(config: Config) -> str:
    """The name of the reward's part that is a function of the user's."""
    names = [name for name, part in config.reward.parts.items() if part.name == "custom"]
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
    from rlvr.app.run_folder import RunFolder, read_config

    return read_config(RunFolder(root=root))
