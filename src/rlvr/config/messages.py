"""Sentences for wrong settings: each names the key, its value, and the remedy. All that is wrong is said at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from rlvr import registry
from rlvr.config.config import CHOICES, SECTIONS, Config
from rlvr.config.keys import all_keys, inner, matches, owners
from rlvr.config.spellings import find_spelling, translated
from rlvr.errors import nearest


def shown(value: Any) -> str:
    """A value as a user would write it: `null`, `true`, `[1,2]`, `grpo`; cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    return text if len(text) <= 200 else f"{text[:200]}..."


def invalid(error: ValidationError, chosen: Mapping[str, str]) -> str:
    """All that is wrong, a sentence each; `chosen` is the choice of each section."""
    found = list(dict.fromkeys(_sentences(error.errors(), Config, "", chosen)))
    return found[0] if len(found) == 1 else f"{len(found)} settings are wrong. " + " ".join(found)


def _sentences(errors: Sequence[Any], settings: type[Any], prefix: str, chosen: Mapping[str, str]) -> Iterator[str]:
    """pydantic's errors, those inside of chosen components too, located by the keys that users write."""
    located: dict[str, list[Any]] = {}
    for error in errors:  # a union says of each of its types that the value is another one
        located.setdefault(_path(error["loc"], settings, prefix)[0], []).append(error)
    for path, alike in located.items():
        error, context = alike[0], alike[0].get("ctx", {})
        inside = [one for one in errors if one["loc"][:-1] == error["loc"]]
        if error["type"] == "too_short" and inside:
            continue  # pydantic counts the right items only
        if error["type"] == "inside":
            yield from _sentences(context["errors"], context["model"], f"{path}.", chosen)
        elif error["type"] == "no_component":
            yield f"{path}.{context['sentence']}"
        elif error["type"] == "wrong":
            for one in alike:
                key, values = one["ctx"]["key"], one["input"]
                value = values.get(key) if isinstance(values, Mapping) else getattr(values, key, None)
                yield f"{path}{'.' if path else ''}{key}={shown(value)}: {one['ctx']['remedy']}."
        elif error["type"] == "extra_forbidden":
            near = nearest(str(error["loc"][0]), settings.model_fields) if len(error["loc"]) == 1 else None
            value = error["input"]
            while isinstance(value, Mapping) and value:  # a section that there is not: `train.weight_decay`
                name, value = next(iter(value.items()))
                path = f"{path}.{name}"
            yield unknown_key(path, value, chosen, near and f"{prefix}{near}")
        elif error["type"] == "missing":
            yield f"{path}: has no default; say {path}=..."
        elif error["type"] == "no_choice":
            yield _no_choice(path, error["input"], **context)
        else:
            field = _path(error["loc"], settings, prefix)[1]
            yield f"{path}={_quoted(error)}: {_requirement(path, alike, field)}"


def _quoted(error: Any) -> str:
    """The value; a text that looks like the number it should be in quotes, as it was written."""
    if isinstance(error["input"], str) and error["type"] in ("int_type", "float_type", "bool_type"):
        with suppress(ValueError):
            json.loads(error["input"])
            return f'"{error["input"]}"'
    return shown(error["input"])


def _no_choice(path: str, value: Any, group: str, tag: str) -> str:
    if isinstance(value, Mapping) and (near := nearest(tag, value)):
        return f"{path}.{near}={shown(value[near])}: there is no such key; did you mean {path}.{tag}?"
    how = f"choose with {path}=CHOICE" if path in CHOICES else f"say {path}.{tag}={tag.upper()}"
    return f"{path}.{tag}: must be one of {', '.join(registry.names(group))}; {how}."


def _path(location: Sequence[int | str], settings: type[Any] | None, prefix: str) -> tuple[str, Any]:
    """`("lora", "r")` -> `model.lora.r` and its field; what pydantic adds for the types of a union is left out."""
    text, field, is_mapping = prefix.rstrip("."), None, False
    for part in location:
        if settings is None and field is not None and not is_mapping and not isinstance(part, int):
            continue  # the name of a type in a union
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
        if is_mapping:
            is_mapping = False
        elif settings is not None:
            field = settings.model_fields.get(str(part))
            settings, is_mapping = inner(field.annotation) if field is not None else (None, False)
            is_mapping = is_mapping or (field is not None and settings is None and "Mapping" in str(field.annotation))
    return text, field


REQUIREMENTS = {
    "string_type": "must be text (put quotes around it: key='\"123\"')",
    "string_too_short": "must not be empty",
    **dict.fromkeys(
        ("model_type", "model_attributes_type", "dict_type", "mapping_type"), "must be a section with keys, not a value"
    ),
    **dict.fromkeys(("int_type", "int_from_float"), "must be a whole number"),
}


def _requirement(path: str, alike: Sequence[Any], field: Any) -> str:
    """What the value must be, from the errors that pydantic has for each type that it may have."""
    error, context = alike[0], alike[0].get("ctx", {})
    kind, value = error["type"], error["input"]
    if kind == "literal_error" and isinstance(value, str) and len(alike) == 1:
        options = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        if near := nearest(value, options):
            return f"must be {context['expected']}; did you mean {near}?"
    if len(alike) > 1:
        text = _one_of(alike)
    elif kind in ("too_short", "too_long"):
        limit = context["min_length"] if kind == "too_short" else context["max_length"]
        text = f"needs {'at least' if kind == 'too_short' else 'at most'} {limit} item" + "s" * (limit > 1)
    elif kind == "string_pattern_mismatch" and context["pattern"] == "^https?://":
        text = "must begin with http:// or https://"
    elif kind == "string_pattern_mismatch" and path == "name":
        text = "must start with a letter or digit and have only letters, digits, `.`, `_` and `-`"
    elif kind == "string_pattern_mismatch":
        text = "is not of the right form"
    elif kind in ("tuple_type", "list_type"):
        text = f"must be a list, e.g. [{value if isinstance(value, str) else '1,3'}]"
    else:
        text = error["msg"].replace("Input should be", "must be").replace("a valid boolean", "true or false")
        text = REQUIREMENTS.get(kind) or text.replace("a valid ", "a ")
    return f"{text} ({field.description})." if field is not None and field.description else f"{text}."


def _one_of(alike: Sequence[Any]) -> str:
    words = [error["ctx"]["expected"].strip("'") for error in alike if error["type"] == "literal_error"]
    kinds = " ".join(str(error["loc"][-1]) for error in alike)
    if words:
        return f"must be a positive {'whole' if 'int' in kinds else 'finite'} number or {words[0]}"
    if "bool" in kinds:
        return "must be true or false, a finite number or text"
    return "must be a whole number or a share between 0 and 1"


def unknown_key(key: str, value: object, chosen: Mapping[str, str], near: str | None = None) -> str:
    """What is wrong with a key that there is not. `chosen`: the choice of each section; `near`: a key like it."""
    written = f"{key}={shown(value)}"
    section, _, rest = key.partition(".")
    if have := owners(section, rest):
        choice = chosen.get(section, "?")
        return f"{written}: {section}={choice} has no such key; {' or '.join(f'{section}={one}' for one in have)} has."
    if section == "reward" and rest.count(".") == 2 and rest.startswith("parts."):
        return _unknown_part_key(written, key, near)
    spelling = find_spelling(key)
    if spelling is not None and key not in spelling.ours:
        return f"{written}: {translated(spelling)}"
    known = list(all_keys(chosen))
    parents = (key[:place] for place, sign in enumerate(key) if sign == ".")
    leaf = next((k for k in parents if k != "reward.parts" and any(matches(one, k) for one in known)), None)
    if leaf is not None:
        return f"{written}: {leaf} is a value, not a section; set {leaf} itself."
    near = _nearest_key(key, known) or near
    return f"{written}: there is no key {key}; " + (
        f"did you mean {near}?" if near else "`rlvr train --help-config` prints all keys."
    )


def _unknown_part_key(written: str, key: str, near: str | None) -> str:
    """A key that the type of a reward's part does not have: some types may."""
    part, _, last = key.rpartition(".")
    fields = {name: component.model_fields for name, component in registry.every("reward").items()}
    have = [name for name, known in fields.items() if last in known]
    if 0 < len(have) < len(fields):
        return f"{written}: this type has no such key; {' and '.join(have)} {'has' if len(have) == 1 else 'have'}."
    others = {key for known in fields.values() for key in known}
    near = near or ((found := nearest(last, sorted({"type", *others}))) and f"{part}.{found}")
    return f"{written}: there is no such key; " + (
        f"did you mean {near}?" if near else "`rlvr train --help-config reward.parts=TYPE` prints those of a type."
    )


def _nearest_key(key: str, known: Sequence[str]) -> str | None:
    """The nearest key of the nearest section; for a key without section the nearest anywhere."""
    section, _, rest = key.partition(".")
    if not rest:
        anywhere = {path.rpartition(".")[2]: path for path in reversed(known)}
        near = nearest(key, [*SECTIONS, *anywhere])
        return anywhere.get(near, near) if near else None
    home = section if section in SECTIONS else nearest(section, SECTIONS)
    inside = [path for path in known if path.startswith(f"{home}.")]
    by_last = {path.rpartition(".")[2]: path for path in reversed(inside)}
    last = nearest(rest.rpartition(".")[2], list(by_last), cutoff=0.7)
    return by_last[last] if last else None
