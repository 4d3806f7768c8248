"""The user's own function as a part of a reward, run in the processes of a `VerifierPool`.

    def my_reward(prompt: str, completion: str, answer: str, metadata: dict, **settings) -> float | None

It returns one finite number, or None for a completion that it cannot read (`invalid`). It need not name the parameters
that it does not use.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import math
import numbers
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlvr.errors import ConfigError
from rlvr.rewards.base import Grade, RewardError
from rlvr.rewards.pool import VerifierPool, packed_function
from rlvr.rewards.pool_worker import load
from rlvr.types import Attempt

OFFERED = ("prompt", "completion", "answer", "metadata")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class CustomPart:
    """The value of a function; `function` is a path `package.module:name` or a callable.

    The current directory is importable. An exception, a crash or a timeout of the function is `error`; a value that is
    not one finite number is a RewardError, which ends the run.
    """

    def __init__(
        self,
        *,
        pool: VerifierPool,
        function: str | Callable[..., float | None],
        settings: Mapping[str, Any] | None = None,
        key: str = "function",
    ) -> None:
        """ConfigError, naming `key`, if the function is not found or cannot be called with what there is."""
        self._pool = pool
        self._settings = dict(settings or {})
        self.name = function if isinstance(function, str) else getattr(function, "__qualname__", repr(function))
        found = import_function(function, key) if isinstance(function, str) else function
        self._names = accepted_names(found, self._settings, f"{key}={self.name!r}")
        self._call = _Reporting(found, function if isinstance(function, str) else None)
        packed_function(self._call)

    async def grade(self, attempt: Attempt) -> Grade:
        """What the function says of `attempt.text`."""
        offered = {
            "prompt": "\n".join(message.content for message in attempt.example.messages),
            "completion": attempt.text,
            "answer": attempt.example.answer,
            "metadata": dict(attempt.example.metadata),
        }
        arguments = {name: offered[name] for name in OFFERED if name in self._names} | self._settings
        result = await self._pool.call(self._call, arguments)
        if result.status != "ok":
            return Grade(value=math.nan, status="error", message=result.message)
        if "refused" in result.value:
            raise RewardError(
                f"reward {self.name!r} returned {result.value['refused']} for example {attempt.example.id!r}: it must "
                "return one finite number, or None for a completion that it cannot read."
            )
        value = result.value["value"]
        return Grade(value=0.0, status="invalid") if value is None else Grade(value=value)


class _Reporting:
    """Calls the function, in the worker, and says what kind of value it returned."""

    def __init__(self, function: Callable[..., object], path: str | None = None) -> None:
        self._function = function
        self._path = path

    def __call__(self, arguments: dict[str, object]) -> dict[str, object]:
        value = self._function(**arguments)
        if value is None:
            return {"value": None}
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                number = float(value)
                if math.isfinite(number):
                    return {"value": number}
        return {"refused": f"{type(value).__name__} {value!r:.80}"}

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object]]:
        return (_Reporting, (self._function,)) if self._path is None else (_load_reporting, (self._path,))


def _load_reporting(path: str) -> _Reporting:
    return _Reporting(load(path))


def import_function(path: str, key: str) -> Callable[..., Any]:
    """The function at `package.module:name`; ConfigError with a remedy if there is none."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{key}={path!r} is no import path: write package.module:function.")
    if module_name == "__main__" or "_lambda_" in name or "_locals_" in name:
        raise ConfigError(
            f"{key}={path!r} is a function that was given in Python, which no other program can import: give it again "
            "to rlvr.train or rlvr.evaluate, or put it into a module."
        )
    with _current_directory_importable():
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:  # foreign code
            raise ConfigError(
                f"{key}={path!r}: module {module_name} cannot be imported ({type(error).__name__}: {error}); mend it, "
                "install it, or start rlvr in the directory that contains it."
            ) from error
        try:
            function = load(path)
        except AttributeError as error:
            near = difflib.get_close_matches(name, vars(module), n=1)
            hint = f"did you mean {near[0]}?" if near else "define it at the top level of the module."
            raise ConfigError(f"{key}={path!r}: module {module_name} has no function {name}; {hint}") from error
    if not callable(function):
        raise ConfigError(f"{key}={path!r} is a {type(function).__name__}: name a function.")
    return function


@contextlib.contextmanager
def _current_directory_importable() -> Iterator[None]:
    """As it is in the workers: last, so that a file beside the data does not hide an installed package."""
    entry = os.getcwd()
    sys.path.append(entry)
    try:
        yield
    finally:
        sys.path.remove(entry)


def accepted_names(function: Callable[..., Any], settings: Mapping[str, Any], what: str) -> set[str]:
    """Which of `OFFERED` the function takes; ConfigError if it needs more, or if a setting would not reach it."""
    if inspect.iscoroutinefunction(function) or inspect.isclass(function):
        kind = "a class" if inspect.isclass(function) else "asynchronous"
        raise ConfigError(f"{what} is {kind}: name an ordinary function; it runs in a process of its own.")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} has no signature to read: wrap it in an ordinary Python function.") from error
    names = {parameter.name for parameter in parameters if parameter.kind in _BY_NAME}
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    for parameter in parameters:
        optional = parameter.default is not parameter.empty or parameter.kind in (
            inspect.Parameter.VAR_KEYWORD,
            inspect.Parameter.VAR_POSITIONAL,
        )
        if not optional and (parameter.kind not in _BY_NAME or parameter.name not in {*OFFERED, *settings}):
            raise ConfigError(
                f"{what} needs a parameter {parameter.name!r}, which nothing provides: it gets {', '.join(OFFERED)} by "
                "name, and its settings."
            )
    for name in settings:
        if name in OFFERED or not (takes_any or name in names):
            raise ConfigError(f"{what}: setting {name!r} would have no effect; it takes {_listed(names - {*OFFERED})}.")
    if not takes_any and not names & {*OFFERED}:
        raise ConfigError(f"{what} takes none of {', '.join(OFFERED)}: name at least completion as a parameter.")
    return {*OFFERED} if takes_any else names & {*OFFERED}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "no settings"
