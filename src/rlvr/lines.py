r"""Python values as command-line overrides, and lines as Hydra reads them.

override_lines({"seed": 1, "task": "gsm8k", "trainer": {"max_steps": 5}, "prompt.user": "It's {question}"})
-> ["seed=1", "task=gsm8k", "trainer.max_steps=5", r"prompt.user='It\'s {question}'"]

override_lines({"algorithm": {"name": "dapo", "clip_high": 0.3}})
-> ["algorithm=dapo", "algorithm.clip_high=0.3"]
"""

import json
import math
import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

from rlvr.errors import ConfigError

_NOT_PLAIN = ("true", "false", "null", "nan", "inf")  # words that Hydra reads as something else, in any case


def override_lines(values: Mapping[str, Any]) -> list[str]:
    """One override per value; a mapping is a section, whose `name` is its choice. Text is literal, including `${...}`.

    ConfigError for a value that no configuration can hold.
    """
    return [line for key, value in values.items() for line in _lines(str(key), value)]


def resuming(folder: str | os.PathLike[str]) -> str:
    """`run_dir=runs/x resume=true`, quoted for a shell."""
    text = os.fspath(folder)
    plain = re.fullmatch(r"[\w./-]+", text, re.ASCII)
    return f"{shlex.quote(f'run_dir={text if plain else quoted(text)}')} resume=true"


def with_letters_quoted(line: str) -> str:
    """`run_dir=runs/Übung` as `run_dir="runs/Übung"`: unquoted, Hydra reads ASCII letters only."""
    key, equals, value = line.partition("=")
    is_plain = not value.isascii() and not set(value) & set("\"'[]{}(),=$\\")
    return f"{key}{equals}{quoted(value)}" if is_plain else line


def inclusive_range(line: str) -> str:
    """`seed=1..10` becomes `seed=range(1,11)`; other lines are unchanged."""
    match = re.fullmatch(r"([\w./@+]+)=(\d+)\.\.(\d+)", line)
    return f"{match[1]}=range({match[2]},{int(match[3]) + 1})" if match else line


def _lines(key: str, value: Any) -> list[str]:
    if isinstance(value, Mapping) and value:
        keys = {name: key if name == "name" and "." not in key else f"{key}.{name}" for name in value}
        return [line for name, item in value.items() for line in _lines(keys[name], item)]
    return [f"{key}={_text(key, value)}"]


def _text(key: str, value: Any) -> str:
    if getattr(value, "ndim", None) == 0:  # a NumPy, PyTorch or JAX scalar
        value = value.item()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(_text(key, item) for item in value)}]"
    if isinstance(value, Mapping) and not value:
        return "{}"
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    raise ConfigError(
        f"{key}={value!r:.80}: a setting is a text, a finite number, a boolean, None, or a list or mapping of these."
    )


def quoted(text: str) -> str:
    r"""Quote a text so that Hydra and OmegaConf read it back unchanged; a plain word stays unquoted.

    `it's` -> `'it\'s'`   `\boxed{x}` -> `'\boxed{x}'`   `${x}` -> `'\${x}'`
    """
    if re.fullmatch(r"[A-Za-z_][\w./-]*", text, re.ASCII) and text.lower() not in _NOT_PLAIN:
        return text
    literal = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # OmegaConf: no interpolation
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", literal)  # Hydra: backslashes only escape before a quote
    return "'" + re.sub(r"(\\+)\Z", r"\1\1", escaped) + "'"
