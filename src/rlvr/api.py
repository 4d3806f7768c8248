"""The commands as functions: the same configuration, the same path, the same run folder.

run = rlvr.train(model="Qwen/Qwen2.5-0.5B-Instruct", data=[{"question": "1 + 1?", "answer": "2"}, ...], reward=fn)
run.metrics[-1]["eval/jsonl/accuracy"], run.rollouts()[0].turns[0].completion
rlvr.evaluate(run, samples_per_example=4)["jsonl"].metrics
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rlvr.config.catalog import sections
from rlvr.config.compose import DATA_CONFIG, DEFAULT_CONFIG, load_config, load_task_config
from rlvr.config.lines import override_lines
from rlvr.errors import ConfigError, UserError
from rlvr.tracking.files import write_atomically, writing
from rlvr.tracking.jsonl import read_metrics
from rlvr.tracking.rollouts import EpisodeRecord, read_rollouts, rollouts_path

if TYPE_CHECKING:
    from rlvr.config.schema import Config
    from rlvr.evaluation.summary import EvaluationResult

Rows = Iterable[Mapping[str, Any]]
Data = Rows | str | Path
"""Rows with `question` and `answer`, or a file of them: `.jsonl` or `.json`, either also as `.gz`."""

RewardFunction = Callable[..., float | None]
"""Called with those of prompt, completion, answer and metadata that it names; None: no answer could be read."""

Values = Mapping[str, Any]

DATA_FOLDER = Path("runs") / "data"
SCRATCH = ("scratch", "scratch_bpe")
ALL = 1_000_000_000
"""More held-out examples than anybody has."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder and what came of it."""

    folder: Path
    num_steps: int
    finished: bool
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict, repr=False)
    """Those that the run was given in Python, by the name that config.yaml has for them."""

    @property
    def final(self) -> Path:
        """The trained model, in Hub format."""
        return self.folder / "final"

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.jsonl, one a step; line 0 is the evaluation before the first update."""
        return read_metrics(self.folder / "metrics.jsonl")

    def rollouts(self, step: int | None = None) -> list[EpisodeRecord]:
        """What was sampled at a step and how it was trained on, an episode each; None: the last step that was written.

        Raises UserError if nothing was written at that step (`tracker.rollouts_every`).
        """
        folder = self.folder / "rollouts"
        written = sorted(int(path.name[5:].partition(".")[0]) for path in folder.glob("step_*.jsonl.gz"))
        chosen = written[-1] if step is None and written else step
        if chosen not in written:
            there = f"there are those of the steps {', '.join(map(str, written))}" if written else "there are none"
            raise UserError(
                f"{folder} has no rollouts{'' if step is None else f' of step {step}'}: {there}; "
                "tracker.rollouts_every says when they are written."
            )
        return read_rollouts(rollouts_path(folder, chosen))


def train(
    *,
    model: str | Path | Values | None = None,
    data: Data | Callable[..., Any] | None = None,
    eval_data: Data | None = None,
    reward: RewardFunction | str | Values | None = None,
    config_name: str | None = None,
    config_dir: str | Path | None = None,
    **overrides: Any,
) -> Run:
    """Run `rlvr train`.

    With `resume=True` and nothing else but `run_dir`, values, and the functions that the run was given, the run goes on
    with its own configuration; otherwise repeat the call that started it. Ctrl-C finishes the step, saves, and raises
    KeyboardInterrupt; a second one does not wait.

    Args:
        model: Folder or Hub id, `scratch` or `scratch_bpe`; None: the configuration's.
        data: Rows, a file of them, or a function that yields them (task=generator); None: the configuration's task.
            Rows are kept in `runs/data/`, so that the run can be resumed and repeated.
        eval_data: Held-out rows or a file of them; None: a tenth of `data`, chosen by hash.
        reward: Your function (it runs in a killable process, asked with prompt=plain unless you say otherwise), a
            choice of the group, or None: what follows the task.
        config_name: As `--config-name`; None: `gsm8k` with `data`, else `rpn`.
        config_dir: As `--config-dir`.
        overrides: Values by section or key: `seed=1`, `algorithm="dapo"`, `trainer={"max_steps": 5}`,
            `**{"trainer.max_steps": 5}`; `model` and `reward` may be such mappings, too.

    Raises UserError for everything that is the caller's to mend; its text is one sentence.
    """
    from rlvr.build import train as run_training

    own = (
        None
        if config_name or config_dir or _chooses(model, data, eval_data, reward, overrides)
        else _resumed(overrides)
    )
    lines, functions = _overrides(model, data, eval_data, reward, overrides, own=own)
    if own is not None:
        config = load_config(lines, config_name="config", config_dir=str(overrides["run_dir"]))
    else:
        name = config_name or (DEFAULT_CONFIG if data is None else DATA_CONFIG)
        config = load_config(lines, config_name=name, config_dir=None if config_dir is None else str(config_dir))
    result = _in_a_thread(lambda stopped: run_training(config, stopped, functions))
    folder = result.folder.absolute()
    return Run(folder=folder, num_steps=result.num_steps, finished=result.finished, functions=functions)


def evaluate(
    model: Run | str | Path,
    *,
    task: str | None = None,
    data: Data | None = None,
    reward: RewardFunction | str | Values | None = None,
    num_examples: int | None = None,
    samples_per_example: int | None = None,
    **overrides: Any,
) -> dict[str, EvaluationResult]:
    """Run `rlvr eval`: the result of each evaluation set by the task's name.

    Args:
        model: A run, or a folder or Hub id.
        task: The configuration or task to try it on; None: the run's own, or with `data` those rows.
        data: Rows, or a file of them, all of which are held-out examples; they are asked as the run asked its own.
        reward: As in `train`. A function that a run was given in Python is given here again, unless `model` is the
            `Run`.
        num_examples: None: `evaluation.num_examples`, or all of `data`.
        samples_per_example: None: `evaluation.samples_per_example`.
        overrides: As in `train`.

    Raises UserError for everything that is the caller's to mend.
    """
    from rlvr.build import evaluate_all, open_inference

    source = str(model.folder if isinstance(model, Run) else model)
    chosen = {
        "num_examples": num_examples or (None if data is None else ALL),
        "samples_per_example": samples_per_example,
    }
    values = {f"evaluation.{key}": value for key, value in chosen.items() if value is not None} | overrides
    config, functions = _evaluated(source, task, data, reward, values)
    if isinstance(model, Run):
        functions = {**model.functions, **functions}

    def work(stopped: Callable[[], bool]) -> dict[str, EvaluationResult]:
        def on_progress(done: int, total: int) -> None:
            if stopped():
                raise _StoppedError

        with open_inference(source, config, functions) as inference:
            for note in inference.tasks.notes:
                print(note, file=sys.stderr)
            evaluation = evaluate_all(
                inference.config,
                inference.tasks.eval_sets,
                inference.policy,
                inference.engine,
                inference.max_context_tokens,
                on_progress,
            )
            return asyncio.run(evaluation)

    return _in_a_thread(work)


# ------------------------------------------------------------------------------------------ from Python to settings


def _overrides(
    model: str | Path | Values | None,
    data: Data | Callable[..., Any] | None,
    eval_data: Data | None,
    reward: RewardFunction | str | Values | None,
    overrides: Values,
    *,
    own: Config | None = None,
) -> tuple[list[str], dict[str, Callable[..., Any]]]:
    """The lines of a command, and the functions that they name. `own`: of a run, whose choices are made already."""
    values: dict[str, Any] = {}
    functions: dict[str, Callable[..., Any]] = {}
    if isinstance(model, str) and model in SCRATCH:
        values["model"] = model
    elif isinstance(model, Mapping):
        values |= {f"model.{key}": value for key, value in model.items()}
    elif model is not None:
        values |= {"model": "hf", "model.name_or_path": str(model)}
    if callable(data):
        functions[path := _import_path(data)] = data
        values |= {"task": "generator", "task.source": path}
    elif data is not None:
        values |= {"task": "jsonl", "task.path": _file(data, "data")}
    if eval_data is not None:
        values["task.eval_path"] = _file(eval_data, "eval_data")
    if callable(reward):
        functions[path := _import_path(reward)] = reward
        if own is None:
            plain = {} if isinstance(overrides.get("prompt"), str) else {"prompt": "plain"}
            values |= {"reward": "custom", "reward.parts.custom.function": path} | plain
        else:
            values[f"reward.parts.{_custom_part(own)}.function"] = path
    elif isinstance(reward, Mapping):
        values |= {f"reward.{key}": value for key, value in reward.items()}
    elif reward is not None:
        values["reward"] = reward
    return [*override_lines(values), *override_lines(overrides)], functions


def _chooses(model: object, data: object, eval_data: object, reward: object, overrides: Values) -> bool:
    """Whether the call chooses in a group, which the configuration of a run cannot do any more."""
    given = {"model": model, "data": data, "eval_data": eval_data, "reward": reward}
    values = {key: value for key, value in given.items() if value is not None and not isinstance(value, Mapping)}
    if callable(reward):
        del values["reward"]
    return bool(values) or any(key in sections() and isinstance(value, str) for key, value in overrides.items())


def _resumed(overrides: Values) -> Config | None:
    """The configuration of the run to go on with, if there is one."""
    from rlvr.training.run_folder import RunFolder, read_config

    folder = RunFolder(root=Path(str(overrides.get("run_dir"))))
    return read_config(folder) if overrides.get("resume") and folder.config.is_file() else None


def _custom_part(config: Config) -> str:
    """The name of the reward's part that is a function of the user's."""
    from rlvr.config.schema import CustomPart, PartsReward

    parts = config.reward.parts if isinstance(config.reward, PartsReward) else {}
    names = [name for name, part in parts.items() if isinstance(part, CustomPart)]
    if len(names) != 1:
        raise ConfigError(
            f"reward: the run was made with {len(names)} reward functions and not with one; leave it out."
        )
    return names[0]


def _evaluated(
    source: str, task: str | None, data: Data | None, reward: RewardFunction | str | Values | None, values: Values
) -> tuple[Config | None, dict[str, Callable[..., Any]]]:
    """The settings to evaluate with: those of the run as far as there is one, and the held-out rows in `data`."""
    from rlvr.build import inference_config, run_of
    from rlvr.config.schema import GeneratorTask, HubTask, JsonlTask, MixTask, RpnTask
    from rlvr.training.run_folder import RunFolder, read_config

    root = run_of(Path(source)) if task is None else None
    own = None if root is None else read_config(RunFolder(root=root))
    if data is None or own is None:
        lines, functions = _overrides(None, data, data, reward, values, own=own)
        return inference_config(source, lines, task=task or (None if data is None else "jsonl")), functions
    if isinstance(own.task, JsonlTask):  # what it was trained on stays: examples to show come from there
        lines, functions = _overrides(None, None, None, reward, values, own=own)
        config = inference_config(source, lines)
        rows = config.task.model_copy(update={"eval_path": _file(data, "data")})
        return _only(config, task=rows), functions
    on_task = {"task.metric": own.task.metric} if isinstance(own.task, HubTask | GeneratorTask) else {}
    on_task |= {key: value for key, value in values.items() if key.startswith("task.")}
    other = load_task_config("jsonl", _overrides(None, data, data, None, on_task)[0])
    rest = {key: value for key, value in values.items() if key not in on_task}
    lines, functions = _overrides(None, None, None, reward, rest, own=own)
    config = inference_config(source, lines)
    if isinstance(own.task, RpnTask | MixTask):
        return _only(config, task=other.task, reward=other.reward, prompt=other.prompt), functions
    return _only(config, task=other.task, **({} if _scores_any_task(own) else {"reward": other.reward})), functions


def _only(config: Config, **sections: Any) -> Config:
    """With these sections, and nothing evaluated beside."""
    evaluation = config.evaluation.model_copy(update={"also": {}})
    return config.model_copy(update={"evaluation": evaluation, **sections})


def _scores_any_task(config: Config) -> bool:
    from rlvr.config.schema import FinqaProgramPart, PartsReward, ReasoningGymPart

    parts = config.reward.parts.values() if isinstance(config.reward, PartsReward) else ()
    return not any(isinstance(part, FinqaProgramPart | ReasoningGymPart) for part in parts)


# ------------------------------------------------------------------------------------------------------------ data


def _file(data: Data, name: str) -> str:
    """The file of the rows: named by its content, so that equal rows are one file."""
    if isinstance(data, str | Path):
        return str(Path(data).expanduser().absolute())
    lines = [_line(row, f"{name}, row {number}") for number, row in enumerate(data, start=1)]
    if not lines:
        raise ConfigError(f"{name} has no rows: give some, each with a question and an answer.")
    content = "".join(lines).encode()
    path = (DATA_FOLDER / f"{hashlib.sha256(content).hexdigest()[:16]}.jsonl").absolute()
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


def _import_path(function: Callable[..., Any]) -> str:
    """`my_rewards:shorter`; what no import would find, such as a lambda, has a name of the same form."""
    module = getattr(function, "__module__", None) or "given"
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{_identifiers(module)}:{_identifiers(name)}"


def _identifiers(text: str) -> str:
    """`outer.<locals>.inner` -> `outer._locals_.inner`"""
    return re.sub(r"^(?=[0-9.])", "_", re.sub(r"[^A-Za-z0-9_.]", "_", text))


# ---------------------------------------------------------------------------------------------------------- threads


class _StoppedError(Exception):
    """Ends an evaluation."""


Result = TypeVar("Result")


def _in_a_thread(work: Callable[[Callable[[], bool]], Result]) -> Result:
    """`work(stopped)` in a thread of its own: notebooks run inside an event loop, where no second one can start, and
    Ctrl-C reaches this thread, which can then ask the other one to finish what it is at."""
    done: Future[Result] = Future()
    stop = threading.Event()

    def run() -> None:
        try:
            done.set_result(work(stop.is_set))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="rlvr", daemon=True).start()
    try:
        return done.result()
    except KeyboardInterrupt:
        print("rlvr: stopping after this step; once more does not wait for it", file=sys.stderr)
        stop.set()
        wait([done])
        raise
