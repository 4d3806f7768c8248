"""Components by name: `find("algorithm", "grpo")`, `find("algorithm", "my_algo:Reinforce")`.

    @register("algorithm", "grpo")
    class Grpo(ClippedRatio): ...

A class declares a component completely; `components.toml` says which module of rlvr holds one of ours. The user's are
found by `module:Class` in the current folder, `--config-dir` or an installed package, which can also register names:

    [project.entry-points."rlvr.components"]
    "algorithm.mine" = "my_algo:Reinforce"
"""

import importlib
import tomllib
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from inspect import isfunction, signature
from pathlib import Path
from typing import Any, TypeVar

from rlvr.errors import ConfigError, suggestion
from rlvr.imports import imported

WORDS = {"reward": "part of a reward"}  # a component in a message, if not the group's name
TABLE = Path(__file__).with_name("components.toml")
PLUGINS = Path(__file__).parents[2] / "plugins"  # of a clone: packages beside ours, each installed where it is wanted
KEYS = {  # the key that names one
    "tracker": "tracker.report_to",
    "retriever": "task.retriever",
    "reward": "type",
    "metric": "task.metric",
}

Class = TypeVar("Class", bound=type)
_registered: defaultdict[str, dict[str, type]] = defaultdict(dict)


def register(group: str, *names: str) -> Callable[[Class], Class]:
    """Register our class as component `names` of a group; the first name is displayed.

    User classes need no registration: `module:Class` or an entry point finds them.
    """

    def add(component: Class) -> Class:
        if not component.__module__.startswith("rlvr."):
            return component
        _registered[group] |= dict.fromkeys(names, component)
        component.registered_name = names[0]  # type: ignore[attr-defined]
        return component

    return add


def name_of(component: type) -> str:
    """The name that selects a component: its registered name, else `module:Class`."""
    return component.__dict__.get("registered_name") or f"{component.__module__}:{component.__qualname__}"


def names(group: str) -> list[str]:
    """All names of a group: ours and those of installed packages."""
    return [*_modules(group), *_entry_points(group)]


def ours(group: str) -> dict[str, Any]:
    """Our components of a group by name."""
    return {name: _ours(group, name) for name in _modules(group)}


def every(group: str) -> dict[str, Any]:
    """All importable components of a group by name: ours and those of installed packages."""
    components = ours(group)
    for name in _entry_points(group):
        with suppress(ConfigError):
            components[name] = find(group, name)
    return components


def find(group: str, name: str) -> Any:
    """The class called `name`. ConfigError for an unknown name, module or class."""
    if name in _modules(group):
        return _ours(group, name)
    what, base = f"{KEYS.get(group, group)}={name}", _base(group)
    path = name if ":" in name else _entry_points(group).get(name)
    if path is None:
        raise ConfigError(f"{what}: there is no such {WORDS.get(group, group)}; {remedy(group, name, names(group))}")
    component = imported(what, path, base.__name__, lambda value: base in getattr(value, "__mro__", ())[1:])
    for missing in sorted(getattr(component, "__abstractmethods__", ())):
        owner = next(one for one in reversed(component.__mro__) if missing in vars(one))
        raise ConfigError(f"{what}: has no method {missing}, which every {owner.__name__} needs; add it.")
    _check_methods(what, component)
    if path != name:
        component.registered_name = name
    return component


def remedy(group: str, name: str, known: list[str]) -> str:
    """What to do about an unknown name: install the package of this clone that brings it, or choose one of `known`."""
    for file in PLUGINS.glob("*/pyproject.toml"):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        if f"{group}.{name}" in project.get("entry-points", {}).get("rlvr.components", ()):
            folder = f"{PLUGINS.name}/{file.parent.name}"
            return f"{project['name']} brings it: pip install -e . -e {folder} -c constraints.txt."
    return suggestion(name, known)


def _check_methods(what: str, component: type) -> None:
    """ConfigError for a method whose parameters differ from those of the method it overrides."""
    for name, own in vars(component).items():
        replaced = next((vars(one)[name] for one in component.__mro__[1:] if name in vars(one)), None)
        if name.startswith("_") or not (isfunction(own) and isfunction(replaced)):
            continue
        parameters = signature(replaced).parameters.values()
        by_name = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
        try:
            signature(own).bind(*[each for each in parameters if each.name not in by_name], **dict.fromkeys(by_name))
        except TypeError:
            asked = ", ".join(each.name for each in parameters)
            raise ConfigError(f"{what}: its method {name} must take ({asked}); correct its parameters.") from None


@cache
def _modules(group: str) -> dict[str, str]:
    """Name -> module of each of our components, by `components.toml`: importing one imports no other."""
    modules = tomllib.loads(TABLE.read_text(encoding="utf-8")).get(group, {})
    return dict(sorted((name, f"rlvr.{module}") for module, here in modules.items() for name in here))


def _ours(group: str, name: str) -> type:
    importlib.import_module(_modules(group)[name])
    return _registered[group][name]


def _entry_points(group: str) -> dict[str, str]:
    return {name.removeprefix(f"{group}."): value for name, value in _installed() if name.startswith(f"{group}.")}


@cache
def _installed() -> list[tuple[str, str]]:
    """All entry points for components: a search of every installed package."""
    return [(point.name, point.value) for point in entry_points(group="rlvr.components")]


def _base(group: str) -> type:
    """The base class of a group's components: it declares `group = "task"` itself."""
    component = _ours(group, next(iter(_modules(group))))
    return next(one for one in reversed(component.__mro__) if one.__dict__.get("group") == group)
