"""The verifiers library: which edition is installed, and whether an environment belongs to it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr.errors import ConfigError, UserError
from rlvr.printable import ascii_text
from rlvr_verifiers.edition import Environment

EDITIONS = {"0.3.1": "legacy", "0.4": "v1"}
"""The module that plays the environments of a version."""

INSTALL = {
    "0.3.1": "pip install -e . -e plugins/rlvr-verifiers -c constraints.txt",
    "0.4": "pip install -e . -e plugins/rlvr-verifiers -c plugins/rlvr-verifiers/constraints-0.4.txt",
}
MARKS = {"0.3.1": re.compile(r"^(async )?def load_environment\b", re.M), "0.4": re.compile(r"\bTaskset\[")}
"""What the source of an environment of this version has."""


def installed() -> str:
    """The installed edition, `0.3.1` or `0.4`. UserError if it is missing or another version."""
    try:
        found = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        found = "no version"
    for version in EDITIONS:
        if found == version or found.startswith(f"{version}."):
            return version
    raise UserError(
        f"task=verifiers needs verifiers 0.3.1 or 0.4, but {found} is installed: {INSTALL['0.3.1']} (0.3.1), or "
        f"{INSTALL['0.4']} (0.4)."
    )


def open_environment(env_id: str, env_args: Mapping[str, Any], max_rows: int | None = None) -> Environment:
    """The environment of this name with its data; of one without end `max_rows` rows. Works in any thread.

    ConfigError if it is missing, belongs to the other edition, rejects the arguments, or gives no scores.
    """
    version = installed()
    edition = importlib.import_module(f"rlvr_verifiers.{EDITIONS[version]}")
    arguments = {key: list(value) if isinstance(value, tuple) else value for key, value in env_args.items()}
    try:
        return edition.open_environment(env_id, arguments, max_rows)
    except UserError:
        raise
    except Exception as error:  # the environment's own code
        cause, module = error.__cause__ or error, module_of(env_id)
        if isinstance(cause, UserError):
            raise cause from error
        if other := _belongs_to_other(module, version):
            raise ConfigError(
                f"task.env_id={env_id}: it is made for verifiers {other}, but {version} is installed: {INSTALL[other]} "
                "in an environment of its own."
            ) from error
        if isinstance(cause, ModuleNotFoundError) and cause.name == module:
            how = f"vf-install {env_id} -p FOLDER" if version == "0.3.1" else "pip install"
            raise ConfigError(
                f"task.env_id={env_id}: there is no such environment (module {module}); install it, e.g. with {how}."
            ) from error
        said = f"{type(cause).__name__}: {ascii_text(str(cause)[:300])}"
        raise ConfigError(
            f"task.env_args={arguments}: {env_id} cannot be made with them ({said}); change them."
        ) from error


def module_of(env_id: str) -> str:
    """`owner/my-env@1.0` -> `my_env`"""
    return env_id.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_")


def _belongs_to_other(module: str, version: str) -> str | None:
    """The other version, if the module's sources are made for it and not for the installed one."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    files = origin.parent.rglob("*.py") if origin.name == "__init__.py" else [origin]
    text = "\n".join(file.read_text(errors="replace") for file in files)
    fitting = {edition for edition, mark in MARKS.items() if mark.search(text)}
    return None if version in fitting or not fitting else fitting.pop()
