"""Runs `rlvr replay`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlvr.config import Config
from rlvr.errors import ConfigError, UserError
from rlvr.progress import progress
from rlvr.records.differences import (
    NOT_COMPARED,
    Difference,
    first_differences,
    metric_differences,
    record_differences,
)
from rlvr.records.files import write_atomically, writing
from rlvr.records.jsonl import metrics_line, metrics_row, to_json, to_line
from rlvr.records.rollouts import make_records
from rlvr.research.influence import Influence, influences
from rlvr.research.repeat import Recorded, Repeated, check_replays, find_step, repeated
from rlvr.research.what_if import WhatIf, read_changes, what_if
from rlvr.run.opened import Stopped, never
from rlvr.run.sources import own_config
from rlvr.run.starts import changes_data, edits, other_data, other_libraries, start_of
from rlvr.run.tasks import Tasks
from rlvr.tasks.base import Functions


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A step beside its replay. `differences` has the first of each stage, stages in order."""

    run: str
    step: int
    start: int  # updates behind the weights that the replay started from
    equal: bool  # nothing that was compared differs
    differences: Sequence[Difference]
    num_episodes: int  # of the step
    num_recorded: int  # of them in the rollout file
    num_metrics: int  # compared
    notes: Sequence[str]
    changed: Sequence[str] = ()  # sentences: what is not as it was when the step was made
    what_if: WhatIf | None = None
    influence: Sequence[Influence] | None = None  # of the episodes, in order


def replay(
    source: str,
    step: int,
    *,
    changes: Sequence[str] = (),
    influence: bool = False,
    functions: Functions | None = None,
    stopped: Stopped = never,
) -> Replay:
    """Make a step once more and compare it with the run's record; see `rlvr replay --help`.

    UserError for a step that is not there or cannot be repeated, ConfigError for a wrong change.
    """
    recorded = find_step(Path(source), step)
    config = own_config(source)
    if config is None:
        raise UserError(f"{source} is no run folder: name one.")
    check_replays(config, recorded)
    read = read_changes(changes, source, config) if changes else None
    changed, opened = changed_before(recorded, config), list[str]()

    def on_open(tasks: Tasks) -> None:
        opened.extend(changed_data(recorded, config, tasks, changed))

    try:
        with progress("replaying") as show, repeated(config, recorded, functions or {}, show, stopped, on_open) as made:
            compared = compare(recorded, made)
            shown = None if read is None else what_if(made, recorded, read, changes)
            shares = influences(made, show) if influence else None
    except UserError as error:
        if not (since := [*changed, *opened]):
            raise
        raise UserError(f"{error} Perhaps because {'; '.join(since)}.") from error
    return Replay(**vars(compared) | {"what_if": shown, "influence": shares, "changed": [*changed, *opened]})


def changed_before(found: Recorded, config: Config) -> list[str]:
    """Settings and libraries that are not as they were when the step was made; empty if the run did not record them."""
    start = start_of(found.folder.root, found.step)
    return [] if start is None else [*edits(start, config, found.step), *other_libraries(start)]


def changed_data(found: Recorded, config: Config, tasks: Tasks, changed: Sequence[str]) -> list[str]:
    """Tasks whose data are not as they were, unless settings explain it."""
    start = start_of(found.folder.root, found.step)
    return [] if start is None or changes_data(changed) else other_data(start, config, tasks)


def compare(recorded: Recorded, made: Repeated) -> Replay:
    """The recorded step beside the replayed one."""
    row = metrics_row(metrics_line(recorded.step, made.metrics).encode())
    differences, notes = metric_differences(recorded.metrics, row), list[str]()
    num_episodes = sum(len(group.episodes) for group in made.sampled.groups)
    if not recorded.lines:
        notes.append(
            f"rollouts/ has no file of step {recorded.step} (tracker.rollouts_every): only its line of metrics.jsonl "
            "was compared"
        )
    else:
        decode = made.run.rollouts.source.model.chat.decode
        lines = [to_line(one) for one in make_records(made.sampled.groups, made.batch, decode)]
        replayed = [line.removesuffix(b"\n") for line in lines[: len(recorded.lines)]]
        differences = first_differences([*record_differences(recorded.lines, replayed), *differences])
        if len(recorded.lines) < num_episodes:
            notes.append(
                f"rollouts/ has {len(recorded.lines)} of the step's {num_episodes} episodes "
                "(tracker.rollouts_max_groups): of the others only metrics were compared"
            )
    return Replay(
        run=str(recorded.folder.root),
        step=recorded.step,
        start=made.run.start_step,
        equal=not differences,
        differences=differences,
        num_episodes=num_episodes,
        num_recorded=len(recorded.lines),
        num_metrics=sum(not name.startswith(NOT_COMPARED) for name in recorded.metrics.keys() - {"step"}),
        notes=notes,
    )


def influence_path(source: str, step: int, output: str | None) -> Path:
    """Where the influence is written: beside the run, never in it. ConfigError for such a place."""
    root = Path(source).resolve()
    if output is None:
        return root.with_name(f"{root.name}.influence") / f"step_{step:06d}.json"
    if Path(output).resolve().is_relative_to(root):
        raise ConfigError(f"--output {output}: is inside the run, which is only read; choose another place.")
    return Path(output)


def write_influence(path: Path, found: Replay) -> None:
    """UserError if it cannot be written."""
    episodes = ",\n".join(map(to_json, found.influence or ()))
    text = f'{{"run": {json.dumps(Path(found.run).resolve().name)}, "step": {found.step}, "episodes": [\n'
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"{text}{episodes}\n]}}\n".encode())
