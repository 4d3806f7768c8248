"""The configuration of a run: frozen sections, each declared beside its code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import Field, PrivateAttr
from pydantic.fields import FieldInfo

from rlvr import registry
from rlvr.algorithms.algorithm import Algorithm
from rlvr.core.settings import RolloutSettings
from rlvr.engines.settings import EngineSettings
from rlvr.evaluation.settings import EvaluationSettings
from rlvr.models.settings import Model
from rlvr.rewards.settings import RewardSettings
from rlvr.samplers.base import PromptSampler
from rlvr.samplers.uniform import Uniform
from rlvr.settings import Component, NonNegativeInt, Settings, Text, chosen, setting
from rlvr.tasks.prompts import MarkersSettings, Prompt
from rlvr.tasks.settings import TaskBundle, TaskSettings
from rlvr.tracking.settings import TrackerSettings
from rlvr.training.settings import TrainingSettings, WarmStartSettings


class Config(Settings):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = setting(
        "run", "first part of the run folder's name: letters, digits, `.`, `_` and `-`"
    )
    seed: NonNegativeInt = setting(0, "the one seed; every other is derived from it")
    run_dir: Text | None = setting(None, "run folder; null: runs/<name>-<time>; runs/latest points to the newest run")
    resume: bool = setting(False, "resume from the last complete checkpoint in run_dir")
    debug: bool = setting(False, "few examples and steps; write every rollout, print every episode by turn")
    task: Annotated[TaskSettings, chosen("task")]
    model: Annotated[Model, chosen("model")]
    warm_start: WarmStartSettings = WarmStartSettings()
    reward: RewardSettings
    prompt: Annotated[Prompt, chosen("prompt")]
    markers: MarkersSettings = MarkersSettings()
    rollout: RolloutSettings = RolloutSettings()
    sampler: Annotated[PromptSampler, chosen("sampler")] = Uniform()
    algorithm: Annotated[Algorithm, chosen("algorithm")]
    trainer: TrainingSettings = TrainingSettings()
    engine: Annotated[EngineSettings, chosen("engine")]
    evaluation: EvaluationSettings = EvaluationSettings()
    tracker: TrackerSettings = TrackerSettings()
    _notes: tuple[str, ...] = PrivateAttr(())
    _is_trained: bool = PrivateAttr(True)
    _set_name: str | None = PrivateAttr(None)

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    def note(self, notes: Iterable[str]) -> None:
        """Put notes for the user before those that there are."""
        self._notes = tuple(dict.fromkeys([*notes, *self._notes]))

    @property
    def is_trained(self) -> bool:
        return self._is_trained

    @property
    def set_name(self) -> str:
        """Name of its task in metrics: its label, or its name next to another task."""
        return self._set_name or self.task.label

    @property
    def trained(self) -> Mapping[str, Config | TaskBundle]:
        """Training tasks by name: the parts of a mix, or the run's own task, reward and prompt."""
        return self.task.bundles or {self.set_name: self}

    @property
    def bundles(self) -> Mapping[str, Config | TaskBundle]:
        return {**self.trained, **self.evaluation.also}

    def with_bundle(self, bundle: TaskBundle, *, is_trained: bool = True, name: str | None = None) -> Config:
        """The run with `bundle`, called `name`, as its only task."""
        evaluation = self.evaluation.model_copy(update={"also": {}})
        sections = {"task": bundle.task, "reward": bundle.reward, "prompt": bundle.prompt, "evaluation": evaluation}
        alone = self.model_copy(update=sections)
        alone._is_trained, alone._set_name = is_trained, name
        return alone


SECTIONS = tuple(name for name in Config.model_fields if name not in ("name", "seed", "run_dir", "resume", "debug"))
CHOICES = ("task", "model", "reward", "prompt", "sampler", "algorithm", "engine")
"""Sections chosen by `section=choice`."""


ANY_NAME = "<name>"
"""Placeholder for a user-chosen name: reward.parts.<name>.weight"""


def inner(annotation: Any) -> tuple[type[Settings] | None, bool]:
    """The settings class inside an annotation, and whether it is the value of a mapping."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return inner(get_args(annotation)[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return inner(get_args(annotation)[1])[0], True
    if origin in (Union, UnionType):
        return next((found for one in get_args(annotation) if (found := inner(one)[0])), None), False
    return (annotation if isinstance(annotation, type) and issubclass(annotation, Settings) else None), False


def keys(settings: type[Settings], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """`("trainer.max_steps", FieldInfo(...))` for each value of a class; nested components and tasks are values."""
    for name, field in settings.model_fields.items():
        kind, is_mapping = inner(field.annotation)
        path = f"{prefix}{name}"
        if name == settings.flat_field:
            for label, tracker in registry.every("tracker").items():
                yield from keys(tracker, f"{prefix}{label}.")
        elif kind is None or issubclass(kind, (Component, TaskBundle)):
            yield path, field
        else:
            yield from keys(kind, f"{path}.{ANY_NAME}." if is_mapping else f"{path}.")


def all_keys(chosen: Mapping[str, str]) -> dict[str, FieldInfo]:
    """Every key of a run with these choices: `{"algorithm": "ppo", ...}`."""
    fields: dict[str, FieldInfo] = {}
    for name, field in Config.model_fields.items():
        section = registry.find(name, chosen[name]) if name in chosen else inner(field.annotation)[0]
        fields |= {name: field} if section is None else dict(keys(section, f"{name}."))
    return fields


def owners(key: str) -> list[str]:
    """Choices that have a key which others lack: `["algorithm=ppo"]` for `algorithm.target_kl`,
    `["type=length"]` for `reward.parts.short.free_tokens`."""
    section, _, rest = key.partition(".")
    every = registry.every(section) if section in CHOICES else {}
    if section == "reward":
        last = rest.rpartition(".")[2] if rest.startswith("parts.") and rest.count(".") == 2 else ""
        have = [f"type={name}" for name, one in every.items() if last in one.model_fields]
        return have if len(have) < len(every) else []

    def has(path: str, field: FieldInfo) -> bool:  # also sections (`lora`) and values inside mappings
        return f"{path}.".startswith(f"{rest}.") or (rest.startswith(f"{path}.") and "Mapping" in str(field.annotation))

    return [f"{section}={name}" for name, one in every.items() if any(has(*item) for item in keys(one))]


def matches(pattern: str, path: str) -> bool:
    """Whether `path` matches `pattern` with user-chosen names filled in."""
    wanted, given = pattern.split("."), path.split(".")
    return len(wanted) == len(given) and all(w in (ANY_NAME, g) for w, g in zip(wanted, given, strict=True))


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Settings]]:
    """Every settings object inside `value`, itself first, with its dotted path."""
    if isinstance(value, Settings):
        yield path, value
        items: dict[str, Any] = {name: getattr(value, name) for name in type(value).model_fields}
        items |= items.pop(value.flat_field, {})  # its entries are sibling keys
    else:
        items = dict(value) if isinstance(value, Mapping) else {}
    for name, item in items.items():
        if isinstance(item, Settings | Mapping):
            yield from walk(item, f"{path}.{name}" if path else str(name))
