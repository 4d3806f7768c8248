"""Sentences for wrong settings: each names the key, its value, and the remedy. All that is wrong is said at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rlvr import registry
from rlvr.config.config import CHOICES, SECTIONS, Config
from rlvr.config.keys import all_keys, inner, matches, owners
from rlvr.config.spellings import find_spelling, translated
from rlvr.errors import nearest


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong: `Problem(path="trainer.max_step", value=5, kind="extra_forbidden")`."""

    path: str
    value: Any
    kind: str
    message: str = ""
    context: Mapping[str, Any]
    description: str = ""
    near: str | None = None  # the nearest key of the component that has no such key


def shown(value: Any) -> str:
    """A value as a user would write it: `null`, `true`, `[1,2]`, `grpo`; cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    return text if len(text) <= 200 else f"{text[:200]}..."


def invalid(error: ValidationError, chosen: Mapping[str, str]) -> str:
    """All that is wrong, a sentence each; `chosen` is the choice of each section."""
    found = list(dict.fromkeys(sentence(problem, chosen) for problem in problems(error.errors(), Config)))
    return found[0] if len(found) == 1 else f"{len(found)} settings are wrong. " + " ".join(found)


def problems(errors: Sequence[Any], settings: type[Any], prefix: str = "") -> Iterator[Problem]:
    """pydantic's errors, those inside of chosen components too, located by the keys that users write."""
    seen: set[str] = set()
    for error in errors:
        inside = [one["loc"] for one in errors if one["loc"][:-1] == error["loc"]]
        if error["type"] == "too_short" and inside:
            continue  # pydantic counts the right items only
        path, field = _path(error["loc"], settings, prefix)
        context = error.get("ctx", {})
        if error["type"] == "inside":
            yield from problems(context["errors"], context["model"], f"{path}.")
        elif error["type"] == "no_component":
            yield Problem(path=path, value=None, kind="no_component", context=context)
        elif error["type"] == "wrong":
            key = f"{path}.{context['key']}" if path else context["key"]
            yield Problem(
                path=key, value=_value(error["input"], context["key"]), kind="wrong", context=context,
                message=context["remedy"],
            )  # fmt: skip
        elif path not in seen:  # a union says of each of its types that the value is another one
            seen.add(path)
            description = field.description if field is not None else ""
            known = settings.model_fields if error["type"] == "extra_forbidden" and len(error["loc"]) == 1 else ()
            near = nearest(str(error["loc"][0]), known) if known else None
            several = _several([one for one in errors if _path(one["loc"], settings, prefix)[0] == path])
            yield Problem(
                path=path, value=error["input"], kind="several" if several else error["type"], context=context,
                message=several or error["msg"], description=description or "",
                near=near and f"{prefix}{near}",
            )  # fmt: skip


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


def _several(alike: Sequence[Any]) -> str:
    """What a value of several types must be, from the errors that pydantic has for each of them; one: nothing."""
    words = [error["ctx"]["expected"].strip("'") for error in alike if error["type"] == "literal_error"]
    if len(alike) < 2:
        return ""
    if words:
        whole = any("int" in str(error["loc"][-1]) for error in alike)
        return f"must be a positive {'whole' if whole else 'finite'} number or {words[0]}"
    if any("bool" in str(error["loc"][-1]) for error in alike):
        return "must be true or false, a finite number or text"
    return "must be a whole number or a share between 0 and 1"


def _value(values: Any, key: str) -> Any:
    return values.get(key) if isinstance(values, Mapping) else getattr(values, key, None)


def sentence(problem: Problem, chosen: Mapping[str, str]) -> str:
    """One problem in words."""
    path, written = problem.path, f"{problem.path}={shown(problem.value)}"
    if problem.kind == "extra_forbidden":
        value = problem.value
        while isinstance(value, Mapping) and value:  # a section that there is not: `train.weight_decay`
            name, value = next(iter(value.items()))
            path = f"{path}.{name}"
        return unknown_key(path, value, chosen, problem.near)
    if problem.kind == "missing":
        return f"{path}: has no default; say {path}=..."
    if problem.kind == "no_choice":
        group, tag = problem.context["group"], problem.context["tag"]
        how = f"choose with {path}=CHOICE" if path in CHOICES else f"say {path}.{tag}={tag.upper()}"
        return f"{path}.{tag}: must be one of {', '.join(registry.names(group))}; {how}."
    if problem.kind == "no_component":
        return f"{path}.{problem.context['sentence']}"
    if problem.kind == "wrong":
        return f"{written}: {problem.message}."
    if problem.kind == "literal_error" and isinstance(problem.value, str):
        options = [w.strip("'") for w in problem.context["expected"].replace(" or ", ", ").split(", ")]
        if near := nearest(problem.value, options):
            return f"{written}: {_requirement(problem)}; did you mean {near}?"
    return f"{written}: {_requirement(problem)}" + (f" ({problem.description})." if problem.description else ".")


def _requirement(problem: Problem) -> str:
    kind, context = problem.kind, problem.context
    if kind in ("too_short", "too_long"):
        limit = context["min_length"] if kind == "too_short" else context["max_length"]
        return f"needs {'at least' if kind == 'too_short' else 'at most'} {limit} item" + "s" * (limit > 1)
    if kind == "string_pattern_mismatch":
        if context["pattern"] == "^https?://":
            return "must begin with http:// or https://"
        if problem.path == "name":
            return "must start with a letter or digit and have only letters, digits, `.`, `_` and `-`"
        return "is not of the right form"
    if kind in ("tuple_type", "list_type"):
        return f"must be a list, e.g. [{problem.value if isinstance(problem.value, str) else '1,3'}]"
    plain = {
        "string_type": "must be text (put quotes around it: key='\"123\"')",
        "string_too_short": "must not be empty",
        "model_type": "must be a section with keys, not a value",
        "model_attributes_type": "must be a section with keys, not a value",
        "dict_type": "must be a section with keys, not a value",
        "mapping_type": "must be a section with keys, not a value",
        "int_type": "must be a whole number",
        "int_from_float": "must be a whole number",
        "several": problem.message,
    }
    said = problem.message.replace("Input should be", "must be").replace("a valid boolean", "true or false")
    return plain.get(kind) or said.replace("a valid ", "a ")


def unknown_key(key: str, value: object, chosen: Mapping[str, str], near: str | None = None) -> str:
    """What is wrong with a key that there is not. `chosen`: the choice of each section; `near`: a key like it."""
    written = f"{key}={shown(value)}"
    section, _, rest = key.partition(".")
    if have := owners(section, rest):
        choice = chosen.get(section, "?")
        return f"{written}: {section}={choice} has no such key; {' or '.join(f'{section}={one}' for one in have)} has."
    if section == "reward" and rest.count(".") == 2 and rest.startswith("parts."):
        return _unknown_part_key(written, rest.rpartition(".")[2], near)
    spelling = find_spelling(key)
    if spelling is not None and key not in spelling.ours:
        return f"{written}: {translated(spelling)}"
    known = list(all_keys(chosen))
    leaf = next((k for k in _prefixes(key) if k != "reward.parts" and any(matches(one, k) for one in known)), None)
    if leaf is not None:
        return f"{written}: {leaf} is a value, not a section; set {leaf} itself."
    near = _nearest_key(key, known) or near
    return f"{written}: there is no key {key}; " + (
        f"did you mean {near}?" if near else "`rlvr train --help-config` prints all keys."
    )


def _unknown_part_key(written: str, last: str, near: str | None) -> str:
    """A key that the type of a reward's part does not have: some types may."""
    fields = {name: part.model_fields for name, part in registry.every("reward").items()}
    have = [name for name, known in fields.items() if last in known]
    if 0 < len(have) < len(fields):
        return f"{written}: this type has no such key; {' and '.join(have)} {'has' if len(have) == 1 else 'have'}."
    near = near or nearest(last, sorted({key for known in fields.values() for key in known}))
    return f"{written}: there is no such key; " + (
        f"did you mean {near}?" if near else "`rlvr train --help-config reward.parts=TYPE` prints those of a type."
    )


def _prefixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


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
