"""Messages for wrong settings: each names key, value and remedy. All errors are reported at once."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from rlvr import registry
from rlvr.config.config import CHOICES, SECTIONS, Config, all_keys, inner, owners
from rlvr.errors import nearest
from rlvr.printable import cut


@dataclass(frozen=True, kw_only=True)
class ForeignKey:
    """A foreign key: `theirs` is a last component or a dotted key, `ours` are rlvr's keys, `note` says how they
    differ."""

    project: str
    theirs: str
    ours: tuple[str, ...]
    note: str
    inside: bool  # applies to every key inside `theirs`

    @property
    def translated(self) -> str:
        """The message for a user of the foreign key."""
        if not self.ours:
            return f"is not a setting here; {self.note}."
        return f"the key is called {' and '.join(self.ours)} here{f' ({self.note})' if self.note else ''}."


@cache
def spellings() -> tuple[ForeignKey, ...]:
    """All spellings in table order (`# ` starts a project); specific ones first."""
    keys, project = [], ""
    for line in (Path(__file__).parent / "spellings.tsv").read_text(encoding="utf-8").splitlines():
        theirs, ours, note = [*line.split("\t"), "", ""][:3]
        if line.startswith("#"):
            project = line.removeprefix("# ")
        else:
            one = {"theirs": theirs.rstrip("*"), "ours": tuple(ours.split()), "inside": theirs.endswith("*")}
            keys.append(ForeignKey(project=project, note=note, **one))
    return tuple(keys)


def find_spelling(key: str) -> ForeignKey | None:
    """The entry for a whole foreign key, its last component, or its parent."""
    table = {one.theirs: one for one in reversed(spellings())}
    parts = key.split(".")
    tails = [".".join(parts[start:]) for start in range(len(parts))]
    found = next((table[tail] for tail in tails if tail in table), None)
    return found or next((table[part] for part in parts if part in table and table[part].inside), None)


def as_written(value: Any) -> str:
    """A value as a user would write it: `null`, `true`, `[1,2]`, `grpo`; long ones are cut."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    return cut(text, 200)


def invalid(error: ValidationError, chosen: Mapping[str, str], of: type[Any] = Config, prefix: str = "") -> str:
    """All errors of a class, one sentence each; `chosen` is the choice of each section, `prefix` begins the keys."""
    found = list(dict.fromkeys(_sentences(error.errors(), of, prefix, chosen)))
    return found[0] if len(found) == 1 else f"{len(found)} settings are wrong. " + " ".join(found)


def _sentences(errors: Sequence[Any], settings: type[Any], prefix: str, chosen: Mapping[str, str]) -> Iterator[str]:
    """pydantic's errors, including those inside components, located by the keys that users write."""
    located: dict[str, list[Any]] = {}
    for error in errors:  # a union reports an error per type
        located.setdefault(_located(error["loc"], settings, prefix)[0], []).append(error)
    for path, alike in located.items():
        error, context, value = alike[0], alike[0].get("ctx", {}), alike[0]["input"]
        if error["type"] == "inside":
            yield from _sentences(context["errors"], context["model"], f"{path}.", chosen)
        elif error["type"] == "no_component":
            yield f"{path}.{context['sentence']}"
        elif error["type"] == "wrong":
            for problem in alike:
                key, values = problem["ctx"]["key"], problem["input"]
                found = values.get(key) if isinstance(values, Mapping) else getattr(values, key, None)
                yield f"{path}{'.' if path else ''}{key}={as_written(found)}: {problem['ctx']['remedy']}."
        elif error["type"] == "extra_forbidden":
            near = nearest(str(error["loc"][0]), settings.model_fields) if len(error["loc"]) == 1 else None
            while isinstance(value, Mapping) and value:  # an unknown section: `train.weight_decay`
                name, value = next(iter(value.items()))
                path = f"{path}.{name}"
            yield unknown_key(path, value, chosen, near and f"{prefix}{near}")
        elif error["type"] == "missing":
            yield f"{path}: has no default; say {path}=..."
        elif error["type"] == "no_choice":
            yield _no_choice(path, value, **context)
        elif error["type"] != "too_short" or not any(problem["loc"][:-1] == error["loc"] for problem in errors):
            # for a list with wrong items, pydantic counts only the right ones
            field = _located(error["loc"], settings, prefix)[1]
            meaning = f" ({field.description})" if field is not None and field.description else ""
            needs = " or ".join(map(_requirement, alike)).replace(" or be ", " or ")
            yield f"{path}={_quoted(value) if error['type'] in QUOTED else as_written(value)}: must {needs}{meaning}."


def _no_choice(path: str, value: Any, group: str, tag: str) -> str:
    if isinstance(value, Mapping) and (near := nearest(tag, value)):
        return f"{path}.{near}={as_written(value[near])}: there is no such key; did you mean {path}.{tag}?"
    how = f"choose with {path}=CHOICE" if path in CHOICES else f"say {path}.{tag}=..."
    return f"{path}.{tag}: must be one of {', '.join(registry.names(group))}; {how}."


def _located(location: Sequence[int | str], settings: type[Any] | None, prefix: str) -> tuple[str, FieldInfo | None]:
    """`("lora", "r")` -> `model.lora.r` and its field, without pydantic's union type names."""
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
    "string_type": "be text in quotes, key='\"123\"'",
    "string_too_short": "not be empty",
    "bool_type": "be true or false",
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type", "mapping_type"), "be a section with keys"),
    **dict.fromkeys(("int_type", "int_from_float"), "be a whole number"),
    **dict.fromkeys(("tuple_type", "list_type"), "be a list, e.g. [1,3]"),
}


QUOTED = ("int_type", "float_type", "bool_type")


def _quoted(value: Any) -> str:
    """As `as_written`, but text that looks like a number keeps its quotes: `"3"`."""
    with suppress(ValueError, TypeError):
        json.loads(value)
        return f'"{value}"'
    return as_written(value)


def _requirement(error: Any) -> str:
    """The requirement of one of the value's types."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return "begin with http:// or https://" if context["pattern"] == "^https?://" else "have the right form"
    if kind in ("too_short", "too_long"):
        limit = context["min_length"] if kind == "too_short" else context["max_length"]
        return f"have at {'least' if kind == 'too_short' else 'most'} {limit} item{'s' * (limit > 1)}"
    if kind == "literal_error":
        options = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        near = nearest(str(error["input"]), options)
        return f"be {context['expected']}" + (f"; did you mean {near}?" if near else "")
    return REQUIREMENTS.get(kind) or error["msg"].replace("Input should ", "").replace("a valid ", "a ")


def unknown_key(key: str, value: object, chosen: Mapping[str, str], near: str | None = None) -> str:
    """The message for an unknown key. `chosen`: the choice of each section; `near`: a similar key."""
    written = f"{key}={as_written(value)}"
    section = key.partition(".")[0]
    if have := owners(key):
        choice = "this type" if section == "reward" else f"{section}={chosen.get(section, '?')}"
        return f"{written}: {choice} has no such key; {' or '.join(have)} has."
    spelling = find_spelling(key)
    if spelling is not None and key not in spelling.ours:
        return f"{written}: {spelling.translated}"
    if key.startswith("reward.parts."):
        part, _, last = key.rpartition(".")
        fields = {name for one in registry.every("reward").values() for name in one.model_fields}
        near = near or ((found := nearest(last, sorted({"type", *fields}))) and f"{part}.{found}")
    near = _nearest_key(key, list(all_keys(chosen))) or near
    return f"{written}: there is no key {key}; " + (
        f"did you mean {near}?" if near else "`rlvr train --help-config` prints all keys."
    )


def _nearest_key(key: str, known: Sequence[str]) -> str | None:
    """The nearest key of the nearest section; for a key without section the nearest of all."""
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
