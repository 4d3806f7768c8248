"""`rlvr train`, `plan`, `doctor`, `audit`, `eval` and `replay` as functions."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rlvr.api.settings import (
    Call,
    Data,
    Functions,
    RewardFunction,
    Values,
    data_file,
    evaluation,
    import_path,
    training,
)
from rlvr.errors import UserError
from rlvr.lines import override_lines
from rlvr.progress import progress
from rlvr.tracking.jsonl import read_metrics
from rlvr.tracking.rollouts import EpisodeRecord, read_rollouts, rollouts_path

if TYPE_CHECKING:
    from rlvr.app.audit.judge import Audit
    from rlvr.app.plan import Plan
    from rlvr.app.replay import Replay
    from rlvr.config import Config
    from rlvr.evaluation.summary import EvaluationResult
    from rlvr.tracking.checks import Check


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder and its results."""

    folder: Path
    num_steps: int
    finished: bool
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict, repr=False)
    """Functions given in Python, by their names in config.yaml."""

    @property
    def final(self) -> Path:
        """The trained model, in Hub format."""
        return self.folder / "final"

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.jsonl, one per step; line 0 is the evaluation before the first update."""
        return read_metrics(self.folder / "metrics.jsonl")

    def rollouts(self, step: int | None = None) -> list[EpisodeRecord]:
        """The recorded episodes of a step: samples and training data; None: the last recorded step.

        Raises UserError if the step was not recorded (`tracker.rollouts_every`).
        """
        folder = self.folder / "rollouts"
        written = sorted(int(path.name[5:].partition(".")[0]) for path in folder.glob("step_*.jsonl.gz"))
        chosen = max(written, default=None) if step is None else step
        if chosen not in written:
            raise UserError(f"{folder} has rollouts of steps {written}, not {step}: tracker.rollouts_every says which.")
        return read_rollouts(rollouts_path(folder, chosen))


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _errors_from_here(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A UserError has a traceback of the caller's line and this one: its sentence is about the caller's arguments."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            raise error.with_traceback(None) from None

    return call


@_errors_from_here
def train(
    *,
    model: str | Path | Values | None = None,
    data: Data | Callable[..., Any] | None = None,
    eval_data: Data | None = None,
    reward: RewardFunction | str | Values | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    config_name: str | None = None,
    config_dir: str | Path | None = None,
    **overrides: Any,
) -> Run:
    """Run `rlvr train`.

    To resume a run, repeat the call with `run_dir` and `resume=True`; or pass only these and the run's Python functions
    to use the run's own configuration. Ctrl-C finishes the step, saves, and raises KeyboardInterrupt; a second one does
    not wait.

    Args:
        model: Folder or Hub id, `scratch` or `scratch_bpe`, or values as in `overrides`; None: the configuration's.
        data: Rows, a file of them, or a function that yields them (task=generator); None: the configuration's task.
            Rows are kept in `runs/data/`, so that the run can be resumed and repeated.
        eval_data: Held-out rows or a file of them; None: a tenth of `data`, chosen by hash.
        reward: Your function (it runs in a killable process; implies prompt=plain unless another is chosen), a choice
            of the group, values as in `overrides`, or None: the task's reward.
        tools: Typed functions with docstrings that the model of a multi-hop task may call, besides the task's own.
        config_name: As `--config-name`; None: `gsm8k` with `data`, else `rpn`.
        config_dir: As `--config-dir`.
        overrides: Choices and values: `seed=1`, `algorithm="dapo"`, `trainer={"max_steps": 5}`,
            `algorithm={"name": "dapo", "clip_high": 0.3}`, `**{"trainer.max_steps": 5}`.

    Raises UserError, one sentence, for errors that the caller can correct.
    """
    from rlvr.app.train import train as run_training

    values = {"model": model, "data": data, "eval_data": eval_data, "reward": reward, "tools": tools}
    config, functions = _to_train(config_name, config_dir, **values, values=overrides)
    result = in_a_thread(lambda stopped: run_training(config, stopped, functions))
    return Run(
        folder=result.folder.absolute(),
        num_steps=result.num_steps,
        finished=result.finished,
        functions=functions,
    )


@_errors_from_here
def evaluate(
    model: Run | str | Path,
    *,
    task: str | None = None,
    data: Data | None = None,
    reward: RewardFunction | str | Values | None = None,
    num_examples: int | None = None,
    samples_per_example: int | None = None,
    output: str | Path | None = None,
    **overrides: Any,
) -> dict[str, EvaluationResult]:
    """Run `rlvr eval`: results by task name.

    Args:
        model: A run, a folder or Hub id, or an endpoint as `openai:http://127.0.0.1:8000/v1#NAME`.
        task: The configuration or task; None: the run's own, or with `data` those rows.
        data: Held-out rows, or a file of them; a run's model is prompted as in the run.
        reward: As in `train`. A Python function of the run must be passed again, unless `model` is the `Run` itself.
        num_examples: None: `evaluation.num_examples`, or all of `data`.
        samples_per_example: None: `evaluation.samples_per_example`.
        output: A file of the records, appended to during the evaluation; the same call resumes it.
        overrides: As in `train`.

    Raises UserError, one sentence, for errors that the caller can correct.
    """
    from rlvr.run.evaluation import evaluate_into
    from rlvr.run.inference import open_inference

    source = str(model.folder if isinstance(model, Run) else model)
    wanted = "all" if num_examples is None and data is not None else num_examples
    chosen = {"evaluation.num_examples": wanted, "evaluation.samples_per_example": samples_per_example}
    values = {key: value for key, value in chosen.items() if value is not None} | overrides
    call = Call(data=data_file(data, "data"), reward=reward, values=values)
    config = evaluation(call, source, task)
    functions = {**(model.functions if isinstance(model, Run) else {}), **call.functions}

    def work(stopped: Stopped) -> dict[str, EvaluationResult]:
        def on_progress(done: int, total: int) -> None:
            if stopped():
                raise _StoppedError
            show(done, total)

        with open_inference(source, config, functions, reads="held_out") as inference:
            for line in inference.notes:
                note(line)
            path = Path(output) if output else None
            with progress("evaluating") as show:
                return evaluate_into(inference, path, on_progress=on_progress, on_note=note)

    note = partial(print, file=sys.stderr)
    return in_a_thread(work)


def plan(
    *,
    gpus: int | None = None,
    servers: int = 0,
    mean_tokens: float | None = None,
    seconds: float = 10.0,
    config_name: str | None = None,
    config_dir: str | Path | None = None,
    **arguments: Any,
) -> Plan:
    """Run `rlvr plan`: what `train` with these `arguments` will take. `rlvr plan --help` explains the others.

    Raises UserError, one sentence, for errors that the caller can correct.
    """
    from rlvr.app.plan import plan as make_plan

    given = {key: arguments.pop(key) for key in ("model", "data", "eval_data", "reward", "tools") if key in arguments}
    config, functions = _to_train(config_name, config_dir, **given, values=arguments)
    options = {"gpus": gpus, "servers": servers, "mean_tokens": mean_tokens, "seconds": seconds}
    return in_a_thread(lambda stopped: make_plan(config, functions=functions, **options))


@_errors_from_here
def audit(
    target: str | RewardFunction,
    *,
    data: Data | None = None,
    task: str | None = None,
    num_examples: int = 50,
    seconds: float = 60.0,
    threshold: float = 0.0,
    config_dir: str | Path | None = None,
    **overrides: Any,
) -> Audit:
    """Run `rlvr audit` on a task, or on a function with `data` or `task`; `rlvr audit --help` explains the others.

    `.alarms` are the kinds of wrong texts that are paid, `.refused` those of right ones that are not. Raises UserError,
    one sentence, for errors that the caller can correct.
    """
    from rlvr.app.audit.run import Options, audit_config
    from rlvr.app.audit.run import audit as run_audit

    functions = {import_path(target): target} if callable(target) else {}
    name = target if isinstance(target, str) else import_path(target)
    folder = None if config_dir is None else str(config_dir)
    where = {"data": data_file(data, "data"), "task": task, "config_dir": folder}
    config = audit_config(name, override_lines(overrides), **where)
    options = Options(num_examples=num_examples, seconds=seconds, threshold=threshold)
    return in_a_thread(lambda stopped: run_audit(config, target=name, options=options, functions=functions))


@_errors_from_here
def doctor(
    model: Run | str | Path,
    *,
    task: str | None = None,
    data: Data | None = None,
    reward: RewardFunction | str | Values | None = None,
    **overrides: Any,
) -> list[Check]:
    """Run `rlvr doctor`: every check in order, with `name`, `status` (ok, fail, skipped), `says`, `evidence`, `remedy`.

    The arguments are those of `evaluate`, but `data` are rows to train on. Raises UserError if the model or the data
    cannot be loaded.
    """
    from rlvr.app.doctor.doctor import examine, trained_from

    source = str(model.folder if isinstance(model, Run) else model)
    call = Call(model=None if data is None else source, data=data_file(data, "data"), reward=reward, values=overrides)
    functions = {**(model.functions if isinstance(model, Run) else {}), **call.functions}
    config = evaluation(call, source, task) if data is None else training(call, task, None)
    config = trained_from(source, config)
    with progress("checking") as show:
        return in_a_thread(lambda stopped: examine(config, functions, show))


@_errors_from_here
def replay(
    run: Run | str | Path,
    step: int,
    *,
    what_if: Mapping[str, Any] | None = None,
    influence: bool = False,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> Replay:
    """Run `rlvr replay`: a step of a run once more, which is only read.

    Args:
        run: A run or its folder.
        step: As in `metrics.jsonl`.
        what_if: Changes of the update, as `{"drop": 3}`, `{"reward.3": 0.0, "trainer.learning_rate": 1e-4}`.
        influence: Also estimate what each episode did to the update.
        functions: The run's Python functions by their names in config.yaml; None: those of the `Run`.

    Raises UserError, one sentence, for errors that the caller can correct.
    """
    from rlvr.app.replay import replay as make_step

    own = dict(functions or (run.functions if isinstance(run, Run) else {}))
    folder = str(run.folder if isinstance(run, Run) else run)
    changes = override_lines(what_if or {})
    return in_a_thread(
        lambda stopped: make_step(folder, step, changes=changes, influence=influence, functions=own, stopped=stopped)
    )


def _to_train(config_name: str | None, config_dir: str | Path | None, **values: Any) -> tuple[Config, Functions]:
    """The configuration of a call of `train`, and the functions in it."""
    data, eval_data = values.get("data"), data_file(values.get("eval_data"), "eval_data")
    values |= {"data": data if callable(data) else data_file(data, "data"), "eval_data": eval_data}
    call = Call(**values)
    return training(call, config_name, config_dir), call.functions


class _StoppedError(Exception):
    """Ends an evaluation from inside."""


Stopped = Callable[[], bool]


def in_a_thread(work: Callable[[Stopped], Result]) -> Result:
    """Call `work(stopped)` in its own thread; returns its result or raises its error.

    A notebook's thread already has a running event loop, and no second one can start there. Ctrl-C reaches the waiting
    thread, which asks the other to end (`stopped`), waits for it, and raises KeyboardInterrupt. A second Ctrl-C does
    not wait.
    """
    done: Future[Result] = Future()
    stop = threading.Event()

    def run() -> None:
        try:
            done.set_result(work(stop.is_set))
        except BaseException as error:
            done.set_exception(error)

    try:
        threading.Thread(target=run, name="rlvr", daemon=True).start()
        return done.result()
    except KeyboardInterrupt:
        print("rlvr: stopping after this step; once more stops at once", file=sys.stderr, flush=True)
        stop.set()
        wait([done])
        raise
