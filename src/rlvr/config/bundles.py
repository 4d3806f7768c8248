"""Tasks inside a configuration: the parts of a mix, and the tasks that are evaluated beside the run's own.

A user names them; here each name becomes the task with the reward and the prompt that follow it, so that the resolved
configuration says everything:

    [finqa]                                        -> {finqa: {task: ..., reward: ..., prompt: ...}}
    {gsm8k: 2, finqa: 1}                           -> {gsm8k: {weight: 2, task: ...}, finqa: {weight: 1, task: ...}}
    {mine: {task: jsonl, set: ["task.path=a.json"]}} -> {mine: {task: ..., reward: ..., prompt: ...}}
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlvr.errors import ConfigError

Compose = Callable[[Sequence[str]], Mapping[str, Any]]
"""Overrides -> the values of a configuration with that task, reward and prompt."""

PARTS = ("task", "reward", "prompt")


def expand(values: dict[str, Any], compose: Compose) -> frozenset[str]:
    """Write `evaluation.also` and, for a mix, `task.parts` out in full, in place; the keys that their lists `set`."""
    task, evaluation = values.get("task"), values.get("evaluation")
    said = [
        f"{place}.{name}.{line.partition('=')[0].lstrip('+~')}"
        for place, entries in (
            ("task.parts", task.get("parts") if isinstance(task, dict) else None),
            ("evaluation.also", evaluation.get("also") if isinstance(evaluation, dict) else None),
        )
        for name, entry in (entries.items() if isinstance(entries, dict) else ())
        if isinstance(entry, dict) and isinstance(lines := entry.get("set"), list)
        for line in map(str, lines)
    ]
    if isinstance(task, dict) and task.get("name") == "mix":
        task["parts"] = _expand("task.parts", task.get("parts"), compose, weighted=True)
    if isinstance(evaluation, dict) and "also" in evaluation:
        evaluation["also"] = _expand("evaluation.also", evaluation["also"], compose, weighted=False)
    return frozenset(said)


def _expand(key: str, entries: Any, compose: Compose, *, weighted: bool) -> dict[str, Any]:
    if entries is None and not weighted:
        return {}
    if isinstance(entries, str):
        entries = [entries]
    if isinstance(entries, list):
        entries = dict.fromkeys(entries)
    if not isinstance(entries, dict):
        raise ConfigError(f"{key}={entries}: must name tasks, e.g. [gsm8k,finqa] or {{gsm8k: 2, finqa: 1}}.")
    return {str(name): _entry(f"{key}.{name}", str(name), entry, compose, weighted) for name, entry in entries.items()}


def _entry(key: str, name: str, entry: Any, compose: Compose, weighted: bool) -> dict[str, Any]:
    if isinstance(entry, dict) and isinstance(entry.get("task"), dict):
        return entry  # of a resolved configuration
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
    return weight | {part: values[part] for part in PARTS}
