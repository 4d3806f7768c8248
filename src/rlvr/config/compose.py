"""From a command line to a `Config`: Hydra composes the choices and values, the settings classes check them.

The registry offers every component to Hydra's ConfigStore as a choice that holds nothing but its name; a task also
brings the prompt and the reward that go with it. Defaults are those of the classes. So what Hydra composes is what was
said: by our presets, by the user's files and on the command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from rlvr import imports, registry
from rlvr.config import bundles, checks, debugging, messages
from rlvr.config.config import CHOICES, SECTIONS, Config
from rlvr.config.keys import owners
from rlvr.config.said import Said, Source, included_files, is_choice, leaf_values
from rlvr.config.spellings import upgraded
from rlvr.errors import ConfigError, suggestion
from rlvr.rewards.settings import RewardSettings
from rlvr.settings import Settings, dumped, plain, validated

DEFAULT_CONFIG = "rpn"
DATA_CONFIG = "gsm8k"  # what a task without a configuration of its own starts from
GROUPS = tuple(group for group in CHOICES if group != "reward")  # whose choices are components
NO_TRACKER = "~tracker"
"""For what reports nothing, so that a tracker of the user's own need not be there any more."""
FOLLOWS_TASK = ("reward", "prompt")


def load_config(
    overrides: Sequence[str],
    *,
    config_name: str = DEFAULT_CONFIG,
    config_dir: str | None = None,
    option: str = "--config-name",
) -> Config:
    """Compose, check and freeze a configuration. Raises ConfigError: key, value and remedy of all that is wrong."""
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            raise ConfigError(f"--config-dir {config_dir}: there is no such folder.")
        imports.look_in(config_dir)
    source = Source(name=config_name.removesuffix(".yaml"), folder=config_dir, option=option)
    if source.name not in source.configs:
        hint = suggestion(source.name, source.configs)
        raise ConfigError(f"{option} {source.name}: there is no such configuration; {hint}")
    parsed = parse_overrides(overrides)
    _check_overrides(parsed, source)
    said = Said.of(parsed, source)
    values, notes = _compose(source, parsed, said)
    if values.get("debug") is True:
        debugging.shrink(values, said.beside_debug)
    inside = bundles.expand(values, lambda lines: _compose_bundle(lines, source))
    config = checks.checked(_validated(values), replace(said, line=said.line | inside))
    config._notes = (*notes, *config.notes)
    return config


def load_task_config(
    name: str, overrides: Sequence[str], *, config_dir: str | None = None, option: str = "--task"
) -> Config:
    """The configuration `name`, that of a run folder, or the one of the GSM8K run with the task `name` in its place."""
    if (Path(name) / "config.yaml").is_file():
        return load_config([*overrides, NO_TRACKER], config_name="config", config_dir=name, option=option)
    source = Source(name=name, folder=config_dir, option=option)
    if name not in source.configs and (":" in name or name in source.options("task")):
        overrides, name = [f"task={name}", *overrides], DATA_CONFIG
    return load_config(overrides, config_name=name, config_dir=config_dir, option=option)


def to_yaml(config: Config) -> str:
    """The resolved configuration; it can be read back with `--config-dir` and `--config-name`."""
    return OmegaConf.to_yaml(OmegaConf.create(_literal(dumped(config))))


def to_run_yaml(config: Config) -> str:
    """`config.yaml` of a run folder: repeating it makes a new run, so it neither names this folder nor resumes."""
    return to_yaml(config.model_copy(update={"run_dir": None, "resume": False}))


def read_yaml(text: str) -> Config:
    """What `to_run_yaml` wrote, also that of rlvr 0.1.0; the rules of a run are not checked again."""
    values = _plain_values(OmegaConf.create(text))
    if not values:
        raise ConfigError("it has no keys")
    return read_values(values)


def read_values(values: dict[str, Any]) -> Config:
    """Resolved values, as `dumped` gives them."""
    return _validated(upgraded(values))


def _literal(value: Any) -> Any:
    """Escape `${` in texts: no interpolation is left in a resolved configuration."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _plain_values(composed: Any, *, resolve: bool = True) -> dict[str, Any]:
    found = OmegaConf.to_container(composed, resolve=resolve)
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


# ----------------------------------------------------------------------------------------------------------- overrides


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


def _check_overrides(parsed: Sequence[Override], source: Source) -> None:
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
        if key in seen:
            raise ConfigError(f"{line}: {key} was given before ({seen[key]}); give it once.")
        seen[key] = line
        section, _, last = key.partition(".")
        if last == "name" and section in GROUPS and not override.is_delete():
            raise ConfigError(f"{line}: the name only says what was chosen; choose with {section}={override.value()}.")
        if key == "tracker" and override.value() not in ("default", "none") and isinstance(override.value(), str):
            raise ConfigError(f"{line}: name trackers with tracker.report_to=[{override.value()}].")
        if key in SECTIONS and key not in CHOICES and isinstance(override.value(), str):
            raise ConfigError(f"{line}: {key} is a section, and nothing to choose; set its keys, {key}.KEY=VALUE.")
        if override.package is not None and key not in CHOICES:  # data_component@data=default, of other projects
            raise ConfigError(messages.unknown_key(key, override.value(), {}))
        if is_choice(override):
            _check_choice(key, override.value(), source.options(key))


def _check_choice(group: str, value: object, options: list[str]) -> None:
    if group in GROUPS and isinstance(value, str) and (":" in value or value in registry.names(group)):
        registry.find(group, value)
    elif group in FOLLOWS_TASK and value in registry.names("task") and value not in options:
        raise ConfigError(f"{group}={value}: task={value} brings its own {group}; leave {group}={value} out.")
    elif value not in options:
        hint = suggestion(str(value), options)
        raise ConfigError(f"{group}={messages.shown(value)}: there is no such {group}; {hint}")


# ----------------------------------------------------------------------------------------------------------- composing


def _offer(source: Source, lines: Sequence[str]) -> None:
    """Store a choice for every component of the registry, and for each `module:Class` that lines or files name."""
    choices = [(group, name) for group in GROUPS for name in registry.every(group)]
    choices += [(m[1], m[2]) for line in lines if (m := re.fullmatch(r"\+?(\w+)=([\w.]+:[\w.]+)", line))]
    for file in Path(source.folder).glob("*.yaml") if source.folder else ():
        with suppress(ConfigError):  # of another file than the one that is asked for, which Hydra reads itself
            choices += [(group, name) for name, group in included_files(source.load(file.stem)[0]) if ":" in name]
    for group, name in choices:
        if group == "task":
            _offer_task(name, registry.find("task", name))
        elif group in GROUPS:
            _store(group, name, {"name": name})


def _offer_task(name: str, task: Any) -> None:
    reward, prompt = task.reward, task.prompt
    if not isinstance(reward, str):  # its own parts
        _store("reward", name, {"parts": plain(reward)})
        reward = name
    if ":" in prompt:
        _store("prompt", prompt, {"name": prompt})
    follow = [{"/reward@_global_.reward": reward}, {"/prompt@_global_.prompt": prompt}, "_self_"]
    _store("task", name, {"name": name, "defaults": follow})


def _store(group: str, name: str, node: dict[str, Any]) -> None:
    ConfigStore.instance().store(group=group, name=name, node=node, provider="rlvr")


def _hydra(source: Source, config_name: str | None, lines: Sequence[str]) -> tuple[DictConfig, dict[str, str]]:
    """What Hydra composes, and the choice of each group."""
    _offer(source, lines)
    folder = Path(source.folder or "").resolve()
    if source.folder is not None and (folder / f"{config_name}.yaml").is_file():
        opened, more = initialize_config_dir(str(folder), version_base="1.3"), ["hydra.searchpath=[pkg://rlvr.conf]"]
    else:
        opened = initialize_config_module("rlvr.conf", version_base="1.3")
        more = [] if source.folder is None else [f"hydra.searchpath=['file://{folder}']"]
    try:
        with opened:
            composed = compose(config_name, overrides=[*lines, *more], return_hydra_config=True)
    except RecursionError:
        raise ConfigError(f"{source.option} {source.name}: includes itself; give your file another name.") from None
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(_explained(error, source, lines)) from None
    chosen = {group: str(name) for group, name in composed.hydra.runtime.choices.items() if group in CHOICES}
    OmegaConf.set_struct(composed, False)
    del composed["hydra"]
    return composed, chosen


def _explained(error: Exception, source: Source, lines: Sequence[str]) -> str:
    """A group choice on a configuration that is already resolved, or a broken file."""
    for line in lines:
        key = line.partition("=")[0]
        if f"Could not override '{key}'" in str(error):
            return (
                f"{line}: {source.name} is a resolved configuration, whose choices are fixed; override values "
                f"({key}.KEY=...), or choose on top of {source.option} {source.name} in a file of your own."
            )
    return f"{source.option} {source.name}: {' '.join(str(error).split())}"


def _compose(source: Source, parsed: Sequence[Override], said: Said) -> tuple[dict[str, Any], list[str]]:
    """The composed and resolved values, not yet validated, and notes on what was left out."""
    lines = [_added(override) for override in parsed]
    composed, chosen = _hydra(source, source.name, lines)
    missing = [group for group in FOLLOWS_TASK if "task" in chosen and group not in chosen]
    if missing:  # a file of the user's own in the group `task`, which names no reward and no prompt
        task = registry.find("task", str(composed.task.name))
        lines += [f"+{group}={getattr(task, group)}" for group in missing]
        composed, chosen = _hydra(source, source.name, lines)
    if source.folder is not None and any(one.key_or_group == "task" for one in parsed):
        _check_pinned(chosen, {one.key_or_group for one in parsed}, source)
    notes = _leave_out_replaced(composed, chosen, said, source)
    return _resolved(composed, is_run=said.is_resolved), notes


def _added(override: Override) -> str:
    """A value is forced in, known or not: the settings classes know which keys there are."""
    line = override.input_line or ""
    return line if is_choice(override) or override.is_delete() else f"++{line.lstrip('+')}"


def _check_pinned(chosen: Mapping[str, str], given: set[str], source: Source) -> None:
    """A reward or prompt that a file pins for another task would score or ask the wrong thing."""
    task = chosen["task"]
    for group in FOLLOWS_TASK:
        follows = getattr(registry.find("task", task), group, None) if task in registry.names("task") else None
        if group not in given and isinstance(follows, str) and chosen.get(group) != follows:
            raise ConfigError(
                f"task={task}: goes with {group}={follows}, and {source.name}.yaml chooses "
                f"{group}={chosen.get(group)}; say {group}={follows} or {group}={chosen.get(group)} as well."
            )


def _leave_out_replaced(composed: DictConfig, chosen: Mapping[str, str], said: Said, source: Source) -> list[str]:
    """`--config-name gsm8k model=scratch_bpe`: what a preset says of its own choice goes with that choice.

    So does, with a note, what the user's file says of a choice that the command line replaces.
    """
    notes = []
    preset = source.preset_choices(source.name)
    if "task" in preset:
        task = registry.find("task", preset["task"])
        preset = {"reward": task.reward, "prompt": task.prompt} | preset
    for group, choice in chosen.items():
        if preset.get(group, choice) == choice or group not in composed:
            continue
        fresh, _ = _hydra(source, None, [f"+{group}={choice}"])
        for leaf, value in leaf_values(_plain_values(composed[group], resolve=False), group):
            if leaf not in said or leaf == f"{group}.name":
                continue
            if not said.on_line(leaf) and _is_of_another(leaf, choice, fresh[group], said):
                notes.append(f"{leaf}={messages.shown(value)}: has no effect with {group}={choice}")
            else:
                OmegaConf.update(fresh, leaf, value, force_add=True)
        composed[group] = fresh[group]
    return notes


def _is_of_another(leaf: str, choice: str, fresh: DictConfig, said: Said) -> bool:
    """Whether other choices have this key, or this part of a reward, and `choice` has not."""
    group, _, key = leaf.partition(".")
    if group == "reward":
        part = leaf.split(".")[2:3]
        return key.startswith("parts.") and part[0] not in fresh.parts and f"reward.parts.{part[0]}.type" not in said
    have = owners(group, key)
    return bool(have) and choice in registry.names(group) and choice not in have


def _compose_bundle(lines: Sequence[str], source: Source) -> Mapping[str, Any]:
    """The values of a task with the reward and the prompt that follow it, of the same folders as the configuration."""
    parsed = parse_overrides(lines)
    _check_overrides(parsed, source)
    choices = [f"+{one.input_line}" if one.key_or_group == "task" else _added(one) for one in parsed]
    return _resolved(_hydra(source, None, choices)[0], is_run=False)


def _resolved(composed: DictConfig, *, is_run: bool) -> dict[str, Any]:
    """Plain values over the defaults, so that `${rollout.group_size}` finds what nobody said."""
    values = _plain_values(composed, resolve=False)
    values = upgraded(values) if is_run else values
    names = {group: str(values[group]["name"]) for group in GROUPS if "name" in (values.get(group) or ())}
    chosen = {group: registry.find(group, name) for group, name in names.items()} | {"reward": RewardSettings}
    defaults = _defaults(Config) | {group: _defaults(settings) for group, settings in chosen.items()}
    try:
        merged = OmegaConf.create(_over(_literal(defaults), values))
        missing = sorted(OmegaConf.missing_keys(merged))
        if missing:
            raise ConfigError(f"{missing[0]}: has no default; say {missing[0]}=...")
        return _plain_values(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {' '.join(str(error.msg or error).split())}.") from None


def _defaults(settings: type[Settings]) -> dict[str, Any]:
    given = {name: field for name, field in settings.model_fields.items() if not field.is_required()}
    return {name: plain(field.get_default(call_default_factory=True)) for name, field in given.items()}


def _over(defaults: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Sections are merged, and anything else is replaced."""
    merged = dict(defaults)
    for key, value in values.items():
        below = merged.get(key)
        merged[key] = _over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


# ---------------------------------------------------------------------------------------------------------- validating


def _validated(values: dict[str, Any]) -> Config:
    sections = {group: values[group] for group in GROUPS if isinstance(values.get(group), dict)}
    chosen = {group: section["name"] for group, section in sections.items() if isinstance(section.get("name"), str)}
    if isinstance(name := values.get("name"), str) and ":" in name:  # ${task.name} of a task of the user's own
        values["name"] = name.rpartition(":")[2].lower()
    try:
        config: Config = validated(Config, values)
    except ValidationError as error:
        raise ConfigError(messages.invalid(error, chosen)) from None
    return config.model_copy(
        update={"model": config.model.fitted(config), "trainer": config.trainer.fitted(config.model)}
    )
