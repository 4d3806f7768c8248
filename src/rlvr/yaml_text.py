"""YAML of configurations, as OmegaConf reads and writes it."""

import re
from contextlib import suppress
from functools import lru_cache
from io import StringIO
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_omega_conf_dumper

MOST_VALUES = 100_000  # in a text


@lru_cache(maxsize=64)
def values_in(text: str) -> Any:
    """What the text holds, with `${...}` as written; not to be changed, for a text is parsed once: those of a run's
    file take 12 ms, and are asked for by a command, its report and its diagnosis.

    Raises the errors of yaml and OmegaConf; ValueError for aliases that would fill the memory.
    """
    if _size(_nodes(text), {}) > MOST_VALUES:
        raise ValueError(f"its aliases (*name) stand for more than {MOST_VALUES:,} values; write fewer")
    return OmegaConf.to_container(OmegaConf.load(StringIO(text)), resolve=False)


def _nodes(text: str) -> yaml.Node | None:
    with suppress(AttributeError, yaml.YAMLError):  # without libyaml, or an error, which is worded below as everywhere
        return yaml.compose(text, yaml.CSafeLoader)
    return yaml.compose(text)


def _size(node: yaml.Node | None, known: dict[Any, int]) -> int:
    """Number of values below a node, with those behind aliases: OmegaConf copies each."""
    if node not in known:
        known[node] = MOST_VALUES + 1  # seen again below itself
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        pairs = (one if isinstance(one, tuple) else (one,) for one in children)
        known[node] = 1 + sum(_size(child, known) for pair in pairs for child in pair)
    return known[node]


def text_of(values: dict[str, Any]) -> str:
    """The text of plain values, which holds no interpolation: `OmegaConf.to_yaml` without a node for each value."""
    dumper = get_omega_conf_dumper()
    return yaml.dump(literal(values), None, dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


def literal(value: Any) -> Any:
    """Escape `${` in texts: a resolved configuration has no interpolations."""
    if isinstance(value, dict):
        return {key: literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [literal(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value
