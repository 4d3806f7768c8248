"""Components by name: `find("algorithm", "grpo")`, `find("algorithm", "my_algo:Reinforce")`.

    @register("algorithm", "grpo")
    class Grpo(ClippedRatio): ...

A component is declared by its class alone. Ours are found in the package of their group; the user's by `module:Class`
in the current folder, `--config-dir` or an installed package, which may also give them short names:

    [project.entry-points."rlvr.components"]
    "algorithm.mine" = "my_algo:Reinforce"
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from rlvr.errors import ConfigError

PACKAGES = {
    "task": "rlvr.tasks",
    "reward": "rlvr.rewards",
    "prompt": "rlvr.tasks",
    "algorithm": "rlvr.algorithms",
    "model": "rlvr.models",
    "engine": "rlvr.engines",
    "retriever": "rlvr.retrieval",
    "tool": "rlvr.tasks",
    "tracker": "rlvr.tracking.trackers",
    "metric": "rlvr.rewards",
}
"""Group -> where ours are declared."""

WORDS = {"reward": "part of a reward"}
"""What a group's components are called in a sentence, where that is not the group's name."""

Class = TypeVar("Class", bound=type)
_registered: dict[str, dict[str, type]] = {group: {} for group in PACKAGES}
_folders: list[str] = []


def register(group: str, *names: str) -> Callable[[Class], Class]:
    """Make a class the component `names` of a group; the first name is the one that is shown."""

    def add(component: Class) -> Class:
        for name in names:
            _registered[group][name] = component
        component.registered_name = names[0]  # type: ignore[attr-defined]
        return component

    return add


def name_of(component: type) -> str:
    """What a component is chosen by: its registered name, else `module:Class`."""
    return component.__dict__.get("registered_name") or f"{component.__module__}:{component.__qualname__}"


def names(group: str) -> list[str]:
    """All names of a group: ours, and those that installed packages add."""
    return [*_ours(group), *_entry_points(group)]


def find(group: str, name: str) -> Any:
    """The class called `name`. ConfigError, one sentence, for a name, module or class that is none."""
    if ":" in name:
        return _imported(group, name, name)
    if name in _ours(group):
        return _ours(group)[name]
    if name in _entry_points(group):
        return _imported(group, name, _entry_points(group)[name])
    raise ConfigError(f"{group}={name}: there is no such {WORDS.get(group, group)}; {suggestion(name, names(group))}")


def suggestion(name: str, known: list[str]) -> str:
    """`did you mean grpo?`, or all that there are."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}? (there are {', '.join(known)})" if near else f"there are {', '.join(known)}."


def look_in(folder: str) -> None:
    """Also find modules of the user's own in this folder."""
    if folder not in _folders:
        _folders.append(folder)


@contextmanager
def importable() -> Iterator[None]:
    """The current folder and `look_in`'s can be imported from; last, so that no file there hides a package."""
    added = [os.getcwd(), *_folders]
    sys.path.extend(added)
    try:
        yield
    finally:
        for folder in added:
            sys.path.remove(folder)


@cache
def _ours(group: str) -> dict[str, type]:
    """Import the modules of the group's package that declare one of its components."""
    package = importlib.import_module(PACKAGES[group])
    for module in pkgutil.iter_modules(package.__path__):
        if f'@register("{group}"' in _source(Path(package.__path__[0]), module.name):
            importlib.import_module(f"{package.__name__}.{module.name}")
    return _registered[group]


def _source(folder: Path, module: str) -> str:
    file = folder / f"{module}.py"
    return (file if file.is_file() else folder / module / "__init__.py").read_text(encoding="utf-8")


@cache
def _entry_points(group: str) -> dict[str, str]:
    found = entry_points(group="rlvr.components")
    return {point.name.partition(".")[2]: point.value for point in found if point.name.startswith(f"{group}.")}


def _imported(group: str, name: str, path: str) -> Any:
    module_name, _, attribute = path.partition(":")
    base = _base(group)
    with importable():
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:  # foreign code
            raise ConfigError(
                f"{group}={name}: module {module_name} cannot be imported ({type(error).__name__}: {error}); correct "
                "it, install it, or start rlvr in the folder that contains it."
            ) from error
    component = getattr(module, attribute, None)
    if component is None:
        known = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)]
        hint = suggestion(attribute, known) if known else f"it has no {base.__name__}."
        raise ConfigError(f"{group}={name}: module {module_name} has no {attribute}; {hint}")
    if not isinstance(component, type) or not issubclass(component, base) or component is base:
        raise ConfigError(f"{group}={name}: is no {WORDS.get(group, group)}; make it a subclass of {base.__name__}.")
    missing = sorted(getattr(component, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(f"{group}={name}: has no method {missing[0]}, which every {base.__name__} needs; add it.")
    return component


def _base(group: str) -> type:
    """The class that every component of a group inherits from: it declares `group = "task"` itself."""
    _ours(group)
    for component in _registered[group].values():
        return next(one for one in reversed(component.__mro__) if one.__dict__.get("group") == group)
    raise LookupError(f"the group {group} has no component")
