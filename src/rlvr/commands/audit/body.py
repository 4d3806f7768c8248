"""Opens what is audited, and runs judge and adversary."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rlvr.config import Config
from rlvr.config.compose import load_task_config
from rlvr.data.rows import ENDINGS, read_file
from rlvr.errors import ConfigError
from rlvr.lines import override_lines
from rlvr.progress import progress
from rlvr.rewards.numbers import parse_answer
from rlvr.run.sources import own_config
from rlvr.run.tasks import open_tasks
from rlvr.tasks.base import Functions
from rlvr.trust.probes.cases import collect, judges, verifiers
from rlvr.trust.probes.judge import Audit

FAMILY = "llama"  # no model is loaded: markers are those of models made from scratch
FUNCTION = "reward.parts.custom.function"


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    num_examples: int = 50
    seconds: float = 60.0  # of the adversary; 0: none
    threshold: float = 0.0
    answer_template: str | None = None  # of a function, `<result>{answer}</result>`


def audit_config(
    target: str,
    lines: Sequence[str] = (),
    *,
    data: str | None = None,
    task: str | None = None,
    config_dir: str | None = None,
) -> Config:
    """The configuration of a task or of a run, or of a function that grades their answers or those of `data`."""
    if data is not None and task is not None:
        raise ConfigError("--data and --task: the questions come from one of them; leave the other out.")
    if data is None and task is None:
        if ":" in target and not target.rpartition(":")[2][:1].isupper():
            raise ConfigError(f"{target}: add the questions that it grades: --data FILE.jsonl or --task T.")
        if target.endswith(ENDINGS):
            target, lines = "jsonl", [*override_lines({"task.path": target}), *lines]
        own = own_config(target, lines, config_dir)
        return own or load_task_config(target, lines, config_dir=config_dir, option="TASK")
    keys = {line.lstrip("+").partition("=")[0] for line in lines}
    ours = {"reward": "custom", FUNCTION: target, "prompt": "plain"}
    if data is not None:
        ours |= {"task.path": data, "task.metric": _metric(data)}
    lines = [*override_lines({key: value for key, value in ours.items() if key not in keys}), *lines]
    return load_task_config(task or "jsonl", lines, config_dir=config_dir)


def audit(
    config: Config, *, target: str, options: AuditOptions | None = None, functions: Functions | None = None
) -> Audit:
    """Grade probes of training examples by the reward, and by the metric unless the reward is a user's function.

    UserError for a task without answers of one turn to rewrite, and for other errors that the user can correct.
    """
    options = options or AuditOptions()
    if config.task.bundles:
        raise ConfigError(f"task={config.task.name}: is a mix; audit its parts one by one.")
    with open_tasks(config, FAMILY, functions or {}, reads="all") as tasks:
        cases = collect(tasks.own, config, options.num_examples, config.seed)
        graders, told = judges(tasks.own, config, cases, options.answer_template)
        notes = [f"{len(cases)} examples", *tasks.notes, *tasks.places, *told]
        for judge in graders:
            with progress(f"grading by the {judge.name}") as on_progress:
                asyncio.run(judge.run(on_progress))
        if options.seconds:
            from rlvr.research.adversary import attack

            notes.append(attack(config, tasks.own, graders[0], verifiers(tasks.own, config), options.seconds))
    return Audit(
        target=target,
        rows=tuple(row for judge in graders for row in judge.rows),
        findings=tuple(finding for judge in graders for finding in judge.findings),
        notes=tuple(notes),
        threshold=options.threshold,
    )


def _metric(data: str) -> str:
    """numeric for a file whose answers are numbers, else text."""
    rows = [row.fields.get("answer") for row in islice(read_file(Path(data)), 100)] if Path(data).is_file() else []
    numbers = [row for row in rows if parse_answer(str(row).rpartition("####")[2]) is not None]
    return "numeric" if 2 * len(numbers) > len(rows) or not rows else "text"
