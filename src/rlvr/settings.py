"""Settings: frozen pydantic classes whose fields carry default, bounds, meaning, and when they have an effect.

    class Sampling(Settings):
        temperature: PositiveFloat = setting(1.0, "sampling temperature")
        top_k: NonNegativeInt = setting(0, "sample from the k likeliest tokens; 0: all", only_if="temperature > 0.1")

A setting that has no default is written without one: `setting(description="...")`.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError, PydanticUndefined

from rlvr import registry
from rlvr.errors import ConfigError
from rlvr.imports import the_users_code

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]


def setting(
    default: Any = PydanticUndefined, description: str = "", *, only_if: str = "", debug: Any = ..., **bounds: Any
) -> Any:
    """A field of a `Settings` class.

    Args:
        default: its value where none is set; a list or dict is copied.
        description: what it means, in one line for `rlvr train --help-config`.
        only_if: a Python expression over the fields beside it and the sections of the run, e.g. `"kl_coef > 0"` or
            `"enabled and model.from_scratch"`. Where it is false, a value that the user said is an error.
        debug: its value with `debug=true`; a number that is smaller already stays.
        bounds: `ge`, `gt`, `le`, `lt`, `min_length`, `pattern`, ... as of `pydantic.Field`.
    """
    return Field(default, description=description, json_schema_extra={"only_if": only_if, "debug": debug}, **bounds)


def wrong(key: str, remedy: str) -> PydanticCustomError:
    """The error of a check between fields: `raise wrong("top_n", "is more than max_top_n=5; lower it")`.

    `key` is a field beside the check; the message gets its whole key and its value.
    """
    return PydanticCustomError("wrong", "{remedy}", {"key": key, "remedy": remedy})


class Settings(BaseModel):
    """Part of a configuration: strict and frozen. Checks between its fields are `model_validator(mode="after")`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    flat_field: ClassVar[str] = ""
    """A mapping among the fields whose entries are keys beside the others: `tracker.mlflow` of `backends["mlflow"]`."""


class Component(Settings):
    """Settings of something that is chosen by name: `task=gsm8k`, `task=my_shop:Shop`; see `rlvr.registry`."""

    group: ClassVar[str]
    registered_name: ClassVar[str] = ""
    only_if: ClassVar[str] = ""  # as of `setting`, for all of its fields

    @property
    def name(self) -> str:
        """What it is chosen by: `grpo`, `my_algo:Reinforce`."""
        return registry.name_of(type(self))

    @property
    def label(self) -> str:
        """The name as a word for metrics and folders: `grpo`, and `reinforce` for `my_algo:Reinforce`."""
        return label_of(self.name)

    def check_run(self, config: Any) -> None:
        """Raise ConfigError for what the component cannot do in this run."""

    def remarks(self, config: Any) -> Iterable[str]:
        """What the user should know about the component in this run, in sentences."""
        return ()

    def check_found(self, key: str) -> None:
        """Raise ConfigError, before torch is loaded, for a file or function that it names and that is not there.

        `key` is its own: `task`, `reward.parts.custom`.
        """


def label_of(name: str) -> str:
    """The `label` of the component that is chosen by a name."""
    return name.rpartition(":")[2].rpartition(".")[2].lower() if ":" in name else name


def dumped(settings: Settings) -> dict[str, Any]:
    """Plain values, JSON-like; a chosen component begins with its `name` (a part of a reward with its `type`)."""
    tag = "type" if isinstance(settings, Component) and settings.group == "reward" else "name"
    return ({tag: settings.name} if isinstance(settings, Component) else {}) | _fields(settings)


def _fields(settings: Settings) -> dict[str, Any]:
    values = {key: plain(getattr(settings, key)) for key in type(settings).model_fields if key != settings.flat_field}
    sections = getattr(settings, settings.flat_field) if settings.flat_field else {}
    return values | {label: _fields(section) for label, section in sections.items()}


def plain(value: Any) -> Any:
    """A value as YAML and JSON have it."""
    if isinstance(value, Settings):
        return dumped(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def chosen(group: str) -> Any:
    """The type of a field that holds a component of a group: `algorithm: Annotated[Algorithm, chosen("algorithm")]`.

    Its values say which: `{"name": "grpo", "clip_low": 0.1}`; parts of a reward `{"type": "numeric", "weight": 3.0}`.
    """
    tag = "type" if group == "reward" else "name"

    def validate(value: Any) -> Component:
        if isinstance(value, Component):
            return value
        if not isinstance(value, Mapping) or not isinstance(value.get(tag), str):
            raise PydanticCustomError("no_choice", "{tag}", {"tag": tag, "group": group})
        component = None
        try:
            component = registry.find(group, value[tag])
            with the_users_code(f"{registry.KEYS.get(group, group)}={value[tag]}: its class", ValidationError):
                return validated(component, {key: item for key, item in value.items() if key != tag})
        except ValidationError as error:
            raise PydanticCustomError("inside", "inside", {"errors": error.errors(), "model": component}) from None
        except ConfigError as error:
            if group != "reward":
                raise
            raise PydanticCustomError("no_component", "{sentence}", {"sentence": str(error)}) from None

    return PlainValidator(validate)


def validated(settings: type[Any], values: Mapping[str, Any]) -> Any:
    """Strictly, but lists of YAML are tuples. Raises ValidationError."""
    return settings.model_validate_json(json.dumps(values), strict=True)
