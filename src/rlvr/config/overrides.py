"""Lines such as `trainer.max_steps=5` in Hydra's grammar, and what is wrong with them."""

from __future__ import annotations

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
        if line.lstrip("+~").startswith("="):
            raise ConfigError(f"{line}: has no key; an override is written key=value, e.g. trainer.max_steps=5.")
        try:
            parsed.append(parser.parse_override(line))
        except HydraException as error:
            raise ConfigError(_unreadable(line, error)) from None
    return parsed


def _unreadable(line: str, error: HydraException) -> str:
    key, equals, value = line.partition("=")
    if not equals:
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


def check_overrides(parsed: Sequence[Override], source: Source) -> None:
    """What Hydra would say at length, or not at all."""
    seen: dict[str, str] = {}
    for override in parsed:
        key, line = override.key_or_group, override.input_line or ""
        if override.is_sweep_override() or inclusive_range(line) != line:
            text = f"""; a text with commas needs quotes in quotes, '{key}="a,b"'""" if "," in line else ""
            raise ConfigError(
                f"{line}: several values make a sweep; add --multirun, or write a list as {key}=[...]{text}."
            )
        if key == "hydra" or key.startswith(("hydra.", "hydra/")):
            raise ConfigError(f"{line}: Hydra's own settings have no effect here; run_dir=... sets the run folder.")
        deleted = seen.get(key, "").startswith("~")
        if key in seen and not deleted:
            raise ConfigError(f"{line}: {key} was given before ({seen[key]}); give it once.")
        seen[key] = line
        section, _, last = key.partition(".")
        if last == "name" and section in GROUPS and not (deleted or override.is_delete()):
            raise ConfigError(f"{line}: the name only says what was chosen; choose with {section}={override.value()}.")
        if key == "tracker" and override.value() not in ("default", "none") and isinstance(override.value(), str):
            raise ConfigError(f"{line}: name trackers with tracker.report_to=[{override.value()}].")
        if key in SECTIONS and key not in CHOICES and isinstance(override.value(), str):
            raise ConfigError(f"{line}: {key} is a section, and nothing to choose; set its keys, {key}.KEY=VALUE.")
        if override.package is not None and key not in CHOICES:  # data_component@data=default, of other projects
            raise ConfigError(messages.unknown_key(key, override.value(), {}))
        if is_choice(override):
            check_choice(key, override.value(), source.options(key))


def check_choice(group: str, value: object, options: list[str]) -> None:
    if group in GROUPS and isinstance(value, str) and (":" in value or value in registry.names(group)):
        registry.find(group, value)
    elif group in FOLLOWS_TASK and value in registry.names("task") and value not in options:
        raise ConfigError(f"{group}={value}: task={value} brings its own {group}; leave {group}={value} out.")
    elif value not in options:
        hint = suggestion(str(value), options)
        raise ConfigError(f"{group}={messages.shown(value)}: there is no such {group}; {hint}")
