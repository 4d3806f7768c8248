"""Tasks inside a configuration: the parts of a mix, and the tasks that are evaluated beside the run's own.

A user names them; here each name becomes the task with the reward and the prompt that follow it, so that the resolved
configuration says everything:

    [finqa]                                        -> {finqa: {task: ..., reward: ..., prompt: ...}}
    {gsm8k: 2, finqa: 1}                           -> {gsm8k: {weight: 2, task: ...}, finqa: {weight: 1, task: ...}}
    {mine: {task: jsonl, set: ["task.path=a.json"]}} -> {mine: {task: ..., reward: ..., prompt: ...}}
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic.fields import FieldInfo

from rlvr.config.keys import inner
from rlvr.errors import ConfigError
from rlvr.tasks.settings import TaskBundle

Compose = Callable[[Sequence[str]], Mapping[str, Any]]
"""Overrides -> the values of a configuration with that task, reward and prompt."""

PARTS = ("task", "reward", "prompt")


def expand(values: dict[str, Any], fields: Mapping[str, FieldInfo], compose: Compose) -> frozenset[str]:
    """Write each field that holds tasks out in full, in place; the keys that the lists `set` of the user's say."""
    said: set[str] = set()
    for key, field in fields.items():
        kind, (section, _, name) = inner(field.annotation)[0], key.partition(".")
        if kind is None or not issubclass(kind, TaskBundle) or not isinstance(values.get(section), dict):
            continue
        if name not in values[section] and field.is_required():
            continue
        entries = values[section].get(name) or {}
        if isinstance(entries, str | list):
            entries = dict.fromkeys([entries] if isinstance(entries, str) else map(str, entries))
        if not isinstance(entries, dict):
            raise ConfigError(f"{key}={entries}: must name tasks, e.g. [gsm8k,finqa] or {{gsm8k: 2, finqa: 1}}.")
        weighted = "weight" in kind.model_fields
        written = values[section][name] = {}
        for label, entry in entries.items():
            written[str(label)], lines = _entry(f"{key}.{label}", str(label), entry, compose, weighted)
            said |= {f"{key}.{label}.{line.partition('=')[0].lstrip('+~')}" for line in lines}
    return frozenset(said)


def _entry(key: str, name: str, entry: Any, compose: Compose, weighted: bool) -> tuple[dict[str, Any], list[str]]:
    """The task, reward and prompt of an entry in full, and its `set`."""
    if isinstance(entry, dict) and isinstance(entry.get("task"), dict):
        return entry, []  # of a resolved configuration
    if isinstance(entry, int | float) and weighted:
        entry = {"weight": entry}
    entry = dict(entry or {}) if isinstance(entry, dict | None) else {"set": entry}
    overrides = entry.pop("set", [])
    choice = entry.pop("task", name)
    weight = {"weight": entry.pop("weight", 1.0)} if weighted else {}
    if entry or not isinstance(overrides, list) or not all(isinstance(line, str) for line in overrides):
        known = "weight, task and set" if weighted else "task and set"
        raise ConfigError(f'{key}: may have {known}, where set is a list like ["task.path=FOLDER"].')
    for line in overrides:
        if line.partition("=")[0].partition(".")[0].lstrip("+~") not in PARTS:
            raise ConfigError(f"{key}: set may change task, reward and prompt, and {line} is none of them.")
        if line.lstrip("+").startswith("reward.max_error_share="):
            raise ConfigError(f"{key}: {line} has no effect here; set reward.max_error_share of the run.")
    try:
        values = compose([f"task={choice}", *overrides])
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
    return weight | {part: values[part] for part in PARTS}, overrides
