"""`rlvr train` as a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlvr.cli.calls import Data, RewardFunction, Values, training_call
from rlvr.cli.functions import in_a_thread
from rlvr.errors import errors_from_here
from rlvr.run.result import Run


@errors_from_here
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
    from rlvr.commands.train.body import train as run_training

    values = {"model": model, "data": data, "eval_data": eval_data, "reward": reward, "tools": tools}
    config, functions = training_call(config_name, config_dir, **values, values=overrides)
    result = in_a_thread(lambda stopped: run_training(config, stopped, functions))
    return Run(
        folder=result.folder.absolute(),
        num_steps=result.num_steps,
        finished=result.finished,
        functions=functions,
    )
