"""What the schema knows, as tables: sections, the choices of each, and every dotted key."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from rlvr.config.schema import Config, Section

ONLY_CHOICE = "default"  # the choice of a section that has no `name`, e.g. trainer


@dataclass(frozen=True, kw_only=True)
class Key:
    """A dotted key: `Key(path="algorithm.target_kl", choices=("ppo",), field=...)`; `choices=()` at top level."""

    path: str
    choices: tuple[str, ...]
    field: FieldInfo


def choice_models(section: str) -> dict[str, type[Section]]:
    """The schemas of a section by choice: `{"grpo": Grpo, ...}`, or `{"default": Trainer}` where there is only one."""
    annotation = Config.model_fields[section].annotation
    models = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return {_choice_name(model): model for model in models if isinstance(model, type) and issubclass(model, Section)}


def _choice_name(model: type[Section]) -> str:
    return get_args(model.model_fields["name"].annotation)[0] if "name" in model.model_fields else ONLY_CHOICE


def sections() -> tuple[str, ...]:
    """The names of all sections, e.g. `("task", "model", ...)`."""
    return tuple(name for name in Config.model_fields if choice_models(name))


def keys() -> Iterator[Key]:
    """Every key once, in the order of the schema; a key that several choices share lists them all."""
    for section, field in Config.model_fields.items():
        models = choice_models(section)
        if not models:
            yield Key(path=section, choices=(), field=field)
        names = dict.fromkeys(name for model in models.values() for name in model.model_fields)
        for name in names:
            owners = tuple(choice for choice, model in models.items() if name in model.model_fields)
            yield Key(path=f"{section}.{name}", choices=owners, field=models[owners[0]].model_fields[name])


def has_value(config: Config, path: str) -> bool:
    """Whether the chosen sections have this key."""
    section, _, name = path.partition(".")
    return not name or name in type(getattr(config, section)).model_fields


def value_of(config: Config, path: str) -> Any:
    """`value_of(config, "trainer.max_steps")`"""
    return reduce(getattr, path.split("."), config)
