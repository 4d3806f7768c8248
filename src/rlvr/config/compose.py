"""From a command line to a `Config`: Hydra composes the choices and values, the settings classes check them.

Every component in the registry is a ConfigStore choice that holds only its name; a task also brings its prompt and
reward. Defaults live in the classes. So Hydra composes only explicit values: from our presets, the user's files and
the command line.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from yaml import YAMLError

from rlvr import imports, registry
from rlvr.config import hydra, messages, sections
from rlvr.config.config import CHOICES, Config, all_keys, inner, owners
from rlvr.config.overrides import (
    FOLLOWS_TASK,
    GROUPS,
    ConfigSource,
    UserKeys,
    added,
    check_overrides,
    drop_other_warm_start,
    explained,
    included_files,
    overlaid,
    parse_overrides,
    renewed,
)
from rlvr.errors import ConfigError, suggestion
from rlvr.rewards.settings import RewardSettings
from rlvr.settings import Settings, dumped, label_of, leaf_values, plain, validated
from rlvr.tasks.settings import TaskBundle
from rlvr.yaml_text import literal, text_of, values_in

DEFAULT_CONFIG = "rpn"
DATA_CONFIG = "gsm8k"  # the base of a task without its own configuration
NO_TRACKER = "~tracker"
"""Overrides that disable reporting, so that the user's own tracker need not be importable."""


def load_config(
    overrides: Sequence[str],
    *,
    config_name: str = DEFAULT_CONFIG,
    config_dir: str | None = None,
    option: str = "--config-name",
) -> Config:
    """Compose, check and freeze a configuration. Raises ConfigError with key, value and remedy of every error."""
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            raise ConfigError(f"--config-dir {config_dir}: there is no such folder.")
        imports.look_in(config_dir)
    source = ConfigSource(name=config_name.removesuffix(".yaml"), folder=config_dir, option=option)
    if source.name not in source.configs:
        hint = suggestion(source.name, source.configs)
        raise ConfigError(f"{option} {source.name}: there is no such configuration; {hint}")
    parsed = check_overrides(parse_overrides(overrides), source)
    explicit = UserKeys.of(parsed, source)
    values, notes = _compose(source, parsed, explicit)
    fields = all_keys(_chosen(values))
    if values.get("debug") is True:
        _shrink(values, fields, explicit.beside_debug)
    inside = _expand(values, fields, source)
    config = sections.checked(read_values(values), replace(explicit, line=explicit.line | inside))
    config.note(notes)
    return config


def load_task_config(
    name: str, overrides: Sequence[str], *, config_dir: str | None = None, option: str = "--task"
) -> Config:
    """The configuration `name`, that of a run folder, or the GSM8K configuration with task `name`."""
    if (Path(name) / "config.yaml").is_file():
        return load_config([*overrides, NO_TRACKER], config_name="config", config_dir=name, option=option)
    source = ConfigSource(name=name, folder=config_dir, option=option)
    if name not in source.configs and (":" in name or name in source.options("task")):
        overrides, name = [f"task={name}", *overrides], DATA_CONFIG
    return load_config(overrides, config_name=name, config_dir=config_dir, option=option)


def to_yaml(config: Config) -> str:
    """The resolved configuration; can be read back with `--config-dir` and `--config-name`."""
    return text_of(dumped(config))


def to_run_yaml(config: Config) -> str:
    """`config.yaml` of a run folder, without `run_dir` and `resume`: repeating it starts a new run."""
    return to_yaml(config.model_copy(update={"run_dir": None, "resume": False}))


def read_yaml(text: str) -> Config:
    """Read the output of `to_run_yaml` without repeating the checks across sections."""
    return read_values(renewed(_plain_values(OmegaConf.create(values_in(text)))))


def _plain_values(composed: Any, *, resolve: bool = True) -> dict[str, Any]:
    found = OmegaConf.to_container(composed, resolve=resolve)
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


# ----------------------------------------------------------------------------------------------------------- composing


def _offer(source: ConfigSource, config_name: str | None, lines: Sequence[str]) -> None:
    """Store a choice for each registered component, and each `module:Class` in lines or files; a task's with what
    follows from it if they name the task: importing the others would take time."""
    choices = [(group, name) for group in GROUPS for name in registry.names(group)]
    choices += [(m[1], m[2]) for line in lines if (m := re.fullmatch(r"\+?(\w+)=([\w.]+:[\w.]+)", line))]
    for file in Path(source.folder).glob("*.yaml") if source.folder else ():
        with suppress(ConfigError):  # errors in other files; Hydra reports those of the requested one
            choices += [(group, name) for name, group in included_files(source.load(file.stem)[0]) if ":" in name]
    tasks = source.tasks(config_name or "", lines)
    for group, name in choices:
        if group == "task" and name in tasks:
            _offer_task(name, registry.find("task", name), source)
        elif group in GROUPS:
            _offer_name(group, name)


@cache
def _offer_name(group: str, name: str) -> None:
    _store(group, name, {"name": name})


def _offer_task(name: str, task: Any, source: ConfigSource) -> None:
    reward, prompt = task.reward, task.prompt
    for group, value in (("reward", reward), ("prompt", prompt)):
        known = isinstance(value, Mapping) or ":" in str(value) or value in source.options(group)
        if ":" in name and not known:
            hint = suggestion(str(value), source.options(group))
            raise ConfigError(f"task={name}: {task.__name__}.{group}={value}: there is no such {group}; {hint}")
    if not isinstance(reward, str):  # its own parts
        _store("reward", name, {"parts": plain(reward)})
        reward = name
    if ":" in prompt:
        _store("prompt", prompt, {"name": prompt})
    follow = [{"/reward@_global_.reward": reward}, {"/prompt@_global_.prompt": prompt}, "_self_"]
    _store("task", name, {"name": name, "defaults": follow})


def _store(group: str, name: str, node: dict[str, Any]) -> None:
    ConfigStore.instance().store(group=group, name=name, node=node, provider="rlvr")


def _hydra(source: ConfigSource, config_name: str | None, lines: Sequence[str]) -> tuple[DictConfig, dict[str, str]]:
    """Hydra's composition, and the choice of each group."""
    _offer(source, config_name, lines)
    folders = sorted(source.folders, key=lambda one: not (one / f"{config_name}.yaml").is_file())
    try:
        with catch_warnings():
            filterwarnings("ignore", ".*missing `_self_`")  # it is composed as with `_self_` at the end
            composed, choices = hydra.composed(folders, config_name, parse_overrides(lines))
    except RecursionError:
        raise ConfigError(f"{source.option} {source.name}: includes itself; give your file another name.") from None
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(explained(error, source, lines)) from None
    return composed, {group: str(name) for group, name in choices.items() if group in CHOICES}


def _compose(source: ConfigSource, parsed: Sequence[Override], explicit: UserKeys) -> tuple[dict[str, Any], list[str]]:
    """The composed and resolved values, not yet validated, with notes on dropped values."""
    lines = [added(override, source) for override in parsed]
    composed, chosen, recognized = _followed(
        source, source.name, lines, explicit.chosen | source.choices(own=True).keys()
    )
    if source.folder is not None and "task" in explicit.chosen:
        _check_pinned(chosen, explicit.chosen, recognized, source)
    notes = _leave_out_replaced(composed, chosen, explicit, source)
    return _resolved(composed, recognized), notes


def _followed(
    source: ConfigSource, name: str | None, lines: Sequence[str], given: Collection[str]
) -> tuple[DictConfig, dict[str, str], Mapping[str, str | None]]:
    """As `_hydra`, and what `recognize` finds. Reward and prompt follow that, or a user's file, if not `given`."""
    composed, chosen = _hydra(source, name, lines)
    more, given = [], {*given}
    for group in FOLLOWS_TASK if "task" in chosen else ():
        task, new = chosen["task"], "" if group in chosen else "+"
        if task not in registry.names("task") and task in source.options(group) and group not in given:
            more.append(f"{new}{group}={task}")
            given.add(group)
        elif new:
            more.append(f"+{group}={getattr(registry.find('task', str(composed.task.name)), group)}")
    task = _plain_values(composed.task, resolve=False) if "task" in chosen else {}
    recognized = registry.find("task", task["name"]).recognize(task) if task else {}
    for group in FOLLOWS_TASK:
        if group in recognized and group not in given:
            more = [one for one in more if not one.startswith(f"+{group}=")]
            more.append(f"{'' if group in chosen else '+'}{group}={recognized[group]}")
    return *(_hydra(source, name, [*lines, *more]) if more else (composed, chosen)), recognized


def _check_pinned(
    chosen: Mapping[str, str], given: Collection[str], recognized: Mapping[str, Any], source: ConfigSource
) -> None:
    """ConfigError for a reward or prompt that a file pins for another task."""
    task = chosen["task"]
    for group in FOLLOWS_TASK if task in registry.names("task") else ():
        follows = recognized.get(group, getattr(registry.find("task", task), group))
        if group not in given and isinstance(follows, str) and chosen.get(group) != follows:
            raise ConfigError(
                f"task={task}: goes with {group}={follows}, and {source.name}.yaml chooses "
                f"{group}={chosen.get(group)}; say {group}={follows} or {group}={chosen.get(group)} as well."
            )


def _leave_out_replaced(
    composed: DictConfig, chosen: Mapping[str, str], explicit: UserKeys, source: ConfigSource
) -> list[str]:
    """Drop values for replaced choices: `--config-name gsm8k model=scratch_bpe` drops the preset's model values.

    Values of the user's file are dropped with a note.
    """
    notes = []
    preset = source.choices(own=False)
    if "task" in preset:
        task = registry.find("task", preset["task"])
        preset = {"reward": task.reward, "prompt": task.prompt} | preset
    for group, choice in chosen.items():
        if preset.get(group, choice) == choice or group not in composed:
            continue
        fresh = OmegaConf.create({"name": choice})
        if group not in GROUPS or source.load(f"{group}/{choice}")[0]:  # Hydra takes its time
            fresh = _hydra(source, None, [f"+{group}={choice}"])[0][group]
        for leaf, value in leaf_values(_plain_values(composed[group], resolve=False), group):
            if leaf not in explicit or leaf == f"{group}.name":
                continue
            if not explicit.on_line(leaf) and _is_of_another(leaf, choice, fresh, explicit):
                notes.append(f"{explicit.written(leaf, value)}: has no effect with {group}={choice}")
            else:
                OmegaConf.update(fresh, leaf.partition(".")[2], value, force_add=True)
        composed[group] = fresh
    drop_other_warm_start(composed, explicit)
    return notes


def _is_of_another(leaf: str, choice: str, fresh: DictConfig, explicit: UserKeys) -> bool:
    """Whether the key, or the reward part, belongs to other choices but not to `choice`."""
    group, part = leaf.partition(".")[0], ".".join(leaf.split(".")[:3])
    if group == "reward":
        is_part = part.startswith("reward.parts.")
        return is_part and part.rpartition(".")[2] not in fresh.parts and f"{part}.type" not in explicit
    have = owners(leaf)
    return bool(have) and choice in registry.names(group) and f"{group}={choice}" not in have


def _compose_bundle(lines: Sequence[str], source: ConfigSource) -> Mapping[str, Any]:
    """The values of a task with its reward and prompt, from the same folders as the configuration."""
    parsed = check_overrides(parse_overrides(lines), source)
    choices = [f"+{one.input_line}" if one.key_or_group == "task" else added(one, source) for one in parsed]
    given = {one.key_or_group for one in parsed}
    composed, _, found = _followed(source, None, choices, given)
    return _resolved(composed, found)


def _resolved(composed: DictConfig, found: Mapping[str, str | None]) -> dict[str, Any]:
    """Plain values over what the data calls for and the defaults, so that `${rollout.group_size}` finds unset ones."""
    values = renewed(_plain_values(composed, resolve=False))
    if own := {key: value for key, value in found.items() if key not in FOLLOWS_TASK}:
        values["task"] |= own
    chosen = {group: registry.find(group, name) for group, name in _chosen(values).items()} | {"reward": RewardSettings}
    defaults = _defaults(Config) | {group: _defaults(settings) for group, settings in chosen.items()}
    for missing in sorted(key for key, value in leaf_values(values) if value == "???"):
        raise ConfigError(f"{missing}: has no default; say {missing}=...")
    whole, interpolated = overlaid(defaults, values), _with_interpolations(values)
    escaped = overlaid(literal({key: value for key, value in defaults.items() if key in interpolated}), values)
    try:
        return whole | _plain_values(OmegaConf.create({key: escaped[key] for key in escaped if key in interpolated}))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {' '.join(str(error.msg or error).split())}.") from None


def _with_interpolations(values: Mapping[str, Any]) -> Collection[str]:
    """The keys whose values have a `${...}` or are named in one: nodes of the others were a third of a composition."""
    texts = {key: text for key, value in values.items() if "${" in (text := str(value))}
    if any(re.search(r"\$\{[^}]*\$\{", text) for text in texts.values()):  # a name put together from other values
        return Config.model_fields
    return {*texts, *re.findall(r"\w+", " ".join(texts.values()))}


def _defaults(settings: type[Settings]) -> dict[str, Any]:
    given = {name: field for name, field in settings.model_fields.items() if not field.is_required()}
    values = {name: plain(field.get_default(call_default_factory=True)) for name, field in given.items()}
    with imports.user_code(f"{settings.__name__}: a default that YAML cannot hold"):
        json.dumps(values)
    return values


def _shrink(values: dict[str, Any], fields: Mapping[str, FieldInfo], given: Collection[str]) -> None:
    """Apply `debug=true` (a run of seconds, every rollout written), except to keys in `given`."""
    for key, field in fields.items():
        section, _, name = key.partition(".")
        small: Any = field.json_schema_extra.get("debug", ...) if isinstance(field.json_schema_extra, dict) else ...
        if small is not ... and key not in given and isinstance(values.get(section), dict):
            value = values[section].get(name)
            values[section][name] = min(value, small) if isinstance(value, int) and small is not None else small


# ---------------------------------------------------------------------------------------------------------- validating


def _chosen(values: Mapping[str, Any]) -> dict[str, str]:
    names = {group: values[group].get("name") for group in GROUPS if isinstance(values.get(group), dict)}
    return {group: name for group, name in names.items() if isinstance(name, str)}


def read_values(values: dict[str, Any]) -> Config:
    """The configuration of resolved values, as returned by `dumped`; checks each section by itself."""
    chosen = _chosen(values)
    if isinstance(name := values.get("name"), str):  # ${task.name}, maybe of the user's own task
        values["name"] = label_of(name)
    try:
        config: Config = validated(Config, values)
    except ValidationError as error:
        raise ConfigError(messages.invalid(error, chosen)) from None
    fitted = {"model": config.model.fitted(config), "algorithm": config.algorithm.fitted(config)}
    fitted |= {name: getattr(config, name).fitted(config.model) for name in ("trainer", "warm_start")}
    return config.model_copy(update=fitted)


# --------------------------------------------------------------------------------------------------- tasks inside of it

PARTS = ("task", *FOLLOWS_TASK)


def _expand(values: dict[str, Any], fields: Mapping[str, FieldInfo], source: ConfigSource) -> frozenset[str]:
    """Expand each field that names tasks, in place; returns the keys that the user's `set` lists give.

    [finqa]                                          -> {finqa: {task: ..., reward: ..., prompt: ...}}
    {gsm8k: 2, finqa: 1}                             -> {gsm8k: {weight: 2, task: ...}, finqa: {weight: 1, task: ...}}
    {mine: {task: jsonl, set: ["task.path=a.json"]}} -> {mine: {task: ..., reward: ..., prompt: ...}}
    """
    explicit: set[str] = set()
    for key, field in fields.items():
        kind, (section, _, name) = inner(field.annotation)[0], key.partition(".")
        if kind is None or not issubclass(kind, TaskBundle) or not isinstance(values.get(section), dict):
            continue
        if name not in values[section] and field.is_required():
            continue
        entries = values[section].get(name) or {}
        if isinstance(entries, str | list):
            entries = dict.fromkeys([entries] if isinstance(entries, str) else map(str, entries))
        if not isinstance(entries, dict):
            raise ConfigError(f"{key}={entries}: must name tasks, e.g. [gsm8k,finqa] or {{gsm8k: 2, finqa: 1}}.")
        weighted = "weight" in kind.model_fields
        written = values[section][name] = {}
        for label, entry in entries.items():
            written[str(label)], lines = _entry(f"{key}.{label}", str(label), entry, source, weighted)
            explicit |= {f"{key}.{label}.{line.partition('=')[0].lstrip('+~')}" for line in lines}
    return frozenset(explicit)


def _entry(key: str, name: str, entry: Any, source: ConfigSource, weighted: bool) -> tuple[dict[str, Any], list[str]]:
    """Task, reward and prompt of an entry in full, and its `set`."""
    if isinstance(entry, dict) and isinstance(entry.get("task"), dict):
        return entry, []  # already resolved
    if isinstance(entry, int | float) and weighted:
        entry = {"weight": entry}
    entry = dict(entry or {}) if isinstance(entry, dict | None) else {"set": entry}
    overrides, choice = entry.pop("set", []), entry.pop("task", name)
    weight = {"weight": entry.pop("weight", 1.0)} if weighted else {}
    if entry or not isinstance(overrides, list) or not all(isinstance(line, str) for line in overrides):
        known = "weight, task and set" if weighted else "task and set"
        raise ConfigError(f'{key}: may have {known}, where set is a list like ["task.path=FOLDER"].')
    for line in overrides:
        if line.partition("=")[0].partition(".")[0].lstrip("+~") not in PARTS:
            raise ConfigError(f"{key}: set may change task, reward and prompt, and {line} is none of them.")
        if line.lstrip("+").startswith("reward.max_error_share="):
            raise ConfigError(f"{key}: {line} has no effect here; set reward.max_error_share of the run.")
    try:
        values = _compose_bundle([f"task={choice}", *overrides], source)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
    return weight | {part: values[part] for part in PARTS}, overrides
