"""From a command line to a `Config`: Hydra composes the YAML groups, the schema and the rules check the result.

Hydra's loader is used directly, not its application: it has no global state, makes no folders, and lets the user's
`--config-dir` add root configurations as well as groups.
"""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from rlvr.config import bundles, debugging, messages, rules
from rlvr.config.catalog import choice_models, has_value, sections, value_of
from rlvr.config.schema import Config
from rlvr.errors import ConfigError

DEFAULT_CONFIG = "rpn"
DATA_CONFIG = "gsm8k"  # what a data task without a configuration of its own starts from


@dataclass(frozen=True)
class Source:
    """Where a configuration comes from."""

    config_name: str
    config_dir: str | None
    loader: ConfigLoaderImpl

    @property
    def root_configs(self) -> list[str]:
        """Names for `--config-name`; Hydra's own (`config`, `hydra`) lie elsewhere in its search path."""
        folders = [Path(__file__).parents[1] / "conf", *([Path(self.config_dir)] if self.config_dir else [])]
        return sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})

    def options(self, group: str) -> list[str]:
        """The choices of a group."""
        return self.loader.get_group_options(group)

    def is_group(self, key: str) -> bool:
        """Whether `key` names a group of configuration files. A value's key, which has a dot, is not looked up."""
        return "." not in key and bool(self.loader.get_group_options(key, ObjectType.CONFIG))


def load_config(
    overrides: Sequence[str], *, config_name: str = DEFAULT_CONFIG, config_dir: str | None = None
) -> Config:
    """Compose, check and freeze a configuration. Raises ConfigError: one sentence with key, value and remedy."""
    source = _open(config_name, config_dir)
    parsed = parse_overrides(overrides)
    for override in parsed:
        _check_override(override, source)
    values = _compose(source, parsed)
    if values.get("debug") is True:
        debugging.shrink(values, _said_beside_debug(source, parsed))
    lines = bundles.expand(values, partial(_bundle, config_dir))
    chosen = messages.chosen_names(values)
    try:
        config = Config.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        raise ConfigError(messages.invalid(error, chosen)) from None

    def changed_inside(key: str, inside: Config) -> rules.Changed:
        if key not in lines:  # it was resolved already
            return lambda path: False
        return _changed(inside, _open(DEFAULT_CONFIG, config_dir), parse_overrides(lines[key]))

    rules.check(config, _changed(config, source, parsed), changed_inside)
    return config


def _said_beside_debug(source: Source, overrides: Sequence[Override]) -> set[str]:
    """The keys that the user gave a value where debug=true stands: on the command line, or in the same file."""
    given = {override.key_or_group for override in overrides}
    file = Path(source.config_dir or "") / f"{source.config_name}.yaml"
    if source.config_dir is None or not file.is_file():
        return given
    own = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    if not isinstance(own, dict) or own.get("debug") is not True:
        return given
    inside = [(section, values) for section, values in own.items() if isinstance(values, dict)]
    return given | {f"{section}.{name}" for section, values in inside for name in values}


def load_task_config(name: str, overrides: Sequence[str]) -> Config:
    """The configuration `name`, or, where there is none, the one of the GSM8K run with the task `name` in its place."""
    source = _open(DEFAULT_CONFIG, None)
    if name not in source.root_configs and name in source.options("task"):
        return load_config([f"task={name}", *overrides], config_name=DATA_CONFIG)
    return load_config(overrides, config_name=name)


def _bundle(config_dir: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """The values of a task with the reward and the prompt that follow it, of the same folders as the configuration."""
    source = _open(DEFAULT_CONFIG, config_dir)
    parsed = parse_overrides(overrides)
    for override in parsed:
        _check_override(override, source)
    return _compose(source, parsed)


def to_yaml(config: Config) -> str:
    """The resolved configuration; it can be read back with `--config-dir` and `--config-name`."""
    return OmegaConf.to_yaml(OmegaConf.create(config.model_dump(mode="json")))


def to_run_yaml(config: Config) -> str:
    """`config.yaml` of a run folder: repeating it makes a new run, so it neither names this folder nor resumes."""
    return to_yaml(config.model_copy(update={"run_dir": None, "resume": False}))


def inclusive_range(line: str) -> str:
    """`seed=1..10` in Hydra's grammar: `seed=range(1,11)`; every other line as it is."""
    match = re.fullmatch(r"([\w./@+]+)=(\d+)\.\.(\d+)", line)
    return f"{match[1]}=range({match[2]},{int(match[3]) + 1})" if match else line


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Hydra's override grammar; a line it cannot read is a ConfigError."""
    parser = OverridesParser.create()
    parsed = []
    for line in overrides:
        try:
            parsed.append(parser.parse_override(line))
        except HydraException as error:
            if "=" not in line:
                raise ConfigError(f"{line}: an override is written key=value, e.g. trainer.max_steps=5.") from None
            if (foreign := messages.foreign_key(line)) is not None:
                raise ConfigError(foreign) from None
            reason = str(error).splitlines()[0]
            key, _, value = line.partition("=")
            hint = f"""put quotes around a text with special characters: '{key}="{value}"'"""
            raise ConfigError(f"{line}: Hydra cannot read this value ({reason}); {hint}.") from None
    return parsed


def _open(config_name: str, config_dir: str | None) -> Source:
    path = ConfigSearchPathImpl()
    path.append("hydra", "pkg://hydra.conf")
    if config_dir is not None:
        folder = Path(config_dir)
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {config_dir}: there is no such folder.")
        path.append("user", f"file://{folder.resolve()}")
    path.append("main", "pkg://rlvr.conf")
    path.append("schema", "structured://")
    Plugins.instance()  # registers the readers of pkg:// and file://
    setup_globals()  # registers ${now:...}
    OmegaConf.register_new_resolver("rlvr.data", _data_folder, replace=True)
    name = config_name.removesuffix(".yaml")
    source = Source(config_name=name, config_dir=config_dir, loader=ConfigLoaderImpl(config_search_path=path))
    if name not in source.root_configs:
        raise ConfigError(messages.unknown_config(name, source.root_configs))
    return source


def _data_folder(name: str, otherwise: str, split: str | None = None) -> str:
    """`${rlvr.data:gsm8k,openai/gsm8k}`: the folder `gsm8k` in RLVR_DATA if there is one, else the Hub's data set.

    `${rlvr.data:musique,'bdsaglam/musique,answerable,validation',dev}`: or `FOLDER,dev`, as the split is called there.
    """
    folder = Path(os.environ.get("RLVR_DATA", "")) / name
    if "RLVR_DATA" not in os.environ or not folder.is_dir():
        return otherwise
    return str(folder) if split is None else f"{folder},{split}"


def _check_override(override: Override, source: Source) -> None:
    """What Hydra would say at length, or not at all."""
    key, line = override.key_or_group, override.input_line or ""
    if override.is_sweep_override() or inclusive_range(line) != line:
        text = f"""; a text with commas needs quotes in quotes, '{key}="a,b"'""" if "," in line else ""
        raise ConfigError(f"{line}: several values make a sweep; add --multirun, or write a list as {key}=[...]{text}.")
    if key == "hydra" or key.startswith(("hydra.", "hydra/")):
        raise ConfigError(f"{line}: Hydra's own settings have no effect here; run_dir=... sets the run folder.")
    section, _, last = key.partition(".")
    if last == "name" and section in sections() and not override.is_delete():
        raise ConfigError(f"{line}: the name only says what was chosen; choose with {section}={override.value()}.")
    if override.is_delete() or not source.is_group(key):
        return
    value = override.value()
    if not isinstance(value, str) or value not in source.options(key):
        raise ConfigError(messages.unknown_choice(key, value, source.options(key)))


def _compose(source: Source, overrides: Sequence[Override]) -> dict[str, Any]:
    """The composed and resolved values, not yet validated."""
    values = _resolve(_composed(source, overrides))
    for override in overrides:
        if override.key_or_group in sections() and source.is_group(override.key_or_group):
            _leave_out_of_another_choice(values, source, override, overrides)
    return values


def _leave_out_of_another_choice(
    values: dict[str, Any], source: Source, choice: Override, overrides: Sequence[Override]
) -> None:
    """`--config-name gsm8k model=scratch_bpe`: what the configuration says of its own choice goes with that choice."""
    section = choice.key_or_group
    models, chosen = choice_models(section), values.get(section)
    model = models.get(chosen.get("name", "")) if isinstance(chosen, dict) else None
    if not isinstance(chosen, dict) or model is None:
        return
    given = {override.key_or_group.removeprefix(f"{section}.").partition(".")[0] for override in overrides}
    others = {name for other in models.values() for name in other.model_fields} - set(model.model_fields) - given
    if others.isdisjoint(chosen):
        return
    of_the_choice = _composed(_open(DEFAULT_CONFIG, source.config_dir), [choice])[section]
    values[section] = {key: value for key, value in chosen.items() if key not in others or key in of_the_choice}


def _composed(source: Source, overrides: Sequence[Override]) -> DictConfig:
    try:
        return _load(source, overrides)
    except HydraException as error:
        raise ConfigError(_explain(error, source, overrides)) from None
    except RecursionError:
        raise ConfigError(
            f"--config-name {source.config_name}: includes itself; a file of yours needs a name of its own."
        ) from None
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(f"--config-name {source.config_name}: {_one_line(error)}") from None


def _resolve(composed: DictConfig) -> dict[str, Any]:
    try:
        values = OmegaConf.to_container(composed, resolve=True)
        missing = sorted(OmegaConf.missing_keys(composed))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {_one_line(error.msg or error)}.") from None
    if missing:
        raise ConfigError(f"{missing[0]}=???: has no default; say {missing[0]}=...")
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _load(source: Source, overrides: Sequence[Override]) -> DictConfig:
    """What Hydra composes: first the files, then the values, as it does; files that come with rlvr are read once."""
    choices = [override for override in overrides if _chooses(source, override)]
    lines = tuple(override.input_line or "" for override in choices)
    composed = deepcopy(_shipped(source.config_name, lines)) if source.config_dir is None else _files(source, lines)
    ConfigLoaderImpl._apply_overrides_to_config([o for o in overrides if o not in choices], composed)
    OmegaConf.set_struct(composed, False)
    del composed["hydra"]
    return composed


def _chooses(source: Source, override: Override) -> bool:
    key = override.key_or_group
    return "/" in key or override.package is not None or source.is_group(key)


@cache
def _shipped(config_name: str, choices: tuple[str, ...]) -> DictConfig:
    """Of rlvr's own files alone, which do not change while it runs."""
    return _files(_open(config_name, None), choices)


def _files(source: Source, choices: Sequence[str]) -> DictConfig:
    return source.loader.load_configuration(source.config_name, list(choices), run_mode=RunMode.RUN, from_shell=False)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())


def _explain(error: HydraException, source: Source, overrides: Sequence[Override]) -> str:
    """Which override Hydra choked on: compose without the value overrides and look for each key."""
    choices = [override for override in overrides if source.is_group(override.key_or_group)]
    added = [override for override in overrides if override.is_add() or override.is_force_add()]
    try:
        base = _load(source, choices)
        with suppress(HydraException):
            base = _load(source, [*choices, *added])
    except HydraException as base_error:
        return _explain_choice(base_error, source, choices)
    values = OmegaConf.to_container(base, resolve=False)
    assert isinstance(values, dict)
    chosen = messages.chosen_names({str(key): value for key, value in values.items()})
    for override in overrides:
        key = override.key_or_group
        if override not in choices and not override.is_force_add() and not override.is_add() and not _has(values, key):
            return messages.unknown_key(key, override.value(), chosen)
    return _one_line(error)


def _explain_choice(error: HydraException, source: Source, choices: Sequence[Override]) -> str:
    """A group choice on a configuration that is already resolved, or a broken defaults list."""
    for override in choices:
        if f"Could not override '{override.key_or_group}'" in str(error):
            return (
                f"{override.input_line}: {source.config_name} is a resolved configuration, whose choices are fixed; "
                f"override values ({override.key_or_group}.KEY=...), or choose on top of --config-name "
                f"{DEFAULT_CONFIG}."
            )
    return f"--config-name {source.config_name}: {_one_line(error)}"


def _has(values: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def _changed(config: Config, source: Source, overrides: Sequence[Override]) -> rules.Changed:
    """Tells whether a value is the user's: it differs from the composition without value overrides, or, where the
    user's own folder takes part, from every value that rlvr ships for the key."""
    overridden = {override.key_or_group for override in overrides}

    @cache
    def untouched() -> Any:
        return OmegaConf.to_container(_composed(source, [o for o in overrides if source.is_group(o.key_or_group)]))

    def changed(path: str) -> bool:
        if not has_value(config, path):
            return False
        value = value_of(config, path)
        if path in overridden:
            return not _has(untouched(), path) or _plain(_get(untouched(), path)) != _plain(value)
        return source.config_dir is not None and _plain(value) not in shipped_values(path)

    return changed


def _get(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values[part]
    return values


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def shipped_values(path: str) -> list[Any]:
    """Every value that the packaged YAML files give to a key, e.g. `trainer.max_steps` -> [40, 30, 100, ...]."""
    section, _, name = path.partition(".")
    folder = Path(__file__).parents[1] / "conf"
    found = []
    for file in sorted(folder.glob(f"{section}/*.yaml")) + sorted(folder.glob("*.yaml")):
        values = _shipped_file(file)
        local = path if file.parent == folder else name
        if local and _has(values, local):
            found.append(_get(values, local))
    return found


@cache
def _shipped_file(file: Path) -> Any:
    """The values of a packaged file, read once: every key of a run's configuration is looked up in many of them."""
    return OmegaConf.to_container(OmegaConf.load(file))
