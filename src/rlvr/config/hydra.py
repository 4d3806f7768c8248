"""Hydra's composition of files, choices and values, without Hydra's own sections."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import setup_globals
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf


def composed(
    folders: Iterable[Path], name: str | None, overrides: Sequence[Override]
) -> tuple[DictConfig, dict[str, Any]]:
    """The configuration `name`, and what is chosen in each group. Raises the errors of Hydra and OmegaConf.

    `hydra.compose` does the same, and also loads, merges and checks the sections of Hydra: half of its time.
    """
    _set_up()
    path = _search_path(str(folder.resolve()) for folder in folders)
    loader, files = ConfigLoaderImpl(path), _Files(path)
    defaults = create_defaults_list(files, name, list(overrides), prepend_hydra=False, skip_missing=False)
    config = loader._compose_config_from_defaults_list(defaults.defaults, files)
    OmegaConf.set_struct(config, True)  # an override without ++ must name a known key
    loader._apply_overrides_to_config(defaults.config_overrides, config)
    OmegaConf.set_struct(config, False)
    config.pop("hydra", None)
    return config, defaults.overrides.known_choices


class _Files(ConfigRepository):
    """Parses each text once in a process, a sixth of a composition. Hydra's own cache copies all that is registered."""

    def __init__(self, path: ConfigSearchPathImpl) -> None:
        super().__init__(path)
        self._read: dict[str, ConfigResult | None] = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self._read:
            source = self._find_object_source(config_path, ObjectType.CONFIG)
            if source is None or source.scheme() != "file":
                self._read[config_path] = super().load_config(config_path)
            else:
                text = Path(source.path, f"{config_path}.yaml").read_text("utf-8")
                self._read[config_path] = deepcopy(_parsed(source.path, config_path, text))
        return self._read[config_path]


@lru_cache(maxsize=256)
def _parsed(folder: str, config_path: str, text: str) -> ConfigResult | None:
    return ConfigRepository(_search_path([folder])).load_config(config_path)


def _search_path(folders: Iterable[str]) -> ConfigSearchPathImpl:
    path = ConfigSearchPathImpl()
    for folder in folders:
        path.append("rlvr", f"file://{folder}")
    path.append("schema", "structured://")
    return path


@cache
def _set_up() -> None:
    version.setbase("1.3")
    setup_globals()  # ${now:...}
    Plugins.instance()  # file:// and structured://
