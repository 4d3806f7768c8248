"""The user's own function as a reward part, in our form or in that of another library.

    def my_reward(completion: str, answer: str, **settings) -> float | None         any names of `OFFERED`
    def compute_score(data_source, solution_str, ground_truth, extra_info)          verl; also returns {"score": ...}
    def reward(completions, **columns) -> list[float | None]                        TRL; called for one completion

It returns one finite number, or None for an unreadable completion. An `async def` is awaited, alone in its process.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Set
from copy import deepcopy
from typing import Any, Self

from pydantic import PrivateAttr

from rlvr.data.problems import OURS
from rlvr.errors import ConfigError
from rlvr.imports import imported
from rlvr.registry import register
from rlvr.rewards.base import Part
from rlvr.settings import ImportPath, setting
from rlvr.types import Attempt, Message

OFFERED: Mapping[str, Callable[[Attempt], Any]] = {
    "prompt": lambda attempt: attempt.prompt,
    "completion": lambda attempt: attempt.text,
    "answer": lambda attempt: attempt.example.answer,
    "metadata": lambda attempt: deepcopy({**attempt.example.metadata, **attempt.example.row}),
    "turns": lambda attempt: [turn.text for turn in attempt.turns],
    "calls": lambda attempt: [{"name": call.name, "arguments": dict(call.arguments)} for call in attempt.calls],
    "retrieved": lambda attempt: list(attempt.retrieved),
    "cited": lambda attempt: list(attempt.cited),
}
"""Arguments offered to a function. `completion` is the last turn's text, `turns` are the texts of all turns."""

VERL: Mapping[str, Callable[[Attempt], Any]] = {
    "data_source": lambda attempt: _columns(attempt).get("data_source", ""),
    "solution_str": lambda attempt: attempt.text,
    "ground_truth": lambda attempt: deepcopy(attempt.example.metadata.get("gold_as_given", attempt.example.answer)),
    "extra_info": lambda attempt: _columns(attempt).get("extra_info"),
}
"""Arguments of verl's `compute_score`, for a function that takes `solution_str`; others it needs are columns."""


def _log_nothing(*_: Any, **__: Any) -> None:
    """A call of TRL's logs, which rlvr does not keep."""


TRL: Mapping[str, Any] = {"trainer_state": None, "log_extra": _log_nothing, "log_metric": _log_nothing}
"""What TRL passes besides the lists, one of each per call."""

NOT_PASSED = frozenset({"prompt", "completion", "completions", "completion_ids"})
"""Columns that TRL keeps to itself, or passes as `prompts` and `completions`."""

ANY = "**"
"""Among a function's names: it takes any column."""


@register("reward", "custom")
class Custom(Part):
    """Your own function, in a killable process."""

    function: ImportPath = setting(
        description=f"module:function, takes any of {', '.join(OFFERED)}; or the arguments that TRL or verl pass"
    )
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
        return not self._names <= OFFERED.keys() - {"metadata"}

    def grade(self, attempt: Attempt) -> Any:
        if "completions" in self._names:
            return self._graded_as_by_trl(attempt)
        offered = VERL if "solution_str" in self._names else OFFERED
        columns = self._taken(_columns(attempt), self._names - offered.keys())
        given = {name: offered[name](attempt) for name in self._names & offered.keys()}
        found = self._called(**given, **columns, **self.settings)
        return found["score"] if isinstance(found, Mapping) and "score" in found else found

    def _taken(self, columns: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
        """The columns of these names. KeyError for one that is not there."""
        if missing := names - columns.keys():
            there = ", ".join(sorted(columns.keys() - {"prompts", "completions"}))
            raise KeyError(
                f"the data has no column {sorted(missing)[0]!r}, which the function takes (there are {there})"
            )
        return {name: columns[name] for name in names}

    def _called(self, **arguments: Any) -> Any:
        assert self._function is not None, "the part is not bound to its function"
        found = self._function(**arguments)
        return asyncio.run(found) if inspect.iscoroutine(found) else found

    def _graded_as_by_trl(self, attempt: Attempt) -> Any:
        """The value of a batch of one: every argument is a list."""
        columns = _columns(attempt)
        named = self._taken(columns, self._names - {ANY} - TRL.keys())
        taken = columns if ANY in self._names else named
        once = {name: value for name, value in TRL.items() if ANY in self._names or name in self._names}
        lists = {name: [value] for name, value in taken.items() if name not in TRL}
        found = self._called(**lists, **(once | self.settings))
        return found[0] if isinstance(found, list | tuple) and len(found) == 1 else found


def _columns(attempt: Attempt) -> dict[str, Any]:
    """What TRL passes for one completion: it and its prompt, as messages if the data's are, and the columns."""
    example, prompt, completion = attempt.example, attempt.prompt, attempt.text
    if example.metadata.get("has_messages"):
        prompt = [_dumped(message) for message in example.messages]
        completion = [{"role": "assistant", "content": completion}]
    answer = example.metadata.get("gold_as_given", example.answer)
    others = {name: value for name, value in example.metadata.items() if name not in OURS}
    columns = {"answer": answer, **others, **example.row}
    passed = {name: value for name, value in columns.items() if name not in NOT_PASSED}
    return deepcopy(passed) | {"prompts": prompt, "completions": completion}  # the function may change what it gets


def _dumped(message: Message) -> dict[str, Any]:
    """In OpenAI's form, without the fields that are not filled."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
        for call in message.tool_calls
    ]
    more = {"name": message.name, "tool_calls": calls, "tool_call_id": message.call_id}
    return {"role": message.role, "content": message.content} | {name: value for name, value in more.items() if value}


def accepted_names(function: Callable[..., Any], settings: Mapping[str, Any], what: str) -> frozenset[str]:
    """The names the function takes, of its form: ours, verl's, or columns and maybe `ANY` for TRL's.

    ConfigError if it needs more, or does not accept a setting.
    """
    try:
        if inspect.isclass(function):
            raise TypeError("it is a class")
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what}: is no ordinary Python function ({error}); wrap it in one.") from error
    parameters = signature.parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    plain = [one for one in parameters.values() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    needed = {one.name for one in plain if one.default is one.empty}
    if "completions" in parameters:
        needed |= {one.name for one in plain if one.name in TRL} | {"completions"}
        needed -= settings.keys()
        if "completion_ids" in needed:
            raise ConfigError(
                f"{what}: takes completion_ids, and rewards get texts, not token ids: give the parameter a default."
            )
        return frozenset(needed) | ({ANY} if takes_any else set())
    offered = VERL if "solution_str" in parameters else OFFERED
    names = frozenset(offered if takes_any else parameters.keys() & offered.keys())
    if offered is VERL:
        names |= needed - settings.keys()
    if not names:
        raise ConfigError(f"{what}: takes none of {', '.join(OFFERED)}; name at least completion as a parameter.")
    try:
        signature.bind(**dict.fromkeys(names), **settings)  # also a TypeError for a setting named like one
    except TypeError as error:
        raise ConfigError(
            f"{what}: cannot be called ({error}); it gets its settings, and by name those of {', '.join(offered)}."
        ) from None
    return names
