"""TensorBoard: scalars, configuration and completions as text, configuration as hyperparameters."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from rlvr.registry import register
from rlvr.settings import Text, setting
from rlvr.tracking.trackers.base import Row, RunFacts, Started, Status, Tracker, flatten


@register("tracker", "tensorboard")
class Tensorboard(Tracker):
    """TensorBoard: local event files."""

    title: ClassVar[str] = "TensorBoard"
    needs_package: ClassVar[str] = "tensorboard"
    folder: Text | None = setting(None, "folder of the event files; null: RUN/tensorboard")
    _writer: Any = None

    def load(self) -> None:
        import torch.utils.tensorboard  # noqa: F401

    def start(self, run: RunFacts) -> Started:
        """Open a new event file; earlier files of the run lose their steps from `first_step` on."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(self.folder or Path(run.folder) / "tensorboard").absolute()
        known = run.known if run.known and run.known.store == str(folder) else None
        self._writer = SummaryWriter(str(folder), purge_step=run.first_step if known else None)
        facts = {"name": run.name, "group": run.group, "tags": run.tags, "folder": run.folder, "rlvr": run.version}
        self._write_text("run", 0, json.dumps(facts, indent=2))
        self._write_text("config", 0, json.dumps(run.config, indent=2))
        values = {
            name: value if isinstance(value, str | bool | int | float) else json.dumps(value)
            for name, value in flatten(run.config).items()
        }
        summary = hparams_pb(values, trial_id=run.name, start_time_secs=time.time())
        self._writer.file_writer.add_summary(summary, 0)
        self._writer.flush()
        last_step = min(known.last_step, run.first_step - 1) if known else -1
        return Started(id=run.name, store=str(folder), where=f"tensorboard --logdir {folder}", last_step=last_step)

    def log(self, rows: Sequence[Row]) -> None:
        for step, values in rows:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        for number, row in enumerate(rows):
            facts = "  ".join(f"{name}={value}" for name, value in row.items() if name not in ("prompt", "completion"))
            text = f"{facts}\n\n{row['prompt']}\n--- completion ---\n{row['completion']}"
            self._write_text(f"completions/{number:02d}", step, text)
        self._writer.flush()

    def finish(self, status: Status) -> None:
        self._write_text("status", 0, status)
        self._writer.close()

    def _write_text(self, tag: str, step: int, text: str) -> None:
        """Write a code block: TensorBoard parses text as Markdown, and model output is untrusted."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        block = "\n".join(f"    {line}" for line in text.splitlines())
        self._writer.file_writer.add_summary(text_pb(tag, block.encode("utf-8", errors="backslashreplace")), step)
