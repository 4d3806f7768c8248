"""The metrics and settings in a run folder; damaged parts are named and left out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlvr import registry
from rlvr.errors import ConfigError
from rlvr.tracking.jsonl import metrics_row

MAX_NOTES = 5  # damaged lines named per file; more are counted


@dataclass(frozen=True, kw_only=True)
class History:
    """A run: one mapping, with `step`, for each line of metrics.jsonl (NaN where it was not finite), and settings."""

    folder: Path
    rows: list[dict[str, float]]
    settings: Mapping[str, Any]  # of config.yaml, as far as it can be read
    text: str  # of config.yaml
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def step(self) -> int:
        return int(self.rows[-1]["step"]) if self.rows else 0

    def setting(self, key: str) -> Any:
        """`setting("trainer.max_steps")`, None if unknown."""
        value: Any = self.settings
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    @property
    def penalties(self) -> frozenset[str]:
        """The parts of the reward that are 0 where all is well; none are known of a run of another version."""
        tasks = self.setting("task.parts")
        bundles = [self.settings, *(tasks.values() if isinstance(tasks, Mapping) else ())]
        rewards = [bundle.get("reward") for bundle in bundles if isinstance(bundle, Mapping)]
        parts = [reward.get("parts") for reward in rewards if isinstance(reward, Mapping)]
        named = [item for found in parts if isinstance(found, Mapping) for item in found.items()]
        types = {name: part.get("type") for name, part in named if isinstance(part, Mapping)}
        with suppress(ConfigError):
            return frozenset(name for name, kind in types.items() if registry.find("reward", str(kind)).is_penalty)
        return frozenset()


def is_run(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).exists() for name in ("config.yaml", "metrics.jsonl", "rollouts"))


def read_history(folder: Path) -> History:
    """Read what can be read of a run folder; `notes` has a sentence for everything else."""
    settings, text, config_notes = _read_config(folder / "config.yaml")
    rows, notes = _read_rows(folder / "metrics.jsonl")
    return History(folder=folder, rows=rows, settings=settings, text=text, notes=config_notes + notes)


def _read_config(path: Path) -> tuple[Mapping[str, Any], str, list[str]]:
    if not path.is_file():
        return {}, "", [f"There is no {path}: what the settings were is not known."]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return {}, "", [f"{path} cannot be read ({error}): what the settings were is not known."]
    try:
        settings = OmegaConf.to_container(OmegaConf.create(text))
    except (ValueError, YAMLError, OmegaConfBaseException) as error:
        return {}, text, [f"{path} is damaged ({str(error).splitlines()[0]}): it is shown, but not used."]
    if not isinstance(settings, Mapping):
        return {}, text, [f"{path} is damaged (no settings): it is shown, but not used."]
    return {str(key): value for key, value in settings.items()}, text, []


def _read_rows(path: Path) -> tuple[list[dict[str, float]], list[str]]:
    """The whole lines of a metrics file in the order of their steps; of a repeated step the last one."""
    if not path.is_file():
        return [], [f"There is no {path} yet: there are no curves."]
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last line feed is still being written
    except OSError as error:
        return [], [f"{path} cannot be read ({error}): there are no curves."]
    rows: dict[float, dict[str, float]] = {}
    damaged = []
    for number, line in enumerate(lines, start=1):
        try:
            row = metrics_row(line)
        except ValueError as error:
            damaged.append(f"{path}, line {number}, is damaged and left out ({error}).")
        else:
            rows[row["step"]] = row
    notes = damaged[:MAX_NOTES]
    if len(damaged) > MAX_NOTES:
        notes.append(f"{path}: {len(damaged) - MAX_NOTES} more lines are damaged and left out.")
    return [rows[step] for step in sorted(rows)], notes
