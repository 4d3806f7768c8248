"""Data tasks for tests: settings from the package's own YAML files, with changes."""

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import rlvr
from rlvr import registry
from rlvr.config import Config
from rlvr.core.env import TurnText
from rlvr.run.tasks import TaskOpener
from rlvr.settings import validated
from rlvr.tasks.base import Functions, Task
from rlvr.tasks.prompts import MarkersSettings
from rlvr.tasks.settings import TaskBundle
from rlvr.types import Example, GradedAnswer, Score, StopReason

CONF = Path(rlvr.__file__).parent / "conf"
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
FAMILY = "llama"
MARKERS = MarkersSettings()


def bundle(
    task: dict[str, Any], *, reward: str | dict[str, Any] | None = None, prompt: str | dict[str, Any] | None = None
) -> TaskBundle:
    """`task` with the reward and the prompt that follow it or are named; also parts, or changes of the prompt."""
    kind = registry.find("task", task["name"])
    parts: Any = reward or kind.reward
    if isinstance(parts, str):
        parts = yaml.safe_load((CONF / "reward" / f"{parts}.yaml").read_text())["parts"]
    changed = {"name": prompt} if isinstance(prompt, str) else {"name": kind.prompt, **(prompt or {})}
    return validated(TaskBundle, {"task": task, "reward": {"parts": parts}, "prompt": changed})


def make(task: dict[str, Any] | TaskBundle, **more: Any) -> Any:
    """The task itself. The processes of its verifiers have ended: nothing can be graded in one."""
    with opened(task, **more) as made:
        return made


@contextmanager
def opened(
    task: dict[str, Any] | TaskBundle,
    *,
    name: str = "",
    seed: int = 0,
    family: str | None = FAMILY,
    functions: Functions | None = None,
    **more: Any,
) -> Iterator[Task]:
    """The task of a `bundle`; the processes of its verifiers end with the block."""
    settings = task if isinstance(task, TaskBundle) else bundle(task, **more)
    with ExitStack() as stack:
        config = Config.model_construct(markers=MARKERS)
        opener = TaskOpener(config=config, family=family, functions=functions or {}, stack=stack)
        yield opener.open(settings, name or settings.task.label, seed)


def turn(text: str) -> TurnText:
    return TurnText(prompt="", completion=text, text=text, stop_reason=StopReason.STOP, num_tokens=len(text.split()))


def graded(task: Task, example: Example, text: str) -> GradedAnswer:
    return asyncio.run(task.grade(example, [turn(text)]))


def scored(task: Task, example: Example, text: str) -> Score:
    async def run() -> Score:
        env = task.env(example)
        await env.start()
        return await env.score([turn(text)])

    return asyncio.run(run())


def solved(answer: str) -> str:
    """The answer in the format of prompt=math_reasoning with the markers of FAMILY."""
    return f"<start_working_out>Let me see.<end_working_out><SOLUTION>{answer}</SOLUTION>"


def write_jsonl(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sums(num: int, start: int = 0) -> list[dict[str, Any]]:
    """Rows with different questions."""
    return [{"question": f"What is {n} plus one?", "answer": n + 1} for n in range(start, start + num)]


def real_data(name: str) -> Path:
    """A folder of real data; skips the test where there is none."""
    root = os.environ.get("RLVR_DATA")
    if root is None:
        pytest.skip("RLVR_DATA is not set: it names the folder with the real data sets")
    return Path(root) / name


def ids(task: Task, indices: range) -> list[str]:
    return [task.train_example(index).id for index in indices]


def held_out_ids(task: Task) -> set[str]:
    return {example.id for example in task.eval_examples(200)}
