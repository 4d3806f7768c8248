"""What a tracker's library is asked to do, inside the tracker's own process."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from rlvr.errors import ConfigError

Status = Literal["finished", "killed", "failed"]  # came to its end; was asked to stop; ended by an error
Numbers = dict[str, float]
Row = tuple[int, Numbers]  # a step with its numbers; those that are not finite are left out


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a tracker is told before the first number: plain JSON, for it goes to another process.

    `config` is that of config.yaml, nested; `settings` are those of this tracker; `folder` is absolute. `known` is what
    `Started` said when the run was last reported, None for the first time. Steps before `first_step` are made already.
    """

    name: str
    experiment: str
    group: str | None
    tags: list[str]
    config: dict[str, Any]
    settings: dict[str, Any]
    folder: str
    timeout_s: float
    version: str
    known: dict[str, Any] | None
    first_step: int


@dataclass(frozen=True, kw_only=True)
class Started:
    """The tracker's run: its `id` in a `store`, and how to look at it.

    `last_step` is the last one that the tracker has already, -1 for none: later ones are sent, others are not.
    """

    id: str
    store: str
    where: str
    last_step: int

    def to_json(self) -> dict[str, Any]:
        """For the run's folder."""
        return asdict(self)


class Backend(Protocol):
    """One tracker. Whatever a method raises ends the reporting, never the run."""

    def prepare(self, run: RunFacts) -> None:
        """What takes long the first time but needs no one else: making a store on this machine."""
        ...

    def start(self, run: RunFacts) -> Started:
        """Begin a run, or go on with the known one."""
        ...

    def log(self, rows: Sequence[Row]) -> None:
        """Numbers of some steps, in their order."""
        ...

    def completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        """Sampled completions of a step, all with the same keys."""
        ...

    def files(self, paths: Sequence[str]) -> None:
        """Files of the run folder to be kept with the run."""
        ...

    def model(self, folder: str) -> None:
        """The final model."""
        ...

    def finish(self, status: Status) -> None:
        """Wait until all is there, and say how the run ended."""
        ...


TITLES = {"mlflow": "MLflow", "wandb": "Weights & Biases", "tensorboard": "TensorBoard"}


def check_installed(names: Sequence[str]) -> None:
    """ConfigError for the first tracker whose library is missing."""
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # without origin: a folder of that name, as `wandb` leaves behind
            raise ConfigError(
                f"tracker.report_to: {name} needs a library that is not installed; pip install 'rlvr[{name}]'."
            )


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"trainer": {"max_steps": 3}}` as `{"trainer.max_steps": 3}`; an empty section stays, as a value."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        inside = isinstance(value, dict) and value
        flat |= flatten(value, f"{prefix}{key}.") if inside else {f"{prefix}{key}": value}
    return flat


def without_password(text: str) -> str:
    """`http://me:secret@host/x` as `http://host/x`, wherever it stands in the text."""
    return re.sub(r"://[^/@\s]*@", "://", text)


def split_tag(tag: str) -> tuple[str, str]:
    """`team:nlp` is a name with a value; a plain tag has the value `true`."""
    name, sign, value = tag.partition(":")
    return (name, value) if sign and name and value else (tag, "true")
