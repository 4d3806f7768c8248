"""What the schema knows, as tables: sections, the choices of each, and every dotted key."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from rlvr.config.schema import Config, Section, TaskBundle

ONLY_CHOICE = "default"  # the choice of a section that has no `name`, e.g. trainer
ANY_NAME = "<name>"  # stands for a name of the user's own: reward.parts.<name>.weight


@dataclass(frozen=True, kw_only=True)
class Key:
    """A dotted key: `Key(path="algorithm.target_kl", choices=("ppo",), types=(), field=...)`.

    `choices=()` at top level. `types` are the kinds of an item that have it: `types=("finqa_program",)` for
    `reward.parts.<name>.mode`.
    """

    path: str
    choices: tuple[str, ...]
    types: tuple[str, ...]
    field: FieldInfo


def inner_models(annotation: Any) -> tuple[list[type[Section]], bool]:
    """The sections inside an annotation, and whether they are the values of a mapping.

    `Lora` -> `[Lora], False`; `dict[str, A | B]` -> `[A, B], True`. A task bundle counts as a value.
    """
    if get_origin(annotation) is Annotated:
        return inner_models(get_args(annotation)[0])
    if get_origin(annotation) is dict:
        return inner_models(get_args(annotation)[1])[0], True
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    models = [o for o in options if isinstance(o, type) and issubclass(o, Section) and not issubclass(o, TaskBundle)]
    return models, False


def choice_models(section: str) -> dict[str, type[Section]]:
    """The schemas of a section by choice: `{"grpo": Grpo, ...}`, or `{"default": Trainer}` where there is only one."""
    models, _ = inner_models(Config.model_fields[section].annotation)
    return {tag(model, "name") or ONLY_CHOICE: model for model in models}


def tag(model: type[Section], discriminator: str) -> str | None:
    """The one value of a model's `name` or `type`; None if it has no such field."""
    if discriminator not in model.model_fields:
        return None
    return get_args(model.model_fields[discriminator].annotation)[0]


def sections() -> tuple[str, ...]:
    """The names of all sections, e.g. `("task", "model", ...)`."""
    return tuple(name for name in Config.model_fields if choice_models(name))


def keys() -> Iterator[Key]:
    """Every key once, in the order of the schema; a key that several choices or types share lists them all."""
    for section, field in Config.model_fields.items():
        models = choice_models(section)
        if not models:
            yield Key(path=section, choices=(), types=(), field=field)
        found: dict[str, list[tuple[str, str | None, FieldInfo]]] = {}
        for choice, model in models.items():
            for path, kind, leaf in _leaves(model, section, None):
                found.setdefault(path, []).append((choice, kind, leaf))
        for path, owners in found.items():
            choices = tuple(dict.fromkeys(choice for choice, _, _ in owners))
            types = tuple(dict.fromkeys(kind for _, kind, _ in owners if kind is not None))
            yield Key(path=path, choices=choices, types=types, field=owners[0][2])


def _leaves(model: type[Section], prefix: str, kind: str | None) -> Iterator[tuple[str, str | None, FieldInfo]]:
    for name, field in model.model_fields.items():
        models, is_mapping = inner_models(field.annotation)
        path = f"{prefix}.{name}" + (f".{ANY_NAME}" if is_mapping and models else "")
        for inner in models:
            yield from _leaves(inner, path, tag(inner, "type"))
        if not models:
            yield path, kind, field


def find(path: str) -> Key | None:
    """The key that a dotted path names; `reward.parts.mine.weight` is found as `reward.parts.<name>.weight`."""
    return next((key for key in keys() if matches(key.path, path)), None)


def mapping_of(path: str) -> Key | None:
    """The mapping, with names of the user's own, that a path would be an item of; the Key is its own or an item's.

    `task.settings` for `task.settings.max_terms`, `markers.sets.<name>.reasoning_start` for `markers.sets.mine`.
    """
    parent = path.rpartition(".")[0]
    for key in keys():
        is_mapping = get_origin(key.field.annotation) is dict
        mapping = key.path if is_mapping else key.path.rpartition(f".{ANY_NAME}.")[0]
        if mapping and matches(mapping, parent):
            return key
    return None


def matches(pattern: str, path: str) -> bool:
    """Whether `path` is `pattern` with names of the user's own filled in."""
    wanted, given = pattern.split("."), path.split(".")
    return len(wanted) == len(given) and all(w in (ANY_NAME, g) for w, g in zip(wanted, given, strict=True))


def has_value(config: Config, path: str) -> bool:
    """Whether the chosen sections have this key."""
    part: Any = config
    for name in path.split("."):
        known = part if isinstance(part, Mapping) else type(part).model_fields if isinstance(part, Section) else {}
        if name not in known:
            return False
        part = _step(part, name)
    return True


def value_of(config: Config, path: str) -> Any:
    """`value_of(config, "trainer.max_steps")`"""
    part: Any = config
    for name in path.split("."):
        part = _step(part, name)
    return part


def _step(part: Any, name: str) -> Any:
    return part[name] if isinstance(part, Mapping) else getattr(part, name)
