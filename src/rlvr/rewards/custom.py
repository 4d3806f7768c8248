"""The user's own function as a reward part.

    def my_reward(completion: str, answer: str, **settings) -> float | None

It takes any names of `OFFERED`, and returns one finite number, or None for an unreadable completion.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import PrivateAttr

from rlvr.errors import ConfigError
from rlvr.imports import imported
from rlvr.registry import register
from rlvr.rewards.base import Part
from rlvr.settings import ImportPath, setting
from rlvr.types import Attempt

OFFERED: Mapping[str, Callable[[Attempt], Any]] = {
    "prompt": lambda attempt: attempt.prompt,
    "completion": lambda attempt: attempt.text,
    "answer": lambda attempt: attempt.example.answer,
    "metadata": lambda attempt: dict(attempt.example.metadata),
    "turns": lambda attempt: [turn.text for turn in attempt.turns],
    "calls": lambda attempt: [{"name": call.name, "arguments": dict(call.arguments)} for call in attempt.calls],
    "retrieved": lambda attempt: list(attempt.retrieved),
    "cited": lambda attempt: list(attempt.cited),
}
"""Arguments offered to a function. `completion` is the last turn's text, `turns` are the texts of all turns."""


@register("reward", "custom")
class Custom(Part):
    """Your own function, in a killable process."""

    function: ImportPath = setting(description=f"module:function, takes any of {', '.join(OFFERED)}")
    settings: dict[str, bool | int | float | str | None] = setting({}, "more keyword arguments of the function")

    _function: Callable[..., Any] | None = PrivateAttr(None)
    _names: frozenset[str] = PrivateAttr(frozenset())

    @property
    def user_function(self) -> str:
        return self.function

    def bound(self, key: str, functions: Mapping[str, Callable[..., Any]]) -> Self:
        """The part with its function: one of `functions`, without import path, or an imported one.

        ConfigError, which names `key`, if it is missing or not callable; UserError if it cannot be pickled.
        """
        from rlvr.rewards.sandbox import packed

        what = f"{key}.function={self.function}"
        function = functions.get(self.function) or imported(what, self.function, "function", callable)
        bound = self.model_copy()
        bound._function, bound._names = function, accepted_names(function, self.settings, what)
        packed(function)
        return bound

    def check_found(self, key: str) -> None:
        self.bound(key, {})

    @property
    def reads_metadata(self) -> bool:
        return "metadata" in self._names

    def grade(self, attempt: Attempt) -> Any:
        assert self._function is not None, "the part is not bound to its function"
        return self._function(**{name: OFFERED[name](attempt) for name in self._names}, **self.settings)


def accepted_names(function: Callable[..., Any], settings: Mapping[str, Any], what: str) -> frozenset[str]:
    """The names of `OFFERED` the function takes; ConfigError if it needs more, or does not accept a setting."""
    try:
        if inspect.iscoroutinefunction(function) or inspect.isclass(function):
            raise TypeError("it is a class, or asynchronous")
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what}: is no ordinary Python function ({error}); wrap it in one.") from error
    takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    names = frozenset(OFFERED if takes_any else signature.parameters.keys() & OFFERED.keys())
    if not names:
        raise ConfigError(f"{what}: takes none of {', '.join(OFFERED)}; name at least completion as a parameter.")
    try:
        signature.bind(**dict.fromkeys(names), **settings)  # also a TypeError for a setting named like one
    except TypeError as error:
        raise ConfigError(
            f"{what}: cannot be called ({error}); it gets its settings, and by name those of {', '.join(OFFERED)}."
        ) from None
    return names
