"""Help for every key: `rlvr train --help-config [KEY]`; `python -m rlvr.commands.train.help` writes the page."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from rlvr import imports, registry
from rlvr.conditions import condition
from rlvr.config.config import ANY_NAME, CHOICES, SECTIONS, Config, inner, keys, matches
from rlvr.config.messages import as_written, spellings
from rlvr.errors import ConfigError, nearest
from rlvr.search.settings import SECTION as SWEEP
from rlvr.search.settings import SweepSettings
from rlvr.settings import Component, Settings, label_of, plain
from rlvr.usual import usual_of

SHOWN = (*SECTIONS, SWEEP)
CONF = Path(__file__).parents[2] / "conf"
REWARD_PARTS = "reward.parts"
NAMED = {group: (group, group) for group in CHOICES} | {
    REWARD_PARTS: ("reward", f"{REWARD_PARTS}.{ANY_NAME}"),
    "tracker.report_to": ("tracker", "tracker.{label}"),
    "task.retriever": ("retriever", "task.retrieval.own"),
}
"""Keys that name a component -> its group, and the prefix of its settings."""


def help_lines(key: str, config_dir: str | None = None) -> str:
    """Type, default, bounds and description of a key, of the keys of a section or choice (`algorithm=ppo`,
    `task=my_shop:Shop`, `reward.parts=numeric`, `tracker.report_to=my_tracker:Csv`), or of all sections. ConfigError
    for an unknown key."""
    imports.look_in(config_dir)
    place, equals, choice = key.partition("=")
    if not key:
        return "\n\n".join([_lines(_top()), *(_section_help(name) for name in SHOWN)])
    if equals:
        if place not in NAMED:
            raise ConfigError(f"--help-config {key}: there are choices of {', '.join(NAMED)}.")
        (group, prefix), name = NAMED[place], choice.strip("[]")
        component = registry.find(group, name)
        return f"{key}: {_doc(component)}\n\n{_lines(_rows(component, prefix.format(label=label_of(name))))}"
    if key in SHOWN:
        return _section_help(key)
    rows = [*_top(), *_all_rows()]
    matching = [row for row in rows if row[0].startswith(f"{key}.") or matches(row[0], key)]
    if not matching:
        near = nearest(key, [row[0] for row in rows])
        raise ConfigError(f"--help-config {key}: there is no such key{f'; did you mean {near}?' if near else '.'}")
    return _lines(dict.fromkeys(matching))


Line = tuple[str, str, str, str]
"""Key, type, default, description."""


def _base(section: str) -> type[Settings]:
    if section == SWEEP:
        return SweepSettings
    base = inner(Config.model_fields[section].annotation)[0]
    assert base is not None
    return base


def _section_help(section: str) -> str:
    base = _base(section)
    lines = [f"{section}: {_doc(base)}"]
    if section in CHOICES:
        choices = _choices(section, registry.every)
        lines += ["", f"choose with {section}=", *(f"  {name:<20} {doc}" for name, doc in choices)]
    lines += ["", _lines(_rows(base, section))]
    if section == "reward":
        lines += ["", f"types of {REWARD_PARTS}.{ANY_NAME} (--help-config {REWARD_PARTS}=TYPE):"]
        lines += [f"  {name:<20} {doc}" for name, doc in _docs(registry.every(section))]
    return "\n".join(lines)


Find = Callable[[str], Mapping[str, Any]]
"""The components of a group: `registry.every`, or for the page `registry.ours`, whatever is installed beside."""


def _choices(section: str, find: Find) -> list[tuple[str, str]]:
    """The choices of a section with their descriptions."""
    if section == "reward":
        return [(file.stem, _comment(file)) for file in sorted((CONF / section).glob("*.yaml"))]
    return _docs(find(section)) if section in CHOICES else []


def _docs(components: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, _doc(one)) for name, one in components.items()]


def _lines(rows: Iterable[Line]) -> str:
    lines = []
    for path, kind, usual, text in rows:
        lines.append(f"{path}   {kind}   {'default: ' + usual if usual else 'no default'}")
        lines.append(fill(text, 110, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(lines)


def _top() -> list[Line]:
    return [_row(name, field) for name, field in Config.model_fields.items() if inner(field.annotation)[0] is None]


def _rows(settings: type[Settings], prefix: str) -> list[Line]:
    found = [(path, field, inner(field.annotation)[0]) for path, field in keys(settings, f"{prefix}.")]
    return [_row(path, field) for path, field, kind in found if kind is None or not issubclass(kind, Component)]


def _all_rows() -> Iterator[Line]:
    for section in SHOWN:
        yield from _rows(_base(section), section)
        yield from (row for _, row in _of_choices(section, registry.every))


def _of_choices(section: str, find: Find) -> Iterator[tuple[str, Line]]:
    """Names of a section's choices, each with its keys."""
    prefix = f"{REWARD_PARTS}.{ANY_NAME}" if section == "reward" else section
    for name, one in find(section).items() if section in CHOICES else ():
        yield from ((name, row) for row in _rows(one, prefix))


def _row(path: str, field: FieldInfo) -> Line:
    extra = field.json_schema_extra
    only_if = str(extra.get("only_if") or "") if isinstance(extra, dict) else ""
    usual = "" if field.is_required() else as_written(plain(field.get_default(call_default_factory=True)))
    note = f" Only with {condition(only_if).words(path.rpartition('.')[0])}." if only_if else ""
    note += f" Usual: {usual_range.words}." if (usual_range := usual_of(field)) else ""
    return path, _type(field.annotation, field.metadata), usual, f"{field.description or ''}{'.' if note else ''}{note}"


def _doc(settings: type[Any]) -> str:
    return " ".join((settings.__doc__ or "").partition("\n\n")[0].split())


def _comment(file: Path) -> str:
    return " ".join(line[2:] for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("# "))


def _type(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """A type as text: `int >= 1 or null`, `chain | tree`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        more = [m for extra in arguments[1:] for m in (extra.metadata if isinstance(extra, FieldInfo) else [extra])]
        return _type(arguments[0], [*more, *metadata])
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (Union, UnionType):
        return " or ".join("null" if one is NoneType else _type(one) for one in arguments) + _bounds(metadata)
    if origin is tuple:
        inside = f"{_type(arguments[0])}, ..." if Ellipsis in arguments else ", ".join(map(_type, arguments))
        return f"[{inside}]" + _bounds(metadata)
    if origin is not None:
        return f"mapping of {_type(arguments[-1])}"
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return "section"
    return {bool: "true or false", int: "int", float: "number", str: "text"}.get(annotation, "value") + _bounds(
        metadata
    )


SIGNS = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<"}


def _bounds(metadata: Iterable[Any]) -> str:
    words = []
    for bound in metadata:
        if sign := SIGNS.get(type(bound)):
            words.append(f"{sign} {getattr(bound, type(bound).__name__.lower())}")
        if isinstance(bound, MinLen):
            words.append("not empty" if bound.min_length == 1 else f"at least {bound.min_length}")
    return " " + ", ".join(words) if words else ""


# ---------------------------------------------------------------------------------------------------------- the page


def page() -> str:
    """docs/configuration.md."""
    introduction = (CONF / "configuration.md").read_text(encoding="utf-8")
    parts = [introduction, "## Configurations\n"]
    parts += [f"- `{file.stem}`: {_comment(file)}" for file in sorted(CONF.glob("*.yaml"))]
    parts += ["", "## Top level\n", *_table(_top())]
    for section in SHOWN:
        base = _base(section)
        parts += [f"\n## `{section}`\n", f"{_doc(base)}\n"]
        parts += [f"- `{section}={name}`: {doc}" for name, doc in _choices(section, registry.ours)]
        common = _rows(base, section)
        parts += ["", *_table(common)] if common else []
        if section == "reward":
            parts += [f"\nTypes of `{REWARD_PARTS}.{ANY_NAME}`:\n"]
            parts += [f"- `type: {name}`: {doc}" for name, doc in _docs(registry.ours(section))]
        parts += _own_tables(section, common)
    project = ""
    for one in spellings():
        if one.project != project:
            project = one.project
            parts += [f"\n## Their key -> ours: {project}\n", "| theirs | ours | note |", "|---|---|---|"]
        parts.append(f"| `{one.theirs}` | {', '.join(f'`{key}`' for key in one.ours) or 'none'} | {one.note} |")
    return "\n".join(parts) + "\n"


def _own_tables(section: str, common: Sequence[Line]) -> Iterator[str]:
    """The keys and defaults that only some choices have: of tasks a table each (one for those with the same keys), of
    other sections one table."""
    of_choice: dict[str, list[Line]] = {}
    for name, row in _of_choices(section, registry.ours):
        if row not in common:
            of_choice.setdefault(name, []).append(row)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, rows in of_choice.items():
        keys_of = tuple(path for path, *_ in rows) if section == "task" else ()
        groups.setdefault(keys_of, []).append(name)
    for names in groups.values():
        own: dict[Line, list[str]] = {}
        for name in names:
            for row in of_choice[name]:
                own.setdefault(row, []).append(name)
        if section == "task":
            yield "\n### " + ", ".join(f"`task={name}`" for name in names) + "\n"
        else:
            yield "\nKeys and defaults of some choices alone:\n"
        yield from _table(own, of=own if len(names) > 1 else None)


def _table(rows: Iterable[Line], of: Mapping[Line, Sequence[str]] | None = None) -> list[str]:
    """Markdown rows; `of`: the choices that have a row."""
    head = ["key", *(["of"] if of else []), "type", "default", "what it does"]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        path, kind, usual, text = row
        usual = "must be given" if not usual else "long" if len(usual) > 60 else f"`{usual}`"
        lines.append([f"`{path}`", *([", ".join(of[row])] if of else []), kind, usual, text])
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


if __name__ == "__main__":
    print(page(), end="")
