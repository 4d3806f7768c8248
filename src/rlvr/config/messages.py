"""Sentences for wrong settings: each names the key, its value, and the remedy."""

import json
import re
from collections.abc import Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError

from rlvr.config.catalog import (
    ANY_NAME,
    ONLY_CHOICE,
    Key,
    choice_models,
    find,
    inner_models,
    keys,
    mapping_of,
    matches,
    sections,
    tag,
)
from rlvr.config.schema import Config, PartsReward, Section
from rlvr.config.spellings import Spelling, find_spelling


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
    known = find(key)
    if known is not None:
        return f"{written}: {_elsewhere(known, chosen.get(section, '?'))}"
    if (spelling := find_spelling(key)) is not None and key not in spelling.ours:
        return f"{written}: {_translated(spelling)}"
    if (mapping := mapping_of(key)) is not None:
        choice = chosen.get(section, ONLY_CHOICE)
        return f"{written}: " + (
            f"is not there yet; add it with +{key}=..." if choice in mapping.choices else _elsewhere(mapping, choice)
        )
    paths = {_named(k.path, key): k.choices for k in keys()}
    if value_key := _inside_a_value(key):
        return f"{written}: {value_key} is a value, not a section; set {value_key} itself."
    near = _nearest_key(key, [path for path, owners in paths.items() if _available(path, owners, chosen)])
    return f"{written}: there is no key {key}; " + (
        f"did you mean {near}?" if near else "`rlvr train --cfg job` prints all keys."
    )


def _available(path: str, owners: tuple[str, ...], chosen: dict[str, str]) -> bool:
    choice = chosen.get(path.partition(".")[0], ONLY_CHOICE)
    return not owners or choice in owners


def _translated(spelling: Spelling) -> str:
    if not spelling.ours:
        return f"is not a setting here; {spelling.note}."
    note = f" ({spelling.note})." if spelling.note else "."
    return f"the key is called {' and '.join(spelling.ours)} here{note}"


def foreign_key(line: str) -> str | None:
    """What to say to `reward.reward_functions[0].params.correct_reward=5.0`, which Hydra cannot even read."""
    key, _, value = line.partition("=")
    plain = re.sub(r"\[\w*\]", "", key)
    known = next((name for name in (plain, key.partition("[")[0]) if find_spelling(name) is not None), None)
    return unknown_key(known, value, {}).replace(known, key, 1) if known is not None else None


def _elsewhere(known: Key, choice: str) -> str:
    """Who has a key that the chosen section, or the chosen type of an item, lacks."""
    section = known.path.partition(".")[0]
    if choice not in known.choices:
        owners = " or ".join(f"{section}={owner}" for owner in known.choices)
        return f"{section}={choice} has no such key; {owners} has."
    if known.types and len(known.types) < 6:
        return f"this type has no such key; {' and '.join(known.types)} {'has' if len(known.types) == 1 else 'have'}."
    return f"there is no item of this name; add it with +{known.path.replace(ANY_NAME, 'NAME')}=..."


def _named(pattern: str, key: str) -> str:
    """`reward.parts.<name>.weight` with the names that stand at the same places of a user's key."""
    given = key.split(".")
    filled = [given[i] if part == ANY_NAME and i < len(given) else part for i, part in enumerate(pattern.split("."))]
    return ".".join(filled)


def _inside_a_value(key: str) -> str | None:
    parts = key.split(".")
    leaves = [k for k in keys() if not (k.path == "name" or k.path.endswith(".settings"))]
    for n in range(1, len(parts)):
        prefix = ".".join(parts[:n])
        if any(matches(leaf.path, prefix) for leaf in leaves):
            return prefix
    return None


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
        return _wrong_tag(path, first.get("ctx", {}))
    reason = f"{path}={shown(first['input'])}: {_any_of_them(first['loc']) or _requirement(first, path)}"
    near = _nearest_literal(first)
    description = _description(path)
    return reason + (f"; did you mean {near}?" if near else f" ({description})." if description else ".")


def _any_of_them(location: tuple[int | str, ...]) -> str | None:
    """What a value of several plain types must be: pydantic says of each that it is another one."""
    annotation: Any = Config
    for part in location:
        union = annotation
        annotation, is_tag = _descend(annotation, part)
        if is_tag and annotation is None:
            words = [word for kind in get_args(union) if get_origin(kind) is Literal for word in get_args(kind)]
            if words:
                return f"must be a whole number of 1 or more, or {words[0]}"
            return "must be true or false, a finite number or text"
    return None


def _path(location: tuple[int | str, ...]) -> str:
    """`("algorithm", "grpo", "clip_low")` -> `algorithm.clip_low`: pydantic locates by choice and type, too."""
    annotation: Any = Config
    text = ""
    for part in location:
        annotation, is_tag = _descend(annotation, part)
        if not is_tag:
            text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def _descend(annotation: Any, part: int | str) -> tuple[Any, bool]:
    """What lies behind one part of a location, and whether that part is the tag of a union."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, Section):
        field = annotation.model_fields.get(str(part))
        return (field.annotation if field else None), False
    if get_origin(annotation) is dict:
        return get_args(annotation)[1], False
    for model in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ():
        if isinstance(model, type) and issubclass(model, Section) and part in (tag(model, "name"), tag(model, "type")):
            return model, True
    return None, _is_union(annotation)  # of plain types, which pydantic names


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def _wrong_tag(path: str, context: Any) -> str:
    """A section without, or with an unknown, `name` or `type`."""
    discriminator = str(context["discriminator"]).strip("'")
    if discriminator == "name":
        return f"{path}.name: must be one of {_choices(path)}; choose with {path}=CHOICE."
    given = f"={context['tag']}" if "tag" in context else ""
    near = nearest(context["tag"], _tags(context)) if "tag" in context else None
    hint = f"; did you mean {near}?" if near else "."
    return f"{path}.{discriminator}{given}: must be one of {', '.join(_tags(context))}{hint}"


def _choices(path: str) -> str:
    return ", ".join(choice_models(path)) if path in sections() else "the choices of its group"


def _tags(context: Any) -> list[str]:
    expected = context.get("expected_tags")
    if expected is None:
        models = inner_models(PartsReward.model_fields["parts"].annotation)[0]
        return [name for model in models if (name := tag(model, "type"))]
    return [word.strip(" '") for word in expected.split(",")]


def _requirement(error: Any, path: str) -> str:
    kind, message, context = error["type"], error["msg"], error.get("ctx", {})
    if kind == "too_short":
        return f"needs at least {context['min_length']} item" + ("s" if context["min_length"] > 1 else "")
    if kind == "too_long":
        return f"has more than {context['max_length']} items"
    if kind == "string_type":
        return "must be text (put quotes around it: key='\"123\"')"
    if kind == "string_pattern_mismatch":
        letters = "must start with a letter or digit and have only letters, digits, `.`, `_` and `-`"
        if context["pattern"] == "^https?://":
            return "must begin with http:// or https://"
        return letters if path == "name" else "is not of the right form"
    if kind == "string_too_short":
        return "must not be empty"
    if kind in ("tuple_type", "list_type"):
        return f"must be a list, e.g. [{error['input'] if isinstance(error['input'], str) else '1,3'}]"
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
    key = find(path.partition("[")[0])
    return key.field.description if key else None


def chosen_names(values: dict[str, Any]) -> dict[str, str]:
    """The choice of each section in a plain, perhaps invalid, configuration: `{"algorithm": "grpo", ...}`."""
    found = {}
    for section in Config.model_fields:
        part = values.get(section)
        if isinstance(part, dict):
            found[section] = str(part.get("name", ONLY_CHOICE))
    return found
