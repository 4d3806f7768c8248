"""Sentences for wrong settings: each names the key, its value, and the remedy."""

import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from rlvr.config.catalog import ONLY_CHOICE, choice_models, keys, sections
from rlvr.config.schema import Config
from rlvr.config.spellings import find_spelling


def nearest(word: str, names: Sequence[str], cutoff: float = 0.6) -> str | None:
    """The closest of `names`, if any is close."""
    matches = get_close_matches(word, names, n=1, cutoff=cutoff)
    return matches[0] if matches else None


def shown(value: Any) -> str:
    """A value as a user would write it: `null`, `true`, `[1,2]`, `grpo`."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)


def unknown_choice(group: str, value: object, options: Sequence[str]) -> str:
    """`algorithm=grp`"""
    near = nearest(str(value), options)
    choices = ", ".join(options)
    hint = f"did you mean {group}={near}? (choices: {choices})" if near else f"the choices are {choices}."
    return f"{group}={shown(value)}: there is no such {group}; {hint}"


def unknown_config(name: str, options: Sequence[str]) -> str:
    """`--config-name rnp`"""
    near = nearest(name, options)
    hint = f"did you mean {near}? (there are {', '.join(options)})" if near else f"there are {', '.join(options)}."
    return f"--config-name {name}: there is no such configuration; {hint}"


def unknown_key(key: str, value: object, chosen: dict[str, str]) -> str:
    """What is wrong with a key that the schema does not have. `chosen`: the choice of each section."""
    written = f"{key}={shown(value)}"
    section = key.partition(".")[0]
    paths = {k.path: k.choices for k in keys()}
    if key in paths:
        owners = " or ".join(f"{section}={choice}" for choice in paths[key])
        return f"{written}: {section}={chosen.get(section, '?')} has no such key; {owners} has."
    if (spelling := find_spelling(key)) is not None and key not in spelling.ours:
        return f"{written}: the key is called {' and '.join(spelling.ours)} here" + (
            f" ({spelling.note})." if spelling.note else "."
        )
    if value_key := _inside_a_value(key, paths):
        return f"{written}: {value_key} is a value, not a section; set {value_key} itself."
    near = _nearest_key(key, [path for path, owners in paths.items() if _available(path, owners, chosen)])
    return f"{written}: there is no key {key}; " + (
        f"did you mean {near}?" if near else "`rlvr train --cfg job` prints all keys."
    )


def _available(path: str, owners: tuple[str, ...], chosen: dict[str, str]) -> bool:
    choice = chosen.get(path.partition(".")[0], ONLY_CHOICE)
    return not owners or choice in owners


def _inside_a_value(key: str, paths: dict[str, tuple[str, ...]]) -> str | None:
    parts = key.split(".")
    return next((p for n in range(1, len(parts)) if (p := ".".join(parts[:n])) in paths), None)


def _nearest_key(key: str, paths: list[str]) -> str | None:
    """Nearest by last component inside the section, then anywhere by last component, then by the whole key."""
    section, _, last = key.rpartition(".")
    inside = {path.rpartition(".")[2]: path for path in paths if path.startswith(f"{section}.")} if section else {}
    anywhere = {path.rpartition(".")[2]: path for path in reversed(paths)}
    for table in (inside, dict.fromkeys(sections()) if not section else {}, anywhere):
        near = nearest(last, list(table))
        if near:
            return table[near] or near
    return nearest(key, paths, cutoff=0.8)


def invalid(error: ValidationError, chosen: dict[str, str]) -> str:
    """The first thing that is wrong, as one sentence."""
    first = error.errors(include_url=False)[0]
    path = _path(first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown_key(path, first["input"], chosen)
    if first["type"] == "missing":
        return f"{path} is missing; every key needs a value (`rlvr train --cfg job` prints all keys)."
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return f"{path}.name: must be one of {', '.join(choice_models(path))}; choose with {path}=CHOICE."
    reason = f"{path}={shown(first['input'])}: {_requirement(first)}"
    near = _nearest_literal(first)
    description = _description(path)
    return reason + (f"; did you mean {near}?" if near else f" ({description})." if description else ".")


def _path(location: tuple[int | str, ...]) -> str:
    """`("algorithm", "grpo", "clip_low")` -> `algorithm.clip_low`: pydantic locates by choice, too."""
    parts = list(location)
    if len(parts) > 1 and str(parts[0]) in sections() and len(choice_models(str(parts[0]))) > 1:
        parts.pop(1)
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def _requirement(error: Any) -> str:
    kind, message, context = error["type"], error["msg"], error.get("ctx", {})
    if kind == "too_short":
        return f"needs at least {context['min_length']} item" + ("s" if context["min_length"] > 1 else "")
    if kind == "too_long":
        return f"has more than {context['max_length']} items"
    if kind == "string_type":
        return "must be text (put quotes around it: key='\"123\"')"
    if kind == "string_pattern_mismatch":
        return "must start with a letter or digit and have only letters, digits, `.`, `_` and `-`"
    if kind in ("tuple_type", "list_type"):
        return "must be a list, e.g. [1,3]"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return "must be a section with keys, not a value"
    if kind in ("int_type", "int_from_float"):
        return "must be a whole number"
    return (
        message.replace("Input should be", "must be")
        .replace("a valid boolean", "true or false")
        .replace("a valid ", "a ")
    )


def _nearest_literal(error: Any) -> str | None:
    if error["type"] != "literal_error" or not isinstance(error["input"], str):
        return None
    return nearest(
        error["input"], [word.strip("'") for word in error["ctx"]["expected"].replace(" or ", ", ").split(", ")]
    )


def _description(path: str) -> str | None:
    plain = path.partition("[")[0]
    return next((key.field.description for key in keys() if key.path == plain), None)


def chosen_names(values: dict[str, Any]) -> dict[str, str]:
    """The choice of each section in a plain, perhaps invalid, configuration: `{"algorithm": "grpo", ...}`."""
    found = {}
    for section in Config.model_fields:
        part = values.get(section)
        if isinstance(part, dict):
            found[section] = str(part.get("name", ONLY_CHOICE))
    return found
