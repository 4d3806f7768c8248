"""The verifiers library: its version, its environments, and two problems that we work around.

An environment's constructor replaces our SIGINT and SIGTERM handlers, and therefore only works in the main thread:
environments are created while `signal.signal` is disabled. A rubric logs exceptions of its functions and scores 0.0, so
that a broken function looks like a wrong answer: rubrics are wrapped to record them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

from rlvr.data.readers import quiet
from rlvr.errors import ConfigError, UserError
from rlvr.printable import ascii_text
from rlvr_verifiers.env import FAILURES, TOOL_ERRORS

VERSION = "0.3.1"
INSTALL = "pip install -e . -e plugins/rlvr-verifiers -c constraints.txt"


def library() -> Any:
    """The module `verifiers.legacy`, silent unless VF_LOG_LEVEL is set. UserError if missing or in another version."""
    try:
        found = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        found = "no version"
    if found != VERSION:
        raise UserError(f"task=verifiers needs verifiers {VERSION}, but {found} is installed: {INSTALL}.")
    module = importlib.import_module("verifiers.legacy")
    if "VF_LOG_LEVEL" not in os.environ:  # rlvr counts and reports failures
        logging.getLogger("verifiers").setLevel(logging.CRITICAL)
    return module


def make_environment(env_id: str, env_args: Mapping[str, Any]) -> Any:
    """The environment of `env_id`'s `load_environment`, with data sets and recorded rubrics. Works in any thread.

    ConfigError if it is missing, rejects the arguments, or gives no scores.
    """
    vf = library()
    arguments = {key: list(value) if isinstance(value, tuple) else value for key, value in env_args.items()}
    try:
        with quiet(), mock.patch.object(signal, "signal", lambda number, handler: signal.getsignal(number)):
            env = vf.load_environment(env_id, **arguments)
            env.build_dataset()
            env.build_eval_dataset()
    except Exception as error:  # the environment's own code
        cause, module = error.__cause__ or error, env_id.replace("-", "_").split("/")[-1]
        if isinstance(cause, UserError):
            raise cause from error
        if isinstance(cause, ModuleNotFoundError) and cause.name == module:
            raise ConfigError(
                f"task.env_id={env_id}: there is no such environment (module {module}); install it, e.g. with "
                f"vf-install {env_id} -p FOLDER."
            ) from error
        said = f"{type(cause).__name__}: {ascii_text(str(cause)[:300])}"
        raise ConfigError(
            f"task.env_args={arguments}: {env_id} cannot be made with them ({said}); change them."
        ) from error
    if not env.score_rollouts:
        raise ConfigError(f"task.env_id={env_id}: gives no scores (score_rollouts=False), so there is no reward.")
    _watch(vf.Rubric)
    for part in (env, *getattr(env, "envs", ())):
        if hasattr(part, "error_formatter"):
            part.error_formatter = functools.partial(_noted, part.error_formatter)
    return env


def _noted(formatted: Callable[[Exception], str], error: Exception) -> str:
    """The text the model gets for a tool's exception, which the episode counts."""
    TOOL_ERRORS.get([]).append(text := formatted(error))
    return text


def _watch(rubric: Any) -> None:
    """Record exceptions of rubric functions in the states of their episodes."""
    if hasattr(rubric, FAILURES):
        return
    setattr(rubric, FAILURES, True)
    score_one, score_all = rubric._call_individual_reward_func, rubric._call_group_reward_func

    async def watched_one(self: Any, func: Callable[..., Any], state: Any) -> float:
        return await score_one(self, _recording(func, [state], float), state)

    async def watched_all(self: Any, func: Callable[..., Any], states: Sequence[Any]) -> Sequence[float]:
        def one_each(values: Any) -> list[float]:
            numbers = [float(value) for value in values]
            if len(numbers) != len(states):
                raise ValueError(f"returned {len(numbers)} numbers for {len(states)} episodes")
            return numbers

        return await score_all(self, _recording(func, states, one_each), states)

    rubric._call_individual_reward_func, rubric._call_group_reward_func = watched_one, watched_all


def _recording(func: Callable[..., Any], states: Sequence[Any], check: Callable[[Any], Any]) -> Callable[..., Any]:
    """`func` with the same signature, because the library passes arguments by name."""

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
