"""Running a program on several inputs in one process of a jail, and reading what it says came out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from rlvr.jail.jail import Jail
from rlvr.jail.outcome import Limits, Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What came out of one input: `Result(status="ended", value=3)`; the value of an input to stdin is a text.

    Values are plain data of builtin types; any other object is `Other`, which equals nothing.
    """

    status: Literal["ended", "raised", "timed out", "out of memory", "error"]
    value: Any = None
    message: str = ""


class Other:
    """An object of a type that does not leave the jail."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__


@cache
def _driver() -> str:
    return (files("rlvr.rewards") / "code_driver.py").read_text("utf-8")


def run_items(
    jail: Jail, program: str, items: Sequence[Mapping[str, Any]], *, setup: str = "", limits: Limits, alarm_s: float
) -> list[Result]:
    """The results of a program on the items in order, up to the first one that ended its process.

    An item is `{"stdin": text}`, `{"call": expression}` or `{"entry": function or method of Solution, "args": [...]}`;
    all are of one kind. Each may take `alarm_s` of a core, and all together `limits.wall_s`.
    """
    request = {"program": program, "setup": setup, "items": list(items), "alarm_s": alarm_s}
    outcome = jail.run(_driver(), stdin=json.dumps(request), limits=limits)
    if outcome.status == "error":
        return [Result(status="error", message=outcome.message)]
    results = []
    for line in outcome.output.splitlines()[: len(items)]:
        result = _result(line)
        if result is None:
            break
        results.append(result)
    if len(results) < len(items):
        results.append(_last(outcome))
    return results


def _last(outcome: Outcome) -> Result:
    if outcome.status == "ended":
        return Result(status="raised", message="ended its process before it returned")
    return Result(status=outcome.status, message=outcome.message)


def _result(line: str) -> Result | None:
    """The result in a line; None for what the driver does not write."""
    try:
        reply = json.loads(line)
        if "raised" in reply:
            return Result(status="out of memory" if _is_memory(reply["raised"]) else "raised", message=reply["raised"])
        return Result(status="ended", value=str(reply["output"]) if "output" in reply else _decoded(reply["value"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _is_memory(message: Any) -> bool:
    return str(message).startswith("MemoryError")


def _decoded(value: Any) -> Any:
    """The value that `coded` in the driver wrote. TypeError for what is no such value."""
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((name, given),) = value.items()
    if name == "dict":
        return {_decoded(key): _decoded(each) for key, each in given}
    if name == "bytes":
        return bytes.fromhex(given)
    if name == "complex":
        return complex(*given)
    if name in ("tuple", "set"):
        return (tuple if name == "tuple" else set)(map(_decoded, given))
    return Other()
