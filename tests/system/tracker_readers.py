"""What a run has told its trackers, read back from what they keep on disk."""

import json
import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Numbers = dict[int, dict[str, float]]  # step -> name -> value


@dataclass(kw_only=True)
class Kept:
    """One run in one tracker. `doubled` names the numbers that it has more than once for a step."""

    numbers: Numbers
    doubled: list[str]
    config: dict[str, Any] = field(default_factory=dict)
    name: str | None = None
    group: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    status: str | int | None = None
    files: list[str] = field(default_factory=list)
    completions: dict[int, list[Any]] = field(default_factory=dict)
    project: str | None = None
    entity: str | None = None


def _by_step(points: dict[str, Any]) -> tuple[Numbers, list[str]]:
    """The values of each name, and the names that have two for a step."""
    numbers: Numbers = {}
    doubled = []
    for name, history in points.items():
        for point in history:
            if name in numbers.setdefault(point.step, {}):
                doubled.append(name)
            numbers[point.step][name] = point.value
    return numbers, doubled


def from_mlflow(uri: str, experiment: str) -> dict[str, Kept]:
    """The runs of an experiment by id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        found = client.get_experiment_by_name(experiment)
        assert found is not None
        return {run.info.run_id: _mlflow_run(client, run) for run in client.search_runs([found.experiment_id])}


def _mlflow_run(client: Any, run: Any) -> Kept:
    id = run.info.run_id
    numbers, doubled = _by_step({name: client.get_metric_history(id, name) for name in run.data.metrics})
    root = Path(run.info.artifact_uri.removeprefix("file://"))
    return Kept(
        numbers=numbers,
        doubled=doubled,
        config=run.data.params,
        name=run.info.run_name,
        group=run.data.tags.get("group"),
        tags=run.data.tags,
        status=run.info.status,
        files=sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()),
        completions={
            int(path.stem.removeprefix("step_")): json.loads(path.read_text())["data"]
            for path in sorted(root.glob("completions/*.json"))
        },
    )


def from_tensorboard(folder: Path) -> Kept:
    """A folder of event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    numbers, doubled = _by_step({name: events.Scalars(name) for name in events.Tags()["scalars"]})
    texts = {name: events.Tensors(name) for name in events.Tags()["tensors"]}
    completions: dict[int, list[Any]] = {}
    for name in sorted(texts):
        for point in texts[name] if name.startswith("completions/") else ():
            completions.setdefault(point.step, []).append(point.tensor_proto.string_val[0].decode())
    about, config, status = (texts[name][-1].tensor_proto.string_val[0] for name in ("run", "config", "status"))
    said = json.loads(about)
    return Kept(
        numbers=numbers,
        doubled=doubled,
        config=json.loads(config),
        name=said["name"],
        group=said["group"],
        tags={tag: "" for tag in said["tags"]},
        status=status.decode().strip(),
        completions=completions,
    )


def from_wandb(run_folder: Path) -> list[Kept]:
    """The offline runs in `RUN/wandb`, oldest first."""
    return [_wandb_run(path) for path in sorted(run_folder.glob("wandb/offline-run-*/run-*.wandb"))]


def _wandb_run(path: Path) -> Kept:
    kept = Kept(numbers={}, doubled=[])
    for record in _wandb_records(path):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            row = {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
            step = int(row["_step"])
            if "completions.path" in row:
                table = path.parent / "files" / row["completions.path"]
                kept.completions[step] = json.loads(table.read_text())["data"]
            plain = {name: value for name, value in row.items() if not name.startswith(("_", "completions."))}
            if plain:
                kept.doubled += [name for name in plain if name in kept.numbers.get(step, {})]
                kept.numbers[step] = kept.numbers.get(step, {}) | plain
        elif kind == "run":
            kept.name, kept.group = record.run.display_name, record.run.run_group
            kept.tags = {tag: "" for tag in record.run.tags}
            kept.project, kept.entity = record.run.project, record.run.entity
            kept.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "exit":
            kept.status = record.exit.exit_code
        elif kind == "artifact":
            kept.files += sorted(entry.path for entry in record.artifact.manifest.contents)
    return kept


def _wandb_records(path: Path) -> Iterator[Any]:
    """LevelDB's log framing: blocks of 32 KiB, records whole or in fragments. Readable once the writer has ended."""
    from wandb.proto import wandb_internal_pb2 as pb

    data, pos, part = path.read_bytes(), 7, b""
    while pos + 7 <= len(data):
        room = 32768 - pos % 32768
        if room < 7:
            pos += room
            continue
        _, size, kind = struct.unpack_from("<IHB", data, pos)
        if pos + 7 + size > len(data):  # still being written
            return
        part, pos = part + data[pos + 7 : pos + 7 + size], pos + 7 + size
        if kind in (1, 4):  # whole, or the last fragment
            record, part = pb.Record.FromString(part), b""
            yield record
