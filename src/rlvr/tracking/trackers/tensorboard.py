"""TensorBoard: scalars, the configuration and completions as texts, the configuration as hyperparameters."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr.tracking.trackers.backend import Row, RunFacts, Started, Status, flatten


class TensorboardBackend:
    """See `Backend`. Event files are written with TensorBoard's own writer; torch is not loaded for it."""

    def __init__(self) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2, summary_pb2
        self._tensor, self._shape, self._types = tensor_pb2, tensor_shape_pb2, types_pb2
        self._hparams, self._text_metadata, self._open = hparams_pb, create_summary_metadata, EventFileWriter

    def prepare(self, run: RunFacts) -> None:
        """Nothing: files are made as they come."""

    def start(self, run: RunFacts) -> Started:
        """A new event file; one of an earlier part of the run loses its steps from `first_step` on."""
        folder = Path(run.settings["folder"] or Path(run.folder) / "tensorboard").absolute()
        known = run.known if run.known and run.known["store"] == str(folder) else None
        self._writer = self._open(str(folder))
        if known:
            start = self._event.SessionLog(status=self._event.SessionLog.START)
            self._add(run.first_step, session_log=start)
        facts = {"name": run.name, "group": run.group, "tags": run.tags, "folder": run.folder, "rlvr": run.version}
        self._write_text("run", 0, json.dumps(facts, indent=2))
        self._write_text("config", 0, json.dumps(run.config, indent=2))
        values = {name: _scalar(value) for name, value in flatten(run.config).items()}
        self._add(0, summary=self._hparams(values, trial_id=run.name, start_time_secs=time.time()))
        self._writer.flush()
        last_step = min(known["last_step"], run.first_step - 1) if known else -1
        return Started(id=run.name, store=str(folder), where=f"tensorboard --logdir {folder}", last_step=last_step)

    def log(self, rows: Sequence[Row]) -> None:
        """float32, as TensorBoard keeps scalars."""
        value = self._summary.Summary.Value
        for step, values in rows:
            scalars = [value(tag=name, simple_value=number) for name, number in values.items()]
            self._add(step, summary=self._summary.Summary(value=scalars))
        self._writer.flush()

    def completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        """One text each; the i-th of every step under the same name, for the slider."""
        for number, row in enumerate(rows):
            facts = "  ".join(f"{name}={value}" for name, value in row.items() if name not in ("prompt", "completion"))
            text = f"{facts}\n\n{row['prompt']}\n--- completion ---\n{row['completion']}"
            self._write_text(f"completions/{number:02d}", step, text)
        self._writer.flush()

    def files(self, paths: Sequence[str]) -> None:
        """TensorBoard keeps no files; they lie beside it."""

    def model(self, folder: str) -> None:
        """As files."""

    def finish(self, status: Status) -> None:
        """How the run ended is a text."""
        self._write_text("status", 0, status)
        self._writer.close()

    def _add(self, step: int, **what: Any) -> None:
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, **what))

    def _write_text(self, tag: str, step: int, text: str) -> None:
        """As a block of code: TensorBoard reads texts as Markdown, and a model may write anything."""
        block = "\n".join(f"    {line}" for line in text.splitlines())
        tensor = self._tensor.TensorProto(
            dtype=self._types.DT_STRING,
            string_val=[block.encode("utf-8", errors="backslashreplace")],
            tensor_shape=self._shape.TensorShapeProto(dim=[self._shape.TensorShapeProto.Dim(size=1)]),
        )
        metadata = self._text_metadata(display_name=tag, description="")
        value = self._summary.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)
        self._add(step, summary=self._summary.Summary(value=[value]))


def _scalar(value: Any) -> str | bool | int | float:
    return value if isinstance(value, str | bool | int | float) else json.dumps(value)
