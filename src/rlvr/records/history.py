"""Reads the metrics and settings of a run folder; damaged parts are reported and skipped."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr import registry
from rlvr.errors import ConfigError
from rlvr.records.files import ERROR, PRUNED
from rlvr.records.jsonl import few, metrics_row
from rlvr.settings import label_of
from rlvr.yaml_text import values_in

MAX_DEPTH = 4
"""Folders of folders that are searched: a sweep is one below the others."""


@dataclass(frozen=True, kw_only=True)
class History:
    """A run: one mapping, with `step`, per line of metrics.jsonl (NaN for non-finite numbers), and its settings."""

    folder: Path
    rows: list[dict[str, float]]
    settings: Mapping[str, Any]  # from config.yaml, if readable
    text: str  # of config.yaml
    notes: list[str]

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def step(self) -> int:
        return int(self.rows[-1]["step"]) if self.rows else 0

    def setting(self, key: str) -> Any:
        """`setting("trainer.max_steps")`, None if unknown."""
        return setting_of(self.settings, key)

    @property
    def is_pruned(self) -> bool:
        return (self.folder / PRUNED).is_file()

    @property
    def error(self) -> str:
        """Why the run failed; empty if it did not."""
        return text_of(self.folder / ERROR)

    @property
    def penalties(self) -> frozenset[str]:
        """Reward parts that are normally 0; none are known for a run of another version."""
        with suppress(ConfigError, AttributeError, KeyError, TypeError):
            bundles = [self.settings, *(self.setting("task.parts") or {}).values()]
            parts = [item for bundle in bundles for item in bundle["reward"].get("parts", {}).items()]
            return frozenset(name for name, part in parts if registry.find("reward", part["type"]).is_penalty)
        return frozenset()


def setting_of(settings: Mapping[str, Any], key: str) -> Any:
    """`setting_of(settings, "trainer.max_steps")`, None if unknown."""
    value: Any = settings
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def headline_of(settings: Mapping[str, Any]) -> str:
    """The metric by which a run of these settings is judged: `eval/rpn/accuracy`."""
    task, metric = (setting_of(settings, key) for key in ("task.name", "evaluation.headline"))
    return f"eval/{label_of(str(task))}/{metric or 'accuracy'}"


def is_run(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).exists() for name in ("config.yaml", "metrics.jsonl", "rollouts"))


def run_folders(folder: Path, depth: int = MAX_DEPTH) -> Iterator[Path]:
    """The folder if it is a run, else the runs inside and in the folders below; links are not followed."""
    if is_run(folder):
        yield folder
    elif depth:
        with suppress(OSError):
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    yield from run_folders(path, depth - 1)


def text_of(file: Path) -> str:
    """What the file says; empty if there is none."""
    with suppress(OSError):
        return file.read_text("utf-8", errors="replace").strip()
    return ""


def read_history(folder: Path) -> History:
    """Read a run folder as far as possible; `notes` has a sentence for everything else."""
    config, metrics = folder / "config.yaml", folder / "metrics.jsonl"
    notes = [f"There is no {path}." for path in (config, metrics) if not path.is_file()]
    text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
    settings: dict[str, Any] = {}
    try:
        settings |= values_in(text)
    except Exception as error:  # from YAML, from OmegaConf, or because the text is no mapping
        notes.append(f"{config} is damaged ({str(error).partition(chr(10))[0]}): it is shown, but not used.")
    rows: dict[float, dict[str, float]] = {}
    damaged = []
    lines = metrics.read_bytes().split(b"\n")[:-1] if metrics.is_file() else []  # the last one may be incomplete
    for number, line in enumerate(lines, start=1):
        try:
            row = metrics_row(line)
            rows[row["step"]] = row  # the last line of a repeated step counts
        except ValueError as error:
            damaged.append(f"{metrics}, line {number}, is damaged and left out ({error}).")
    ordered = [rows[step] for step in sorted(rows)]
    return History(folder=folder, rows=ordered, settings=settings, text=text, notes=notes + few(damaged))
