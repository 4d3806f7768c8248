"""From a command line to a `Config`: Hydra composes the choices and values, the settings classes check them.

The registry offers every component to Hydra's ConfigStore as a group's choice, of which the file is nothing but its
name (a task also brings the prompt and the reward that go with it): defaults stand in the classes. So what Hydra
composes is what was said, by our presets, by the user's files and on the command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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

from rlvr import registry
from rlvr.config import bundles, checks, debugging, messages
from rlvr.config.config import CHOICES, SECTIONS, Config
from rlvr.config.keys import all_keys, classes
from rlvr.config.spellings import upgraded
from rlvr.errors import ConfigError
from rlvr.settings import dumped, plain, validated

DEFAULT_CONFIG = "rpn"
DATA_CONFIG = "gsm8k"  # what a task without a configuration of its own starts from
CONF = Path(__file__).parents[1] / "conf"
FOLLOWS_TASK = ("reward", "prompt")
LEARNING_RATES = {"pretrained": 1.0e-6, "adapters": 1.0e-5, "scratch": 4.0e-4}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a configuration comes from; `option` is the option that names it, for errors."""

    name: str
    folder: str | None
    option: str = "--config-name"

    @property
    def folders(self) -> list[Path]:
        """The user's own, then ours."""
        return [*([Path(self.folder)] if self.folder else []), CONF]

    @property
    def configs(self) -> list[str]:
        """Names for `--config-name`."""
        return sorted({file.stem for folder in self.folders for file in folder.glob("*.yaml")})

    def options(self, group: str) -> list[str]:
        """The choices of a group."""
        files = {file.stem for folder in self.folders for file in (folder / group).glob("*.yaml")}
        return sorted({*files, *(registry.names(group) if group != "reward" else ())})

    def is_resolved(self) -> bool:
        """Whether it is a file without a defaults list, as a run's config.yaml: all choices are made."""
        return "defaults" not in _load_file(_find(self.folders, f"{self.name}.yaml"))


def load_config(
    overrides: Sequence[str],
    *,
    config_name: str = DEFAULT_CONFIG,
    config_dir: str | None = None,
    option: str = "--config-name",
) -> Config:
    """Compose, check and freeze a configuration. Raises ConfigError: key, value and remedy of all that is wrong."""
    source = _open(config_name, config_dir, option)
    parsed = parse_overrides(overrides)
    _check_overrides(parsed, source)
    said = _Said.of(parsed, source)
    values = _compose(source, parsed, said)
    if values.get("debug") is True:
        debugging.shrink(values, said.beside_debug())
    bundles.expand(values, lambda lines: _compose_bundle(lines, source))
    config = _validated(values)
    return checks.checked(config, said)


def load_task_config(
    name: str, overrides: Sequence[str], *, config_dir: str | None = None, option: str = "--task"
) -> Config:
    """The configuration `name`, that of a run folder, or the one of the GSM8K run with the task `name` in its place."""
    if (Path(name) / "config.yaml").is_file():
        return load_config(overrides, config_name="config", config_dir=name, option=option)
    source = Source(name=name, folder=config_dir, option=option)
    if name not in source.configs and (":" in name or name in source.options("task")):
        lines = [f"task={name}", *overrides]
        return load_config(lines, config_name=DATA_CONFIG, config_dir=config_dir, option=option)
    return load_config(overrides, config_name=name, config_dir=config_dir, option=option)


def to_yaml(config: Config) -> str:
    """The resolved configuration; it can be read back with `--config-dir` and `--config-name`."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(dumped(config))))


def to_run_yaml(config: Config) -> str:
    """`config.yaml` of a run folder: repeating it makes a new run, so it neither names this folder nor resumes."""
    return to_yaml(config.model_copy(update={"run_dir": None, "resume": False}))


def read_yaml(text: str) -> Config:
    """What `to_run_yaml` wrote, also that of rlvr 0.1.0, without a look at the rules of a run."""
    values = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    return read_values(upgraded({str(key): value for key, value in values.items()}))  # type: ignore[union-attr]


def read_values(values: dict[str, Any]) -> Config:
    """Resolved values, as `dumped` gives them."""
    if isinstance(prompt := values.get("prompt"), dict):
        prompt.setdefault("name", "plain")  # rlvr 0.1.0 has none
    return _validated(values)


def _escaped(value: Any) -> Any:
    """Texts with `${` are literal: no interpolation is left in a resolved configuration."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


# ------------------------------------------------------------------------------------------------------- overrides


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
        if last == "name" and section in CHOICES and section != "reward" and not override.is_delete():
            raise ConfigError(f"{line}: the name only says what was chosen; choose with {section}={override.value()}.")
        if _is_choice(override):
            _check_choice(override, source)
        elif key == "tracker" and isinstance(override.value(), str):
            raise ConfigError(f"{line}: name trackers with tracker.report_to=[{override.value()}].")


def _is_choice(override: Override) -> bool:
    key = override.key_or_group
    return (key in CHOICES or "/" in key) and not isinstance(override.value(), dict) and not override.is_delete()


def _check_choice(override: Override, source: Source) -> None:
    key, value, options = override.key_or_group, override.value(), source.options(override.key_or_group)
    if isinstance(value, str) and ":" in value and key in registry.PACKAGES and key != "reward":
        registry.find(key, value)
    elif value not in options:
        raise ConfigError(
            f"{key}={messages.shown(value)}: there is no such {key}; {registry.suggestion(str(value), options)}"
        )


# ----------------------------------------------------------------------------------------------------- what was said


@dataclass(frozen=True, kw_only=True)
class _Said:
    """The dotted keys that the user gave a value or chose."""

    line: frozenset[str]  # on the command line
    file: frozenset[str]  # in files of the user's own
    is_resolved: bool  # the file is a run's, which says every key
    debug_in_file: bool

    @classmethod
    def of(cls, parsed: Sequence[Override], source: Source) -> _Said:
        own = {} if source.folder is None else dict(_own_values(source.name, Path(source.folder)))
        return cls(
            line=frozenset(leaf for override in parsed for leaf in _override_leaves(override)),
            file=frozenset(own),
            is_resolved=source.folder is not None and source.is_resolved(),
            debug_in_file=own.get("debug") is True,
        )

    def __contains__(self, path: str) -> bool:
        return self.on_line(path) or any(_covers(key, path) for key in self.file)

    def on_line(self, path: str) -> bool:
        """Whether the command line says it."""
        return any(_covers(key, path) for key in self.line)

    def beside_debug(self) -> frozenset[str]:
        """What stands where debug=true stands: on the command line, or in the same file."""
        return self.line | (self.file if self.debug_in_file else frozenset())


def _covers(said: str, path: str) -> bool:
    return said == path or path.startswith(f"{said}.") or said.startswith(f"{path}.")


def _override_leaves(override: Override) -> Iterator[str]:
    key, value = override.key_or_group, None if override.is_delete() else override.value()
    if _is_choice(override):
        return
    yield from _leaves(value, key) if isinstance(value, dict) and value else (key,)


def _leaves(value: Any, prefix: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _leaves(item, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix


def _own_values(name: str, folder: Path, seen: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The keys and values of a file of the user's, and of those of the user's that it includes."""
    file = folder / f"{name}.yaml"
    if name in seen or not file.is_file():
        return
    data = _load_file(file)
    for included, group in _included(data):
        inside = f"{group}/{included}" if group else included
        for key, value in _own_values(inside, folder, (*seen, name)):
            yield (f"{group}.{key}" if group else key), value
    data.pop("defaults", None)
    for key in _leaves(data, ""):
        yield key, data.get(key)


def _included(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """`[rpn, {override task: jsonl}]` -> `("rpn", "")`, `("jsonl", "task")`."""
    for entry in data.get("defaults") or ():
        if isinstance(entry, str) and entry != "_self_":
            yield entry, ""
        elif isinstance(entry, Mapping):
            for key, value in entry.items():
                yield str(value), str(key).removeprefix("override ").strip("/")


def _preset_choices(name: str, folders: Sequence[Path]) -> dict[str, str]:
    """What our own files among those that `name` is made of choose: `{"task": "rpn", "algorithm": "ppo", ...}`."""
    with suppress(ConfigError, RecursionError):
        file = _find(folders, f"{name}.yaml")
        data, chosen = _load_file(file), {}
        for included, group in _included(data):
            if not group:
                chosen |= _preset_choices(included, folders if file.parent == CONF or included != name else [CONF])
            elif file.parent == CONF:
                chosen[group] = included
        return chosen
    return {}


def _find(folders: Sequence[Path], name: str) -> Path:
    return next((folder / name for folder in folders if (folder / name).is_file()), CONF / name)


def _load_file(file: Path) -> dict[str, Any]:
    try:
        found = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except (OmegaConfBaseException, YAMLError, OSError, ValueError) as error:
        raise ConfigError(f"{file}: {_one_line(error)}") from None
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


# --------------------------------------------------------------------------------------------------------- composing


def _open(config_name: str, config_dir: str | None, option: str) -> Source:
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            raise ConfigError(f"--config-dir {config_dir}: there is no such folder.")
        registry.look_in(str(Path(config_dir).resolve()))
    source = Source(name=config_name.removesuffix(".yaml"), folder=config_dir, option=option)
    if source.name not in source.configs:
        hint = registry.suggestion(source.name, source.configs)
        raise ConfigError(f"{option} {source.name}: there is no such configuration; {hint}")
    return source


def _offer(source: Source, lines: Sequence[str]) -> None:
    """Store a choice for every component of the registry, and for each `module:Class` that lines or files name."""
    store = ConfigStore.instance()
    named = [re.fullmatch(r"\+?(\w+)=([\w.]+:[\w.]+)", line) for line in lines]
    wanted = {(match[1], match[2]) for match in named if match is not None}
    for file in Path(source.folder).glob("*.yaml") if source.folder else ():
        wanted |= {(group, name) for name, group in _included(_load_file(file)) if ":" in name}
    groups = [group for group in CHOICES if group != "reward"]
    choices = [(group, name) for group in groups for name in registry.names(group)]
    for group, name in [*choices, *(one for one in wanted if one[0] in groups)]:
        node: dict[str, Any] = {"name": name}
        if group == "task":
            task = registry.find("task", name)
            reward = task.reward
            if not isinstance(reward, str):  # parts of its own
                store.store(group="reward", name=name, node={"parts": plain(reward)}, provider="rlvr")
                reward = name
            follow = [{"/reward@_global_.reward": reward}, {"/prompt@_global_.prompt": task.prompt}]
            node["defaults"] = [*follow, "_self_"]
            wanted_prompt = task.prompt
            if ":" in wanted_prompt:
                store.store(group="prompt", name=wanted_prompt, node={"name": wanted_prompt}, provider="rlvr")
        store.store(group=group, name=name, node=node, provider="rlvr")


def _hydra(source: Source, config_name: str | None, lines: Sequence[str]) -> DictConfig:
    _offer(source, lines)
    if source.folder is None:
        opened, more = initialize_config_module("rlvr.conf", version_base="1.3"), []
    else:
        opened = initialize_config_dir(str(Path(source.folder).resolve()), version_base="1.3")
        more = ["hydra.searchpath=[pkg://rlvr.conf]"]
    try:
        with opened:
            return compose(config_name, overrides=[*lines, *more], return_hydra_config=True)
    except HydraException as error:
        raise ConfigError(_explained(error, source, lines)) from None
    except RecursionError:
        raise ConfigError(f"{source.option} {source.name}: includes itself; give your file another name.") from None
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(f"{source.option} {source.name}: {_one_line(error)}") from None


def _explained(error: HydraException, source: Source, lines: Sequence[str]) -> str:
    """A group choice on a configuration that is already resolved, or a broken defaults list."""
    for line in lines:
        key = line.partition("=")[0]
        if f"Could not override '{key}'" in str(error):
            return (
                f"{line}: {source.name} is a resolved configuration, whose choices are fixed; override values "
                f"({key}.KEY=...), or choose on top of {source.option} {source.name} in a file of your own."
            )
    return f"{source.option} {source.name}: {_one_line(error)}"


def _one_line(error: object) -> str:
    return " ".join(str(error).split())


def _compose(source: Source, parsed: Sequence[Override], said: _Said) -> dict[str, Any]:
    """The composed and resolved values, not yet validated."""
    lines = [_added(override) for override in parsed]
    composed = _hydra(source, source.name, lines)
    chosen = {group: str(name) for group, name in composed.hydra.runtime.choices.items() if group in CHOICES}
    missing = [group for group in FOLLOWS_TASK if "task" in chosen and group not in chosen]
    if missing:  # a file of the user's own in the group `task`, which names no reward and no prompt
        task = registry.find("task", str(composed.task.name))
        lines += [f"+{group}={getattr(task, group)}" for group in missing]
        composed = _hydra(source, source.name, lines)
    OmegaConf.set_struct(composed, False)
    del composed["hydra"]
    _check_pinned(parsed, chosen, source)
    _leave_out_replaced(composed, chosen, said, source)
    return _resolved(composed)


def _added(override: Override) -> str:
    """A value is forced in, known or not: which keys there are, the settings classes know."""
    line = override.input_line or ""
    if _is_choice(override) or override.is_delete():
        return line
    return f"++{line.lstrip('+')}"


def _check_pinned(parsed: Sequence[Override], chosen: Mapping[str, str], source: Source) -> None:
    """A reward or prompt that a file pins for another task would score or ask the wrong thing."""
    given = {override.key_or_group: override for override in parsed}
    if "task" not in given or source.folder is None or ":" in chosen.get("task", ""):
        return
    for group in FOLLOWS_TASK:
        follows = (
            getattr(registry.find("task", chosen["task"]), group) if chosen["task"] in registry.names("task") else None
        )
        if group not in given and isinstance(follows, str) and chosen.get(group) != follows:
            raise ConfigError(
                f"task={chosen['task']}: goes with {group}={follows}, and {source.name}.yaml chooses "
                f"{group}={chosen.get(group)}; say {group}={follows} or {group}={chosen.get(group)} as well."
            )


def _leave_out_replaced(composed: DictConfig, chosen: Mapping[str, str], said: _Said, source: Source) -> None:
    """`--config-name gsm8k model=scratch_bpe`: what a preset says of its own choice goes with that choice."""
    preset = _preset_choices(source.name, source.folders)
    if "task" in preset:
        task = registry.find("task", preset["task"])
        preset = {"reward": task.reward, "prompt": task.prompt} | preset
    for group, choice in chosen.items():
        if preset.get(group, choice) == choice or group not in composed:
            continue
        fresh = OmegaConf.create({group: _choice_values(group, choice, source)})
        for leaf in list(_leaves(OmegaConf.to_container(composed[group]), group)):
            if leaf in said and leaf != f"{group}.name":
                OmegaConf.update(fresh, leaf, OmegaConf.select(composed, leaf), force_add=True)
        composed[group] = fresh[group]


def _choice_values(group: str, choice: str, source: Source) -> dict[str, Any]:
    """What a choice says by itself."""
    alone = _hydra(source, None, [f"+{group}={choice}"])
    values = OmegaConf.to_container(alone[group], resolve=False)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _resolved(composed: DictConfig) -> dict[str, Any]:
    """Plain values over the defaults, so that `${rollout.group_size}` finds what nobody said."""
    values = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(values, dict)
    upgraded(values)  # type: ignore[arg-type]
    if isinstance(prompt := values.get("prompt"), dict):
        prompt.setdefault("name", "plain")
    names = {s: str(values[s].get("name")) for s in CHOICES if s != "reward" and isinstance(values.get(s), dict)}
    try:
        merged = OmegaConf.merge(_defaults(names), values)
        found = OmegaConf.to_container(merged, resolve=True)
        missing = sorted(OmegaConf.missing_keys(merged))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {_one_line(error.msg or error)}.") from None
    if missing:
        raise ConfigError(f"{missing[0]}=???: has no default; say {missing[0]}=...")
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def _defaults(names: Mapping[str, str]) -> dict[str, Any]:
    """The defaults of the chosen classes, as nested values."""
    found = OmegaConf.create({})
    for path, field in all_keys({k: v for k, v in names.items() if v != "None"}).items():
        if not field.is_required() and "<" not in path:
            OmegaConf.update(found, path, _escaped(plain(field.get_default(call_default_factory=True))), force_add=True)
    return OmegaConf.to_container(found)  # type: ignore[return-value]


def _compose_bundle(lines: Sequence[str], source: Source) -> Mapping[str, Any]:
    """The values of a task with the reward and the prompt that follow it, of the same folders as the configuration."""
    parsed = parse_overrides(lines)
    _check_overrides(parsed, source)
    choices = [f"+{one.input_line}" if one.key_or_group == "task" else _added(one) for one in parsed]
    composed = _hydra(source, None, choices)
    OmegaConf.set_struct(composed, False)
    del composed["hydra"]
    return _resolved(composed)


# --------------------------------------------------------------------------------------------------------- validating


def _validated(values: dict[str, Any]) -> Config:
    chosen = {
        group: str(values[group]["name"])
        for group in CHOICES
        if group != "reward" and isinstance(values.get(group), dict) and isinstance(values[group].get("name"), str)
    }
    if isinstance(name := values.get("name"), str) and ":" in name:
        values["name"] = name.rpartition(":")[2].lower()
    unknown = [key for key in values if key not in Config.model_fields and key not in SECTIONS]
    _ = unknown, classes
    try:
        return _with_auto(validated(Config, values))
    except ValidationError as error:
        raise ConfigError(messages.invalid(error, chosen)) from None


def _with_auto(config: Config) -> Config:
    """The numbers that depend on how the model is trained."""
    model, trainer = config.model, config.trainer
    if getattr(model, "dtype", None) == "auto":
        narrow = model.adapted and trainer.precision != "fp32"
        model = model.model_copy(update={"dtype": "bfloat16" if narrow else "float32"})
    if isinstance(trainer.warmup_steps, float):
        trainer = trainer.model_copy(update={"warmup_steps": round(trainer.warmup_steps * trainer.max_steps)})
    if trainer.learning_rate == "auto":
        kind = "scratch" if model.from_scratch else "adapters" if model.adapted else "pretrained"
        trainer = trainer.model_copy(update={"learning_rate": LEARNING_RATES[kind]})
    return config.model_copy(update={"model": model, "trainer": trainer})


__all__ = ["load_config", "load_task_config", "os", "parse_overrides", "to_run_yaml", "to_yaml"]
