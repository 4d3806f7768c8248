"""A whole run as frozen settings: its sections, each declared beside the code that it configures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, PrivateAttr

from rlvr.core.algorithms.algorithm import Algorithm
from rlvr.core.settings import RolloutSettings, TrainerSettings
from rlvr.engines.settings import EngineSettings
from rlvr.evaluation.settings import EvaluationSettings
from rlvr.models.settings import Model
from rlvr.rewards.settings import RewardSettings
from rlvr.settings import NonNegativeInt, Settings, Text, chosen, setting
from rlvr.tasks.prompts import MarkersSettings, Prompt
from rlvr.tasks.settings import TaskBundle, TaskSettings
from rlvr.tracking.settings import TrackerSettings
from rlvr.training.settings import WarmStartSettings


class Config(Settings):
    """A whole run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = setting(
        "run", "first part of the run folder's name: letters, digits, `.`, `_` and `-`"
    )
    seed: NonNegativeInt = setting(0, "the one seed; every other is derived from it")
    run_dir: Text | None = setting(None, "run folder; null: runs/<name>-<time>; runs/latest points to the newest run")
    resume: bool = setting(False, "go on from the last complete checkpoint in run_dir")
    debug: bool = setting(False, "few examples and steps, every rollout written, every episode printed by turn")
    task: Annotated[TaskSettings, chosen("task")]
    model: Annotated[Model, chosen("model")]
    warm_start: WarmStartSettings = WarmStartSettings()
    reward: RewardSettings
    prompt: Annotated[Prompt, chosen("prompt")]
    markers: MarkersSettings = MarkersSettings()
    rollout: RolloutSettings = RolloutSettings()
    algorithm: Annotated[Algorithm, chosen("algorithm")]
    trainer: TrainerSettings = TrainerSettings()
    engine: Annotated[EngineSettings, chosen("engine")]
    evaluation: EvaluationSettings = EvaluationSettings()
    tracker: TrackerSettings = TrackerSettings()
    _notes: tuple[str, ...] = PrivateAttr(())
    _is_trained: bool = PrivateAttr(True)
    _set_name: str | None = PrivateAttr(None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the settings, in sentences."""
        return self._notes

    @property
    def is_trained(self) -> bool:
        """Whether its task is trained on, and not evaluated alone."""
        return self._is_trained

    @property
    def set_name(self) -> str:
        """What the metrics of its task are called: its label, or its name beside another task."""
        return self._set_name or self.task.label

    @property
    def trained(self) -> Mapping[str, Config | TaskBundle]:
        """What is trained on, by task: the parts of a mix, or the run's own task, reward and prompt."""
        return self.task.bundles or {self.set_name: self}

    @property
    def bundles(self) -> Mapping[str, Config | TaskBundle]:
        """What is trained on, and what is evaluated beside it."""
        return {**self.trained, **self.evaluation.also}

    def with_bundle(self, bundle: TaskBundle, *, is_trained: bool = True, name: str | None = None) -> Config:
        """The run as if `bundle`, called `name`, were its only task."""
        evaluation = self.evaluation.model_copy(update={"also": {}})
        sections = {"task": bundle.task, "reward": bundle.reward, "prompt": bundle.prompt, "evaluation": evaluation}
        alone = self.model_copy(update=sections)
        alone._is_trained, alone._set_name = is_trained, name
        return alone


SECTIONS = tuple(name for name in Config.model_fields if name not in ("name", "seed", "run_dir", "resume", "debug"))
CHOICES = ("task", "model", "reward", "prompt", "algorithm", "engine")
"""Sections that `section=choice` chooses."""
