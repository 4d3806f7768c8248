"""Converts call arguments to a configuration: rows become files, functions become import paths."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rlvr.config import Config
from rlvr.config.compose import DATA_CONFIG, DEFAULT_CONFIG, load_config, load_task_config
from rlvr.config.config import SECTIONS
from rlvr.config.sections import check_resumes
from rlvr.errors import ConfigError
from rlvr.lines import override_lines
from rlvr.records.files import write_atomically, writing
from rlvr.run.sources import inference_config, run_of
from rlvr.tasks.multihop import TOOLS
from rlvr.tasks.settings import MetricSettings

Rows = Iterable[Mapping[str, Any]]
Data = Rows | str | Path
"""Rows with `question` and `answer`, or a file of them: `.jsonl` or `.json`, either also as `.gz`."""

FOLDER = Path("runs") / "data"


def data_file(data: Data | None, name: str) -> str | None:
    """The absolute path of the file with the rows; None for None.

    In-memory rows are written to `runs/data/`, named by a content hash, so that a run can be resumed and repeated.
    `name` is the argument's name, for errors.
    """
    if data is None:
        return None
    if isinstance(data, str | Path):
        return str(Path(data).expanduser().absolute())
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise ConfigError(f"{name} is a {type(data).__name__}: give a list of rows, or the path of a file.")
    content = "".join(_line(row, f"{name}, row {number}") for number, row in enumerate(data, start=1)).encode()
    if not content:
        raise ConfigError(f"{name} has no rows: give some, each with a question and an answer.")
    path = (FOLDER / f"{hashlib.sha256(content).hexdigest()[:16]}.jsonl").absolute()
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        write_atomically(path, content)
    return str(path)


def _line(row: object, place: str) -> str:
    if not isinstance(row, Mapping):
        raise ConfigError(f"{place} is {row!r:.80}: it must be a mapping such as {{'question': ..., 'answer': ...}}.")
    try:
        return json.dumps(dict(row), allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{place} holds what JSON cannot ({error}): use texts, finite numbers and lists.") from None


def import_path(function: Callable[..., Any]) -> str:
    """`my_rewards:shorter`; functions without import path, such as lambdas, get a similar name."""
    module = getattr(function, "__module__", None) or "given"
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    words = [re.sub(r"[^A-Za-z0-9_.]", "_", text) for text in (module, name)]  # `outer.<locals>.x`: `outer._locals_.x`
    return ":".join(re.sub(r"^(?=[0-9.])", "_", text) for text in words)


RewardFunction = Callable[..., float | None]
"""Takes any of the arguments prompt, completion, answer and metadata; returns None for an unreadable answer."""

Values = Mapping[str, Any]
Functions = dict[str, Callable[..., Any]]

SCRATCH = ("scratch", "scratch_bpe")


@dataclass(frozen=True, kw_only=True)
class Call:
    model: str | Path | Values | None = None
    data: str | Callable[..., Any] | None = None  # a file, or a function that yields rows
    eval_data: str | None = None
    reward: RewardFunction | str | Values | None = None
    tools: Sequence[Callable[..., Any]] = ()
    values: Values = field(default_factory=dict)

    def chooses(self, *sections: str) -> bool:
        """Whether the call chooses in one of the groups (empty: in any), beyond setting values inside it."""
        if not sections and (self.data, self.eval_data) != (None, None):
            return True
        values = {"model": self.model, "reward": self.reward, **self.values}
        given = (value for key, value in values.items() if key in (sections or SECTIONS))
        return any(isinstance(v, str | Path) or (isinstance(v, Mapping) and "name" in v) for v in given)

    @property
    def functions(self) -> Functions:
        given: tuple[Any, ...] = (self.data, self.reward, *self.tools)
        return {import_path(one): one for one in given if callable(one)}

    def lines(self, own: Config | None = None) -> list[str]:
        """The equivalent command's overrides. `own`: on top of a run's configuration, whose choices are made."""
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


def training_call(config_name: str | None, config_dir: str | Path | None, **values: Any) -> tuple[Config, Functions]:
    """The configuration of a call of `train`, and the functions in it."""
    data, eval_data = values.get("data"), data_file(values.get("eval_data"), "eval_data")
    values |= {"data": data if callable(data) else data_file(data, "data"), "eval_data": eval_data}
    call = Call(**values)
    return training(call, config_name, config_dir), call.functions


def training(call: Call, config_name: str | None, config_dir: str | Path | None) -> Config:
    """The configuration to train with; the run's own if the call resumes one and chooses nothing."""
    run = Path(str(call.values.get("run_dir")))
    goes_on = call.values.get("resume") and (run / "config.yaml").is_file()
    if goes_on and config_name is None and config_dir is None and not call.chooses():
        return _of_run(run, call, _config_of(run))
    name = config_name or (DEFAULT_CONFIG if call.data is None else DATA_CONFIG)
    folder = None if config_dir is None else str(config_dir)
    config = _asked_plainly(call, call.lines(), partial(load_config, config_name=name, config_dir=folder))
    check_resumes(config)
    return config


def _asked_plainly(call: Call, lines: list[str], load: Callable[[list[str]], Config]) -> Config:
    """Choose prompt=plain if a function scores whole completions; a task with tools keeps its own prompt."""
    config = load(lines)
    is_plain = callable(call.reward) and not call.chooses("prompt")
    if not is_plain or config.task.has_tools or config.task.writes_prompts:
        return config
    return load([*lines, "prompt=plain"])


def evaluation(call: Call, source: str, task: str | None) -> Config:
    """The configuration to evaluate model `source`, based on its run's; `call.data` replaces the held-out rows."""
    root = run_of(Path(source)) if task is None else None
    if root is not None:
        own = _config_of(root)
        return inference_config(source, call.lines(own)) if call.data is None else _on_rows(call, root, own)
    if call.data is None:
        return _asked_plainly(call, call.lines(), partial(inference_config, source, task=task))
    held_out = Call(**{**vars(call), "eval_data": call.data})
    name = DATA_CONFIG if task in (None, "jsonl") else task
    return _asked_plainly(call, held_out.lines(), partial(load_task_config, name))


def _on_rows(call: Call, root: Path, own: Config) -> Config:
    """The configuration of the run in `root` with other held-out rows, prompted as in the run."""
    assert isinstance(call.data, str)
    of_task = {key: value for key, value in call.values.items() if key.startswith("task.")}
    if own.task.name == "jsonl":  # keep the training rows, for few-shot examples
        config = _of_run(root, Call(reward=call.reward, values=call.values), own)
        return _only(config, task=config.task.model_copy(update={"eval_path": call.data}))
    metric = {"task.metric": own.task.metric} if isinstance(own.task, MetricSettings) else {}
    rows = Call(data=call.data, eval_data=call.data, values=metric | of_task)
    on_rows = load_config(rows.lines(), config_name=DATA_CONFIG)
    rest = {key: value for key, value in call.values.items() if key not in of_task}
    config = _of_run(root, Call(reward=call.reward, values=rest), own)
    if own.task.writes_prompts:
        return _only(config, task=on_rows.task, reward=on_rows.reward, prompt=on_rows.prompt)
    needs_more = any(part.needs_metadata for part in config.reward.parts.values())  # than an answer
    return _only(config, task=on_rows.task, reward=on_rows.reward if needs_more else config.reward)


def _of_run(root: Path, call: Call, own: Config) -> Config:
    return load_config(call.lines(own), config_name="config", config_dir=str(root))


def _only(config: Config, **sections: Any) -> Config:
    """With these sections, and no additional evaluation."""
    evaluation = config.evaluation.model_copy(update={"also": {}})
    return config.model_copy(update={"evaluation": evaluation, **sections})


def _custom_part(config: Config) -> str:
    """The name of the reward part that is a user's function."""
    names = [name for name, part in config.reward.parts.items() if part.name == "custom"]
    if len(names) != 1:
        raise ConfigError(f"reward: the run's own reward has {len(names)} functions, not one; leave reward out.")
    return names[0]


def _config_of(root: Path) -> Config:
    from rlvr.run.run_folder import RunFolder, read_config

    return read_config(RunFolder(root=root))
