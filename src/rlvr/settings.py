"""Settings: frozen pydantic classes whose fields carry default, bounds, description and condition.

    class Sampling(Settings):
        temperature: PositiveFloat = setting(1.0, "sampling temperature")
        top_k: NonNegativeInt = setting(0, "sample from the k likeliest tokens; 0: all", only_if="temperature > 0.1")

A setting without a default: `setting(description="...")`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError, PydanticUndefined

from rlvr import registry
from rlvr.conditions import check_names
from rlvr.errors import ConfigError
from rlvr.imports import user_code
from rlvr.run_view import RunView

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]


Range = tuple[float, float]


@dataclass(frozen=True)
class Usual:
    """The usual range of a setting, and what smaller and larger values lead to; rlvr.usual says it.

    `range` may be a function of the run's values, nested as in config.yaml, whose docstring says it in words. `link` is
    the one of the chain that such a value breaks (rlvr.tracking.signals).
    """

    range: Range | Callable[[Mapping[str, Any]], Range]
    below: str = ""
    above: str = ""
    link: str = "step"

    @property
    def words(self) -> str:
        return (self.range.__doc__ or "") if callable(self.range) else in_words(self.range)


def in_words(usual: Range) -> str:
    """`0.1 to 2`, or `0.01 or more`."""
    least, most = (f"{end:,}" if isinstance(end, int) else f"{end:.3g}" for end in usual)
    return f"{least} or more" if usual[1] == inf else f"{least} to {most}"


def setting(
    default: Any = PydanticUndefined,
    description: str = "",
    *,
    only_if: str = "",
    debug: Any = ...,
    usual: Usual | None = None,
    **bounds: Any,
) -> Any:
    """A field of a `Settings` class.

    Args:
        default: a list or dict is copied.
        description: one line for `rlvr train --help-config`.
        only_if: a condition over sibling fields and facts of the run, see `rlvr.conditions`, e.g. `"kl_coef > 0"` or
            `"model.from_scratch  # a model made from scratch"`. If it is false, a value set by the user is an error.
        debug: value with `debug=true`; a smaller number stays.
        usual: outside of it the run, `rlvr doctor` and `rlvr diagnose` say what the value leads to.
        bounds: `ge`, `gt`, `le`, `lt`, `min_length`, `pattern`, ... of `pydantic.Field`.
    """
    extra: Any = {"only_if": only_if, "debug": debug, "usual": usual}
    return Field(default, description=description, json_schema_extra=extra, **bounds)


def wrong(key: str, remedy: str) -> PydanticCustomError:
    """The error of a check between fields: `raise wrong("top_n", "is more than max_top_n=5; lower it")`.

    `key` is a sibling field of the check; the message shows its full key and its value.
    """
    return PydanticCustomError("wrong", "{remedy}", {"key": key, "remedy": remedy})


class Settings(BaseModel):
    """A section of a configuration: strict and frozen. Checks between fields are `model_validator(mode="after")`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

    flat_field: ClassVar[str] = ""
    """A mapping field whose entries become keys of the section: `tracker.mlflow` for `backends["mlflow"]`."""
    only_if: ClassVar[str] = ""  # as in `setting`, for all fields

    @classmethod
    def __pydantic_init_subclass__(cls, **more: Any) -> None:
        super().__pydantic_init_subclass__(**more)
        for name in cls.model_fields:
            if text := only_if(cls, name):
                check_names(text, cls)


class Component(Settings):
    """Settings of a component chosen by name: `task=gsm8k`, `task=my_shop:Shop`; see `rlvr.registry`."""

    group: ClassVar[str]
    registered_name: ClassVar[str] = ""

    @property
    def name(self) -> str:
        """The name that selects it: `grpo`, `my_algo:Reinforce`."""
        return registry.name_of(type(self))

    @property
    def label(self) -> str:
        """The name in metrics and folders: `grpo`, and `reinforce` for `my_algo:Reinforce`."""
        return label_of(self.name)

    def check_run(self, run: RunView) -> None:
        """Raise ConfigError if the component does not work in this run."""

    def remarks(self, run: RunView) -> Iterable[str]:
        """Notes for the user about the component in this run, as sentences."""
        return ()

    def check_found(self, key: str) -> None:
        """Raise ConfigError, before torch is loaded, if a file or function it names is missing.

        `key` is the component's key: `task`, `reward.parts.custom`.
        """


def only_if(settings: type[Settings], field: str) -> str:
    """The condition of a field, or of its class; empty: none."""
    extra = settings.model_fields[field].json_schema_extra
    return str((extra.get("only_if") if isinstance(extra, Mapping) else "") or settings.only_if)


def label_of(name: str) -> str:
    """The `label` of a component name."""
    return name.rpartition(":")[2].rpartition(".")[2].lower() if ":" in name else name


def dumped(settings: Settings) -> dict[str, Any]:
    """Plain JSON-like values; a component starts with its `name` (a reward part with its `type`)."""
    tag = "type" if isinstance(settings, Component) and settings.group == "reward" else "name"
    return ({tag: settings.name} if isinstance(settings, Component) else {}) | _fields(settings)


def _fields(settings: Settings) -> dict[str, Any]:
    values = {key: plain(getattr(settings, key)) for key in type(settings).model_fields if key != settings.flat_field}
    sections = getattr(settings, settings.flat_field) if settings.flat_field else {}
    return values | {label: _fields(section) for label, section in sections.items()}


def leaf_values(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested values: `{"trainer": {"max_steps": 3}}` gives `("trainer.max_steps", 3)`."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from leaf_values(item, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, value


def plain(value: Any) -> Any:
    """The value as YAML and JSON represent it."""
    if isinstance(value, Settings):
        return dumped(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def chosen(group: str) -> Any:
    """Field type for a component of a group: `algorithm: Annotated[Algorithm, chosen("algorithm")]`.

    The value names it: `{"name": "grpo", "clip_low": 0.1}`; for reward parts `{"type": "numeric", "weight": 3.0}`.
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
            with user_code(f"{registry.KEYS.get(group, group)}={value[tag]}: its class", ValidationError):
                return validated(component, {key: item for key, item in value.items() if key != tag})
        except ValidationError as error:
            raise PydanticCustomError("inside", "inside", {"errors": error.errors(), "model": component}) from None
        except ConfigError as error:
            if group != "reward":
                raise
            raise PydanticCustomError("no_component", "{sentence}", {"sentence": str(error)}) from None

    return PlainValidator(validate)


def validated(settings: type[Any], values: Mapping[str, Any]) -> Any:
    """Validate strictly, but accept lists for tuples. Raises ValidationError."""
    return settings.model_validate_json(json.dumps(values), strict=True)
