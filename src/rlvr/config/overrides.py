"""User overrides, in files and as `trainer.max_steps=5`: parsed with Hydra's grammar and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlvr import registry
from rlvr.config import messages
from rlvr.config.config import CHOICES, SECTIONS
from rlvr.errors import ConfigError, suggestion, unreadable
from rlvr.lines import inclusive_range, with_letters_quoted
from rlvr.printable import cut
from rlvr.settings import leaf_values
from rlvr.yaml_text import values_in

GROUPS = tuple(group for group in CHOICES if group != "reward")  # groups whose choices are components
FOLLOWS_TASK = ("reward", "prompt")
CONF = Path(__file__).parents[1] / "conf"


@dataclass(frozen=True, kw_only=True)
class ConfigSource:
    """A configuration by name, from a user folder or ours; `option` names it in errors."""

    name: str
    folder: str | None
    option: str

    @property
    def folders(self) -> list[Path]:
        """The user's folders, then ours."""
        return [*([Path(self.folder)] if self.folder else []), CONF]

    @property
    def configs(self) -> list[str]:
        return sorted({file.stem for folder in self.folders for file in folder.glob("*.yaml")})

    def options(self, group: str) -> list[str]:
        files = {file.stem for folder in self.folders for file in (folder / group).glob("*.yaml")}
        return sorted(files | set(registry.names(group) if group in GROUPS else ()))

    def load(self, name: str) -> tuple[dict[str, Any], str]:
        """The values of `name`.yaml, and the file if it is the user's."""
        file = next((path for folder in self.folders if (path := folder / f"{name}.yaml").is_file()), None)
        try:
            found = None if file is None else values_in(file.read_text("utf-8"))
        except (OmegaConfBaseException, yaml.YAMLError, OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{file}: {unreadable(error)}") from None
        values = {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}
        return values, "" if file is None or file.parents[name.count("/")] == CONF else str(file)

    def files(
        self, name: str, group: str = "", seen: tuple[str, ...] = ()
    ) -> Iterator[tuple[str, dict[str, Any], str]]:
        """The file `name` after its includes: group, values, the file if it is the user's."""
        values, file = self.load(name)
        if name in seen or not values:
            return
        for included, inside in included_files(values):
            yield from self.files(f"{inside}/{included}" if inside else included, inside or group, (*seen, name))
        yield group, values, file

    def choices(self, *, own: bool) -> dict[str, str]:
        """Choices in the user's or in our files of this configuration: `{"task": "rpn", "algorithm": "ppo", ...}`."""
        found = [values for group, values, file in self.files(self.name) if not group and bool(file) == own]
        return {group: name for values in found for name, group in included_files(values) if group}

    def tasks(self, name: str, lines: Iterable[str]) -> set[str]:
        """Tasks that override lines or the file `name` choose."""
        found = {line.partition("task=")[2].strip("'\"") for line in lines if line.lstrip("+").startswith("task=")}
        for group, values, _ in self.files(name):
            found |= {task for task, inside in included_files(values) if (inside or group) == "task"}
        return found

    def own_values(self) -> dict[str, tuple[Any, str]]:
        """Dotted keys of the user's files of this configuration, each with its value and file."""
        chosen = {}
        for group, values, file in self.files(self.name):
            own = {key: value for key, value in values.items() if key != "defaults"} if file else {}
            chosen |= {key: (value, file) for key, value in leaf_values(own, group)} if own else {}
        return chosen


def included_files(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """From a defaults list `[rpn, {override task: jsonl}]`: `("rpn", "")`, `("jsonl", "task")`."""
    for entry in values.get("defaults") or ():
        if isinstance(entry, Mapping):
            yield from ((str(value), str(key).removeprefix("override ").strip("/")) for key, value in entry.items())
        elif entry != "_self_":
            yield str(entry), ""


def overlaid(defaults: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Merge sections, replace anything else."""
    merged = dict(defaults)
    for key, value in values.items():
        below = merged.get(key)
        merged[key] = overlaid(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def drop_other_warm_start(composed: Any, explicit: UserKeys) -> None:
    """For a pretrained model, keep of `warm_start` what the user said: ours is for models made from scratch, but for
    that of a file that enables it."""
    values = OmegaConf.to_container(composed.get("warm_start", OmegaConf.create({})), resolve=False)
    name = OmegaConf.select(composed, "model.name")
    if not isinstance(values, dict) or not isinstance(name, str) or registry.find("model", name).from_scratch:
        return
    if values.get("enabled") is not True or "warm_start.enabled" in explicit:
        composed["warm_start"] = {key: value for key, value in values.items() if f"warm_start.{key}" in explicit}


_WARM_0_2 = ("cache", "loss_on", "optimizer", "num_steps", "worked_share", "final_worked_share")


def renewed(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a run's file in today's words: until 0.2 `warm_start.enabled: true` had no effect with model=hf."""
    warm = values.get("warm_start")
    if isinstance(warm, dict) and warm.get("enabled") is True and "source" not in warm and {*_WARM_0_2} <= warm.keys():
        values["warm_start"] = {**warm, "enabled": "auto"}
    return values


def is_choice(override: Override) -> bool:
    key = override.key_or_group
    return (key in CHOICES or "/" in key) and not (override.is_delete() or isinstance(override.value(), dict))


def added(override: Override, source: ConfigSource) -> str:
    """Force the override in, known key or not: the settings classes check keys."""
    line = override.input_line or ""
    if line.startswith("sampler="):  # it has a default, so that a file's list of choices may leave it out
        given = source.choices(own=False) | source.choices(own=True)
        return f"+{line}" if given and "sampler" not in given else line
    return line if is_choice(override) or override.is_delete() else f"++{line.lstrip('+')}"


@dataclass(frozen=True, kw_only=True)
class UserKeys:
    """The dotted keys set by the user."""

    line: frozenset[str]  # on the command line
    chosen: frozenset[str]  # groups chosen on the command line
    file: Mapping[str, str]  # in the user's files, with the file
    is_resolved: bool  # the file is a run's and sets every key
    beside_debug: frozenset[str]  # keys set in the same place as debug=true

    @classmethod
    def of(cls, parsed: Sequence[Override], source: ConfigSource) -> UserKeys:
        """Collect the keys of overrides and of the user's files."""
        values = {one.key_or_group: None if one.is_delete() else one.value() for one in parsed if not is_choice(one)}
        line = frozenset(key for name, value in values.items() for key, _ in leaf_values(value, name))
        own = source.own_values()
        return cls(
            line=line,
            chosen=frozenset(one.key_or_group for one in parsed if is_choice(one)),
            file={key: file for key, (_, file) in own.items()},
            is_resolved=bool(own) and "defaults" not in source.load(source.name)[0],
            beside_debug=line | (frozenset(own) if own.get("debug", (False,))[0] is True else frozenset()),
        )

    def __contains__(self, path: str) -> bool:
        return self.on_line(path) or any(_covers(key, path) for key in self.file)

    def written(self, path: str, value: Any) -> str:
        """`seed=3`, or `seed=3 (conf/mine.yaml)` for a key of a file."""
        file = "" if self.on_line(path) else next((self.file[key] for key in self.file if _covers(key, path)), "")
        return f"{path}={messages.as_written(value)}{f' ({file})' if file else ''}"

    def on_line(self, path: str) -> bool:
        return any(_covers(key, path) for key in self.line)

    def changed(self, path: str) -> bool:
        """Whether the command line sets it, or chooses in its section."""
        return self.on_line(path) or path.partition(".")[0] in self.chosen


def _covers(said: str, path: str) -> bool:
    return said == path or path.startswith(f"{said}.") or said.startswith(f"{path}.")


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse with Hydra's override grammar; ConfigError for an invalid line."""
    parsed = []
    for line in overrides:
        try:
            parsed.append(_parsed(with_letters_quoted(line)))
        except HydraException as error:
            raise ConfigError(_unreadable(line, error)) from None
        except ValueError as error:  # Python converts no longer number
            raise ConfigError(f"{cut(line, 60)}: {unreadable(error)}") from None
    return parsed


@lru_cache(maxsize=1024)
def _parsed(line: str) -> Override:
    """Parsed once: a millisecond, and each line is asked for three times."""
    return OverridesParser.create().parse_override(line)


def _unreadable(line: str, error: HydraException) -> str:
    key, equals, value = line.partition("=")
    if not equals:
        return f"{line}: an override is written key=value, e.g. trainer.max_steps=5, without spaces around =."
    named = re.sub(r"\[\w*\]", "", key)  # reward.reward_functions[0].params.correct_reward=5.0
    if named != key:
        return messages.unknown_key(named, value, {}).replace(named, key, 1)
    hint = f"""put quotes around a text with special characters: '{key}="{value}"'"""
    return f"{line}: Hydra cannot read this value ({str(error).splitlines()[0]}); {hint}."


def check_overrides(parsed: list[Override], source: ConfigSource) -> list[Override]:
    """Return the overrides. ConfigError for those that Hydra rejects with a long message, or silently accepts."""
    seen: dict[str, str] = {}
    for override in parsed:
        key, line, value = override.key_or_group, override.input_line or "", override.value()
        section, _, last = key.partition(".")
        deleted = seen.get(key, "").startswith("~")
        problem = None
        if override.is_sweep_override() or inclusive_range(line) != line:
            text = f"""; a text with commas needs quotes in quotes, '{key}="a,b"'""" if "," in line else ""
            text = "; a number has a decimal point, not a comma" if re.search(r"=\d+,\d+(e-?\d+)?$", line) else text
            problem = f"several values make a sweep; add --multirun, or write a list as {key}=[...]{text}"
        elif section.partition("/")[0] == "hydra":
            problem = "Hydra's own settings have no effect here; run_dir=... sets the run folder"
        elif not key:
            problem = "an override is written key=value, e.g. trainer.max_steps=5"
        elif key in seen and not deleted:
            problem = f"{key} was given before ({seen[key]}); give it once"
        elif last == "name" and section in GROUPS and not (deleted or override.is_delete()):
            problem = f"the name only says what was chosen; choose with {section}={value}"
        elif key in SECTIONS and key not in CHOICES and isinstance(value, str):
            is_tracker = key == "tracker" and value in registry.names("tracker")
            instead = f"set tracker.report_to=[{value}]" if is_tracker else f"set its keys, {key}.KEY=VALUE"
            problem = f"{key} is a section, and nothing to choose; {instead}"
        if problem:
            raise ConfigError(f"{line}: {problem}.")
        seen[key] = line
        is_group = override.package is not None or "/" in key  # data_component@data=default, of other projects
        if key not in CHOICES and is_group and not source.options(key):
            raise ConfigError(messages.unknown_key(key, value, {}))
        if is_choice(override):
            _check_choice(key, value, source.options(key))
    return parsed


def _check_choice(group: str, value: object, options: list[str]) -> None:
    if group in GROUPS and isinstance(value, str) and (":" in value or value in registry.names(group)):
        registry.find(group, value)
    elif group in FOLLOWS_TASK and value in registry.names("task") and value not in options:
        raise ConfigError(f"{group}={value}: task={value} brings its own {group}; leave {group}={value} out.")
    elif value not in options:
        hint = registry.remedy(group, str(value), options)
        raise ConfigError(f"{group}={messages.as_written(value)}: there is no such {group}; {hint}")


def explained(error: Exception, source: ConfigSource, lines: Sequence[str]) -> str:
    """The message for a group choice on a resolved configuration, or for a broken file."""
    place = f"{source.option} {source.name}"
    for line in lines:
        if f"Could not override '{(key := line.partition('=')[0])}'" in str(error):
            return (
                f"{line}: {source.name} is a resolved configuration, whose choices are fixed; override values "
                f"({key}.KEY=...), or choose on top of {place} in a file of your own."
            )
    for name, group in included_files(source.load(source.name)[0]):
        if group.startswith("hydra/"):
            return f"{place}: {group}: {name} in a defaults list: Hydra's own settings have no effect here."
        if group in SECTIONS and group not in CHOICES:
            instead = f"report_to: [{name}]" if group == "tracker" else "KEY: VALUE"
            return (
                f"{place}: {group}: {name} in a defaults list: {group} is a section, and nothing to choose; take the "
                f"line out, and write {group}: {{{instead}}} below the list."
            )
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        known = list(error.options or ()) if group else [one for one in source.configs if one != source.name]
        what = f"{group}: {name}" if group else name
        kind = group or "configuration"
        return f"{place}: {what} in a defaults list: there is no such {kind}; {suggestion(name, known)}"
    if found := re.search("Could not override '([^'@]+)", str(error)):
        absent = "nothing before it chooses one; put a file that does before it, or write it without override."
        said = absent if found[1] in CHOICES else f"there is no such choice; {suggestion(found[1], list(CHOICES))}"
        return f"{place}: override {found[1]} in a defaults list: {said}"
    return f"{place}: {unreadable(error)}"
