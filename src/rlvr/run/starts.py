"""`starts.jsonl`: what each start of a run was made from, and what of it has changed since.

    {"step": 0, "settings": {"seed": 0, ...}, "libraries": {"torch": "2.13.0", ...}, "data": {"rpn": {...}}}

A step was made from the last start at or before it. A line for every start, as a resumed run may have other libraries.
"""

import hashlib
import json
import math
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

import rlvr
from rlvr.config import Config
from rlvr.records.files import write_atomically
from rlvr.run.run_folder import DECIDED
from rlvr.run.tasks import Tasks
from rlvr.settings import dumped, leaf_values
from rlvr.tasks.base import Task
from rlvr.types import Example

NAME = "starts.jsonl"
LIBRARIES = (
    *("torch", "transformers", "tokenizers", "safetensors", "peft", "numpy", "scipy", "math-verify", "datasets"),
    *("bm25s", "PyStemmer", "sentence-transformers", "reasoning_gym", "verifiers", "bitsandbytes", "jax"),
)
"""Those that weights, texts or verdicts may depend on."""
CODE = "rlvr's code"

ENDLESS = 256  # examples of an endless task that are looked at
PATIENCE_S = 0.5  # a task whose examples are slow is looked at for this long
NUMBERS_STAY = (
    "run_dir",
    "resume",
    "name",
    "tracker.",
    "trainer.checkpoint_every",
    "trainer.keep_",
    "warm_start.cache",
)
"""Beginnings of settings that change no number of a step."""
OF_DATA = ("seed", "task.", "prompt.", "markers", "evaluation.")
"""Beginnings of settings that change the examples themselves."""


@dataclass(frozen=True, kw_only=True)
class TaskRows:
    """Of a task."""

    numbers: Mapping[str, int]  # "training" and "held-out"; empty: endless
    examples: int  # in the hash of the training examples
    train: str
    held_out: str


@dataclass(frozen=True, kw_only=True)
class Start:
    step: int  # updates before it
    settings: Mapping[str, Any]  # by dotted key
    libraries: Mapping[str, str]
    data: Mapping[str, TaskRows]  # by name of the task


_START = TypeAdapter(Start)


def write_start(root: Path, step: int, config: Config, tasks: Tasks) -> None:
    """Add a line to a run's `starts.jsonl`; those of starts from later steps are gone, as their steps are.

    UserError if it cannot be written.
    """
    kept = [start for start in read_starts(root) if start.step < step]
    lines = [_START.dump_json(one) + b"\n" for one in (*kept, made_from(step, config, tasks))]
    write_atomically(root / NAME, b"".join(lines))


def read_starts(root: Path) -> list[Start]:
    """Of a run folder, in order; empty if an older version of rlvr wrote it, or the file is damaged."""
    with suppress(OSError, ValueError):
        return [_START.validate_json(line) for line in (root / NAME).read_bytes().splitlines()]
    return []


def start_of(root: Path, step: int) -> Start | None:
    """The start that made a step."""
    return next((start for start in reversed(read_starts(root)) if start.step < step), None)


def made_from(step: int, config: Config, tasks: Tasks) -> Start:
    data = {task.name: _rows(task, config) for task in tasks.eval_sets}
    return Start(step=step, settings=dict(_settings(config)), libraries=libraries(), data=data)


@cache  # what this process runs stays as it is
def libraries() -> dict[str, str]:
    """Versions of what is installed, and a hash of our own code: an editable installation changes without one."""
    versions = {"rlvr": rlvr.__version__, "python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name) or "?"  # None: damaged metadata
    return versions | {CODE: _code()}


def _code() -> str:
    folder, digest = Path(rlvr.__file__).parent, hashlib.blake2b(digest_size=8)
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _settings(config: Config) -> Iterator[tuple[str, Any]]:
    values = json.loads(json.dumps(dumped(config), default=str))
    return ((key, value) for key, value in leaf_values(values) if not key.startswith(NUMBERS_STAY))


def _rows(task: Task, config: Config, like: TaskRows | None = None) -> TaskRows:
    """A task's examples: all of them, or as many as in `like`."""
    num = like.examples if like else task.sizes[0] if task.sizes else ENDLESS
    examples, train = _hash(_stream(task, num, math.inf if like else PATIENCE_S))
    held_out = task.eval_examples(config.evaluation.limit) if config.evaluation.every else ()
    return TaskRows(numbers=_numbers(task), examples=examples, train=train, held_out=_hash(held_out)[1])


def _numbers(task: Task) -> dict[str, int]:
    return {"training": task.sizes[0], "held-out": task.sizes[1]} if task.sizes else {}


def _stream(task: Task, num: int, patience_s: float) -> Iterator[Example]:
    """The first training examples, up to one that fails: the step that trains on it says so."""
    end = time.monotonic() + patience_s
    for index in range(num):
        try:
            example = task.train_example(index)
        except Exception:
            return
        yield example
        if time.monotonic() > end:
            return


def _hash(examples: Iterable[Example]) -> tuple[int, str]:
    """Number and hash."""
    count, digest = 0, hashlib.blake2b(digest_size=16)
    for one in examples:
        count += 1
        said = [(message.role, message.content) for message in one.messages]
        digest.update(repr((one.id, said, one.answer)).encode("utf-8", "replace"))
    return count, digest.hexdigest()


# ---------------------------------------------------------------------------------------------------- what has changed


def edits(start: Start, config: Config, step: int) -> list[str]:
    """A sentence for each setting of config.yaml that is not as the run had it."""
    before, now = dict(start.settings), dict(_settings(config))
    keys = [key for key in before | now if before.get(key) != now.get(key)]
    keys = [key for key in keys if key not in DECIDED or before.get(key) != "auto"]  # older runs did not write it
    if start.libraries.get("rlvr") != rlvr.__version__:
        keys = [key for key in keys if key in before and key in now]  # versions differ in their settings
    if config.trainer.schedule == "constant":
        keys = [key for key in keys if key != "trainer.max_steps"]
    return [
        f"config.yaml was edited: {key} {_said(now, key)}, and {_said(before, key, was=True)} when step {step} was made"
        for key in keys
    ]


def _said(settings: Mapping[str, Any], key: str, *, was: bool = False) -> str:
    if key not in settings:
        return "was absent" if was else "is absent"
    value = settings[key]
    return f"{'was' if was else 'is'} {value if isinstance(value, str) else json.dumps(value)}"


def other_libraries(start: Start) -> list[str]:
    """A sentence for each library in another version."""
    before, now = start.libraries, libraries()
    changed = [name for name in before if before[name] != now.get(name)]
    if "rlvr" in changed:
        changed.remove(CODE)
    added = [f"{name} is {now[name]} here, and was not installed in the run" for name in now if name not in before]
    return [_of_library(name, before[name], now.get(name)) for name in changed] + added


def _of_library(name: str, before: str, now: str | None) -> str:
    if name == CODE:
        return f"rlvr's own code is not that of the run, although both are {rlvr.__version__}"
    return f"{name} is {now or 'not installed here'}, and was {before} in the run"


def other_data(start: Start, config: Config, tasks: Tasks) -> list[str]:
    """A sentence for each task whose rows or examples are not those of the run."""
    sentences = []
    for task in tasks.eval_sets:
        before = start.data.get(task.name)
        if before is not None and (said := _difference(before, task, config)):
            sentences.append(f"the data of {task.name} changed: {said}")
    return sentences


def _difference(before: TaskRows, task: Task, config: Config) -> str | None:
    numbers = _numbers(task)
    counts = [
        f"{numbers.get(kind, 0)} {kind} rows, and {count} in the run"
        for kind, count in before.numbers.items()
        if numbers.get(kind) != count
    ]
    if counts:
        return "; ".join(counts)
    now = _rows(task, config, before)
    pairs = {"training": (before.train, now.train), "held-out": (before.held_out, now.held_out)}
    kinds = [kind for kind, (then, here) in pairs.items() if then != here]
    if not kinds:
        return None
    return f"{'as many rows, ' if numbers else ''}other {' and '.join(kinds)} examples"


def changes_data(found: Sequence[str]) -> bool:
    """Whether an edit changes the examples, so that other ones say nothing about the data."""
    return any(line.removeprefix("config.yaml was edited: ").startswith(OF_DATA) for line in found)
