"""Lines such as `trainer.max_steps=5` in Hydra's grammar, and what is wrong with them."""

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from rlvr import registry
from rlvr.config import messages
from rlvr.config.config import CHOICES, SECTIONS
from rlvr.config.said import Source, is_choice
from rlvr.errors import ConfigError, suggestion

GROUPS = tuple(group for group in CHOICES if group != "reward")  # whose choices are components
FOLLOWS_TASK = ("reward", "prompt")


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Hydra's override grammar; a line it cannot read is a ConfigError."""
    parser = OverridesParser.create()
    parsed = []
    for line in overrides:
        try:
            parsed.append(parser.parse_override(line))
        except HydraException as error:
            raise ConfigError(_unreadable(line, error)) from None
    return parsed


def _unreadable(line: str, error: HydraException) -> str:
    key, equals, value = line.partition("=")
    if not (key and equals):
        return f"{line}: an override is written key=value, e.g. trainer.max_steps=5."
    named = re.sub(r"\[\w*\]", "", key)  # reward.reward_functions[0].params.correct_reward=5.0
    if named != key:
        return messages.unknown_key(named, value, {}).replace(named, key, 1)
    hint = f"""put quotes around a text with special characters: '{key}="{value}"'"""
    return f"{line}: Hydra cannot read this value ({str(error).splitlines()[0]}); {hint}."


def inclusive_range(line: str) -> str:
    """`seed=1..10` in Hydra's grammar: `seed=range(1,11)`; every other line as it is."""
    match = re.fullmatch(r"([\w./@+]+)=(\d+)\.\.(\d+)", line)
    return f"{match[1]}=range({match[2]},{int(match[3]) + 1})" if match else line


def check_overrides(parsed: list[Override], source: Source) -> list[Override]:
    """The same. ConfigError for what Hydra would say at length, or not at all."""
    seen: dict[str, str] = {}
    for override in parsed:
        key, line, value = override.key_or_group, override.input_line or "", override.value()
        section, _, last = key.partition(".")
        deleted = seen.get(key, "").startswith("~")
        problem = None
        if override.is_sweep_override() or inclusive_range(line) != line:
            text = f"""; a text with commas needs quotes in quotes, '{key}="a,b"'""" if "," in line else ""
            problem = f"several values make a sweep; add --multirun, or write a list as {key}=[...]{text}"
        elif section.partition("/")[0] == "hydra":
            problem = "Hydra's own settings have no effect here; run_dir=... sets the run folder"
        elif key in seen and not deleted:
            problem = f"{key} was given before ({seen[key]}); give it once"
        elif last == "name" and section in GROUPS and not (deleted or override.is_delete()):
            problem = f"the name only says what was chosen; choose with {section}={value}"
        elif key in SECTIONS and key not in CHOICES and isinstance(value, str):
            problem = f"{key} is a section, and nothing to choose; set its keys, {key}.KEY=VALUE"
        if problem:
            raise ConfigError(f"{line}: {problem}.")
        seen[key] = line
        if override.package is not None and key not in CHOICES:  # data_component@data=default, of other projects
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
        hint = suggestion(str(value), options)
        raise ConfigError(f"{group}={messages.shown(value)}: there is no such {group}; {hint}")
