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
from rlvr.config import schema
from rlvr.envs.base import TurnText
from rlvr.rewards.pool import VerifierPool
from rlvr.tasks.base import Task
from rlvr.tasks.catalog import make_task
from rlvr.tasks.dataset import DatasetTask
from rlvr.types import Example, Score, StopReason, Verdict

CONF = Path(rlvr.__file__).parent / "conf"
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
FAMILY = "llama"


def read(group: str, name: str) -> dict[str, Any]:
    """A file of conf/, following its defaults list."""
    values = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    return read(group, values["defaults"][0]) if "defaults" in values else values


MARKERS = schema.Markers(**read("markers", "default"))


def bundle(
    task: dict[str, Any], *, reward: str | None = None, prompt: str | dict[str, Any] | None = None
) -> dict[str, Any]:
    """`task` on top of the values of conf/task/<name>.yaml, with the reward and prompt that follow it or are named."""
    name = task["name"]
    changes = prompt if isinstance(prompt, dict) else {}
    prompt_name = prompt if isinstance(prompt, str) else name
    return {
        "task": read("task", name) | task,
        "reward": read("reward", reward or name),
        "prompt": read("prompt", prompt_name) | changes,
    }


def make(
    task: dict[str, Any],
    *,
    seed: int = 0,
    reward: str | None = None,
    prompt: str | dict[str, Any] | None = None,
    **more: Any,
) -> DatasetTask:
    """The task itself. Its pool of processes starts none unless something is graded in one."""
    made = build(schema.TaskBundle(**bundle(task, reward=reward, prompt=prompt)), seed=seed, **more)
    assert isinstance(made, DatasetTask)
    return made


def build(settings: schema.TaskBundle, *, seed: int = 0, family: str | None = FAMILY, **more: Any) -> Task:
    """`make_task` with the usual arguments."""
    with open_pools() as open_pool:
        arguments = {"name": settings.task.name, "markers": MARKERS, "family": family, "open_pool": open_pool} | more
        return make_task(settings, seed=seed, **arguments)


@contextmanager
def open_pools() -> Iterator[Any]:
    """What a run gives to `make_task`; ends the processes."""
    with ExitStack() as stack:

        def open_pool(reward: Any) -> VerifierPool:
            return stack.enter_context(
                VerifierPool(
                    num_workers=reward.num_workers, timeout_s=reward.timeout_s, max_memory_mb=reward.max_memory_mb
                )
            )

        yield open_pool


def turn(text: str) -> TurnText:
    return TurnText(prompt="", completion=text, text=text, stop_reason=StopReason.STOP, num_tokens=len(text.split()))


def judged(task: Task, example: Example, text: str) -> Verdict:
    return asyncio.run(task.judge(example, [turn(text)]))


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
