"""The commands as functions: the same configuration, the same path, the same run folder.

run = rlvr.train(model="Qwen/Qwen2.5-0.5B-Instruct", data=[{"question": "1 + 1?", "answer": "2"}, ...], reward=fn)
run.metrics[-1]["eval/jsonl/accuracy"]
rlvr.evaluate(run, samples_per_example=4)
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rlvr.config.compose import DATA_CONFIG, DEFAULT_CONFIG, load_config
from rlvr.errors import ConfigError
from rlvr.tracking.files import write_atomically
from rlvr.tracking.jsonl import read_metrics

if TYPE_CHECKING:
    from rlvr.evaluation.summary import EvaluationResult

RewardFunction = Callable[..., float | None]
"""Called with those of prompt, completion, answer and metadata that it names; None: no answer could be read."""

Rows = Sequence[Mapping[str, Any]]
DATA_FOLDER = Path("runs") / "data"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder and what came of it."""

    folder: Path
    num_steps: int
    finished: bool

    @property
    def final(self) -> Path:
        """The trained model, in Hub format."""
        return self.folder / "final"

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.jsonl, one a step."""
        return read_metrics(self.folder / "metrics.jsonl")


def train(
    *,
    model: str | Path | None = None,
    data: Rows | str | Path | None = None,
    eval_data: Rows | str | Path | None = None,
    reward: RewardFunction | str | None = None,
    config_name: str | None = None,
    config_dir: str | None = None,
    **overrides: Any,
) -> Run:
    """Run `rlvr train`.

    Args:
        model: Folder or Hub id; None: the configuration's.
        data: Rows with `question` and `answer`, or a file of them; None: the configuration's task. Rows are kept in
            `runs/data/`, so that the run can be resumed and repeated.
        eval_data: Held-out rows; None: a tenth of `data`, chosen by hash.
        reward: Your function (it runs in a killable process), a choice of the group, or None: what follows the task.
        config_name: As `--config-name`; None: `gsm8k` with `data`, else `rpn`.
        overrides: Values by key or section: `seed=1`, `trainer={"max_steps": 5}`, `**{"trainer.max_steps": 5}`.

    Raises UserError for everything that is the caller's to mend; its text is one sentence.
    """
    from rlvr.build import train as run_training

    lines, functions = _overrides(model, data, eval_data, reward, overrides)
    name = config_name or (DEFAULT_CONFIG if data is None else DATA_CONFIG)
    config = load_config(lines, config_name=name, config_dir=config_dir)
    result = _outside_a_loop(lambda: run_training(config, functions=functions))
    return Run(folder=result.folder, num_steps=result.num_steps, finished=result.finished)


def evaluate(
    model: Run | str | Path,
    *,
    task: str | None = None,
    data: Rows | str | Path | None = None,
    reward: RewardFunction | str | None = None,
    num_examples: int | None = None,
    samples_per_example: int | None = None,
    **overrides: Any,
) -> dict[str, EvaluationResult]:
    """Run `rlvr eval`: the result of each evaluation set by the task's name.

    `model` is a run, or a folder or Hub id; `task` the configuration or task to try it on (None: the run's own). With
    `data`, its rows are the held-out ones. A reward function that the run was given in Python is given here again.
    """
    from rlvr.build import evaluate_all, open_inference

    source = str(model.folder if isinstance(model, Run) else model)
    lines, functions = _overrides(None, data, data, reward, overrides)
    chosen = {"num_examples": num_examples, "samples_per_example": samples_per_example}
    lines += [f"evaluation.{key}={value}" for key, value in chosen.items() if value is not None]

    def run() -> dict[str, EvaluationResult]:
        with open_inference(source, lines, task=task, functions=functions) as inference:
            return asyncio.run(
                evaluate_all(
                    inference.config,
                    inference.tasks.eval_sets,
                    inference.policy,
                    inference.engine,
                    inference.max_context_tokens,
                )
            )

    return _outside_a_loop(run)


def _overrides(
    model: str | Path | None,
    data: Rows | str | Path | None,
    eval_data: Rows | str | Path | None,
    reward: RewardFunction | str | None,
    overrides: Mapping[str, Any],
) -> tuple[list[str], dict[str, RewardFunction]]:
    lines, functions = [], {}
    if model is not None:
        lines += ["model=hf", f"model.name_or_path={_quoted(str(model))}"]
    if data is not None:
        lines += ["task=jsonl", f"task.path={_quoted(_file(data))}"]
    if eval_data is not None:
        lines += [f"task.eval_path={_quoted(_file(eval_data))}"]
    if isinstance(reward, str):
        lines += [f"reward={reward}"]
    elif reward is not None:
        path = _import_path(reward)
        functions[path] = reward
        lines += ["reward=custom", f"reward.parts.custom.function={path}"]
        lines += [] if "prompt" in overrides else ["prompt=plain"]
    return lines + [line for key, value in overrides.items() for line in _lines(key, value)], functions


def _lines(key: str, value: Any) -> list[str]:
    """`trainer={"max_steps": 5}` -> `["trainer.max_steps=5"]`; lists and texts as Hydra reads them."""
    if isinstance(value, Mapping) and value:
        return [line for inner, item in value.items() for line in _lines(f"{key}.{inner}", item)]
    return [f"{key}={_quoted(value) if isinstance(value, str) else json.dumps(value)}"]


def _quoted(text: str) -> str:
    """A text in Hydra's quotes; a plain word as it is, for the choice of a group."""
    if re.fullmatch(r"[A-Za-z_][\w./-]*", text) and text not in ("true", "false", "null", "nan", "inf"):
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _file(data: Rows | str | Path) -> str:
    """The file of the rows: named by its content, so that equal rows are one file."""
    if isinstance(data, str | Path):
        return str(Path(data).absolute())
    try:
        text = "".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in data)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"data: every row must be a mapping that JSON can hold ({error}).") from None
    content = text.encode("utf-8", errors="surrogatepass")
    path = (DATA_FOLDER / f"{hashlib.sha256(content).hexdigest()[:16]}.jsonl").absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return str(path)


def _import_path(function: RewardFunction) -> str:
    """`my_rewards:shorter`; a lambda or an inner function gets a name of the same form."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", type(function).__name__)
    return f"{module or 'given'}:{re.sub(r'[^A-Za-z0-9_.]', '_', name)}"


Result = TypeVar("Result")


def _outside_a_loop(work: Callable[[], Result]) -> Result:
    """Notebooks run inside an event loop, where no second one can start: there the work gets a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(work).result()
