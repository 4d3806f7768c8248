"""The section `tracker`: console, files and experiment trackers."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, InstanceOf, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from rlvr import registry
from rlvr.errors import ConfigError
from rlvr.settings import (
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Settings,
    Text,
    label_of,
    setting,
    validated,
    wrong,
)
from rlvr.tracking.trackers.base import Tracker

_TRACKERS = "trackers by label"  # not a user-visible key: the sections have their own keys


class TrackerSettings(Settings):
    """Console, files and experiment trackers.

    Each tracker has a section named by its label: `{"report_to": ["wandb"], "wandb": {"project": "mine"}}`.
    """

    flat_field: ClassVar[str] = "backends"

    console: Literal["auto", "live", "plain", "none"] = setting(
        "auto", "live line, plain lines, or nothing; auto: live on a terminal"
    )
    log_every: PositiveInt = setting(
        10, "steps between console lines; metrics.jsonl has every step", only_if="console != 'none'", debug=1
    )
    rollouts_every: PositiveInt | None = setting(
        10, "steps between rollout files, the first step included; null: none", debug=1
    )
    rollouts_max_groups: PositiveInt | None = setting(
        8, "groups per rollout file; null: all", only_if="rollouts_every is not None", debug=None
    )
    report_to: tuple[Text, ...] = setting(
        (),
        "experiment trackers, which get all metrics: mlflow, wandb, tensorboard, my_tracker:Csv, or several "
        "(docs/trackers.md)",
    )
    run_name: Text | None = setting(None, "name of the run there; null: that of its folder", only_if="report_to")
    group: Text | None = setting(
        None, "group of the run there; null: none, or, with --multirun, the sweep's folder", only_if="report_to"
    )
    tags: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = setting(
        (), "labels there, e.g. [baseline,paper]; MLflow reads team:nlp as a tag with a value", only_if="report_to"
    )
    max_completions: NonNegativeInt = setting(
        16,
        "completions sent per rollout file, in its order; 0: none",
        only_if="report_to and rollouts_every is not None",
    )
    timeout_s: PositiveFloat = setting(
        60.0,
        "time limit per tracker call, then the tracker is disabled; training never waits, the end of the run at most "
        "this long",
        only_if="report_to",
    )
    upload_timeout_s: PositiveFloat = setting(
        600.0,
        "time limit for the final model, with log_model=true",
        only_if="keeps_model  # a tracker with log_model=true",
    )
    backends: Mapping[str, InstanceOf[Tracker]] = setting({}, "the trackers by label", validation_alias=_TRACKERS)

    @property
    def reported(self) -> list[Tracker]:
        return [self.backends[label_of(name)] for name in self.report_to]

    @property
    def keeps_model(self) -> bool:
        return any(tracker.keeps_model for tracker in self.reported)

    def check_installed(self) -> None:
        for tracker in self.reported:
            tracker.check_installed()

    @model_validator(mode="before")
    @classmethod
    def _read_sections(cls, values: Any) -> Any:
        """Create the trackers from their sections; all built-in ones have a section.

        Raises ConfigError for an unknown name in `report_to`.
        """
        if not isinstance(values, Mapping):
            return values
        # after a `before` validator pydantic accepts no list for a tuple
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        if isinstance(values.get("report_to"), str):
            values["report_to"] = (values["report_to"],)
        reported = values.get("report_to", ())
        names = [*registry.every("tracker"), *(reported if isinstance(reported, tuple) else ())]
        sections = {}
        for label, name in {label_of(name): name for name in names if isinstance(name, str)}.items():
            if label in cls.model_fields or (":" in name and label in registry.every("tracker")):
                raise ConfigError(f"tracker.report_to={name}: tracker.{label} is taken; give the class another name.")
            sections[label] = _section(cls, label, registry.find("tracker", name), values.pop(label, {}))
        return {**values, _TRACKERS: sections}

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        labels = [label_of(name) for name in self.report_to]
        if len(set(labels)) < len(labels):
            raise wrong("report_to", "names a tracker twice; name each once")
        return self


def _section(settings: type[Settings], label: str, tracker: type[Tracker], values: Any) -> Tracker:
    if isinstance(values, Tracker):
        return values
    try:
        return validated(tracker, values)
    except ValidationError as error:
        inside = {"errors": error.errors(), "model": tracker}
        located = [{"type": "inside", "loc": (label,), "ctx": inside, "input": values}]
        raise PydanticCustomError("inside", "inside", {"errors": located, "model": settings}) from None
