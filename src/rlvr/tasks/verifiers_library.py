"""The verifiers library: imported only where it is used, and kept from doing what would break a run.

An environment's constructor installs handlers of SIGINT and SIGTERM in the place of ours, and because of that works in
the main thread alone. A rubric logs what its functions raise and gives 0.0 for it, so that a broken function looks like
a wrong answer. Here environments are made while `signal.signal` does nothing, and every rubric is watched.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from rlvr.errors import ConfigError, UserError
from rlvr.tasks.rows import ascii_text

VERSION = "0.3.1"
"""The last one with `load_environment`, `ToolEnv`, `Rubric`, `vf-install` and their `vf-eval`."""

FAILURES = "rlvr_failures"
"""Key of a library's state: `(name of the function, exception)` for each function of the rubric that raised."""


def library() -> Any:
    """The module `verifiers.legacy`. UserError if it is not installed, or another version is.

    It is silent unless VF_LOG_LEVEL is set: what goes wrong is counted and said by rlvr.
    """
    install = "pip install 'rlvr[verifiers]'"
    try:
        found = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"task=verifiers needs the verifiers library, which is not installed: {install}.") from None
    if found != VERSION:
        raise UserError(f"task=verifiers needs verifiers {VERSION}, but {found} is installed: {install}.")
    module = importlib.import_module("verifiers.legacy")
    if "VF_LOG_LEVEL" not in os.environ:
        logging.getLogger("verifiers").setLevel(logging.CRITICAL)
    return module


def make_environment(env_id: str, env_args: Mapping[str, Any]) -> Any:
    """The environment that `env_id`'s `load_environment` makes, with its data sets, its rubrics watched. In any thread.

    Raises:
        ConfigError: there is no such environment, it does not take the arguments, or it gives no scores.
    """
    vf = library()
    import datasets

    arguments = {key: list(value) if isinstance(value, tuple) else value for key, value in env_args.items()}
    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        with mock.patch.object(signal, "signal", lambda number, handler: signal.getsignal(number)):
            env = vf.load_environment(env_id, **arguments)
            env.build_dataset()
            env.build_eval_dataset()
    except Exception as error:  # the environment's own code
        raise _explained(env_id, arguments, error) from error
    finally:
        if shown:
            datasets.enable_progress_bars()
    if not env.score_rollouts:
        raise ConfigError(f"task.env_id={env_id}: gives no scores (score_rollouts=False), so nothing could be learnt.")
    for rubric in _rubrics(env):
        _watch(rubric)
    return env


def scores_groups(env: Any) -> bool:
    """Whether some reward is given to the episodes of a group together."""
    return env.requires_group_rollouts or any(scores_groups(part) for part in getattr(env, "envs", ()))


def _explained(env_id: str, arguments: Mapping[str, Any], error: Exception) -> UserError:
    cause = error.__cause__ or error
    if isinstance(cause, UserError):
        return cause
    module = env_id.replace("-", "_").split("/")[-1]
    if isinstance(cause, ModuleNotFoundError) and cause.name == module:
        return ConfigError(
            f"task.env_id={env_id}: there is no such environment (module {module}); install it, e.g. with vf-install "
            f"{env_id} -p FOLDER."
        )
    said = f"{type(cause).__name__}: {ascii_text(str(cause)[:300])}"
    return ConfigError(f"task.env_args={dict(arguments)}: {env_id} cannot be made with them ({said}); change them.")


def _rubrics(env: Any) -> Iterator[Any]:
    """All rubrics of an environment: those inside a group, and those of the environments inside one."""
    waiting = [env.rubric, *(rubric for part in getattr(env, "envs", ()) for rubric in _rubrics(part))]
    while waiting:
        rubric = waiting.pop()
        waiting += getattr(rubric, "rubrics", ())
        yield rubric


def _watch(rubric: Any) -> None:
    """Have what a rubric's functions raise written into the state of the episodes that they should have scored."""
    if FAILURES in vars(rubric):
        return  # two environments share it
    setattr(rubric, FAILURES, True)
    score_one, score_all = rubric._call_individual_reward_func, rubric._call_group_reward_func

    async def watched_one(func: Callable[..., Any], state: Any) -> float:
        return await score_one(_recording(func, [state], float), state)

    async def watched_all(func: Callable[..., Any], states: Sequence[Any]) -> Sequence[float]:
        def one_each(values: Any) -> list[float]:
            numbers = [float(value) for value in values]
            if len(numbers) != len(states):
                raise ValueError(f"returned {len(numbers)} numbers for {len(states)} episodes")
            return numbers

        return await score_all(_recording(func, states, one_each), states)

    rubric._call_individual_reward_func, rubric._call_group_reward_func = watched_one, watched_all


def _recording(func: Callable[..., Any], states: Sequence[Any], check: Callable[[Any], Any]) -> Callable[..., Any]:
    """`func`, with the same signature for the library, which fills in arguments by their names."""

    @functools.wraps(func)
    async def recorded(*args: Any, **kwargs: Any) -> Any:
        try:
            value = func(*args, **kwargs)
            return check(await value if inspect.isawaitable(value) else value)
        except Exception as error:
            for state in states:
                state.setdefault(FAILURES, []).append((getattr(func, "__name__", repr(func)), error))
            raise

    return recorded
