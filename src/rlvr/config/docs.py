"""`docs/configuration.md`, generated: `python -m rlvr.config.docs > docs/configuration.md`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from omegaconf import OmegaConf
from pydantic.fields import FieldInfo

from rlvr.config.catalog import ANY_NAME, Key, choice_models, inner_models, keys, sections, tag
from rlvr.config.messages import shown
from rlvr.config.schema import Section, TaskBundle
from rlvr.config.spellings import HYDRA_SPELLINGS, MUSIQUE_SPELLINGS, OTHER_SPELLINGS, RPN_SPELLINGS, Spelling

CONF = Path(__file__).parents[1] / "conf"
_ABSENT = object()

INTRODUCTION = """# Configuration

<!-- Generated from the schema and the YAML files by `python -m rlvr.config.docs > docs/configuration.md`. -->

```
rlvr train                                             the configuration `rpn`
rlvr train --config-name rpn_ppo                       another one
rlvr train algorithm=dapo trainer.max_steps=60         another choice of a group, another value
rlvr train --cfg job algorithm=dapo                    print the resolved configuration and stop
rlvr train --multirun seed=1..10 algorithm=grpo,rloo   every combination, one run after another
```

`rlvr train` composes its configuration with [Hydra](https://hydra.cc) from the YAML files in `src/rlvr/conf` and checks
it against a typed schema before anything is loaded. An unknown key, a value of the wrong type or out of range, and a
value that would have no effect are errors (exit status 2) that name the key, the value and the remedy. The defaults
below are those of the groups; the configurations change some of them.

**Your own files.** `--config-dir DIR` adds a folder: `DIR/my_run.yaml` is found by `--config-name my_run`,
`DIR/algorithm/mine.yaml` by `algorithm=mine`. A configuration of your own usually starts from one of ours:

```yaml
# my_run.yaml
defaults:
  - rpn
  - override algorithm: dapo
  - _self_

name: my_run
trainer:
  max_steps: 100
```

**Repeating a run.** A run folder holds its resolved `config.yaml`; `rlvr train --config-dir RUN --config-name config`
repeats the run. Values can be overridden, choices of groups cannot: they are resolved already.

**Sweeps.** `--multirun` takes Hydra's `a=1,2`, `a=choice(1,2)`, `a=range(1,11)`, and `a=1..10`, which includes 10. All
configurations are checked first; each run gets a folder of its own under `run_dir`; the exit status is 1 if one failed.
"""


def main() -> None:
    """Print the page."""
    print(page(), end="")


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## Configurations\n", *_preset_lines(), "", *_top_level()]
    for section in sections():
        parts += _section(section)
    parts += ["## Their key -> ours\n", "Every parameter of the RPN specification:\n", *_spelling_table(RPN_SPELLINGS)]
    parts += ["", "Every key of the Hydra pipeline's specification:\n", *_spelling_table(HYDRA_SPELLINGS)]
    parts += ["", "Options of the MuSiQue project's commands, as keys:\n", *_spelling_table(MUSIQUE_SPELLINGS)]
    parts += [
        "",
        "Words of other projects; using one is an error that names ours:\n",
        *_spelling_table(OTHER_SPELLINGS),
    ]
    return "\n".join(parts) + "\n"


def _preset_lines() -> list[str]:
    lines = []
    for file in sorted(CONF.glob("*.yaml")):
        comment = [line[2:] for line in file.read_text().splitlines() if line.startswith("# ")]
        lines.append(f"- `{file.stem}`: {' '.join(comment)}")
    return lines


def _top_level() -> list[str]:
    defaults = OmegaConf.to_container(OmegaConf.load(CONF / "rpn.yaml"))
    assert isinstance(defaults, dict)
    rows = [_row(key, f"`{shown(defaults[key.path])}`") for key in keys() if "." not in key.path]
    return [*_header("Top level", ""), *rows, ""]


def _section(section: str) -> list[str]:
    files = group_files(section)
    models = choice_models(section)
    lines = _header(section, " ".join((next(iter(models.values())).__doc__ or "").split()) if len(models) == 1 else "")
    if len(files) > 1 or any(file.is_alias for file in files):
        lines[1:1] = [*(f"- `{section}={file.choice}`: {file.comment}" for file in files), ""]
    for key in keys():
        if key.path.startswith(f"{section}.") and not is_label(key):
            lines.append(_row(key, _default(key, files), _owners(key, models)))
    return [*lines, "", *_items(section)]


def is_label(key: Key) -> bool:
    """Whether a key only says what was chosen: the name of a section, the type of an item."""
    return (
        get_origin(key.field.annotation) is Literal
        and key.path.rpartition(".")[2] in ("name", "type")
        and (len(get_args(key.field.annotation)) == 1)
    )


@dataclass(frozen=True, kw_only=True)
class GroupFile:
    """A YAML file of a group. An alias (`defaults: [math_reasoning]`) has the values of another file."""

    choice: str
    comment: str
    values: dict[str, Any]
    is_alias: bool


def group_files(section: str) -> list[GroupFile]:
    """The files of a group, in the order of the schema where a file is named after its model, then by name."""
    order = list(choice_models(section))
    found = []
    for path in sorted((CONF / section).glob("*.yaml")):
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        assert isinstance(values, dict)
        comment = " ".join(line[2:] for line in path.read_text().splitlines() if line.startswith("# "))
        named = {str(key): value for key, value in values.items()}
        is_alias = set(named) == {"defaults"}
        if is_alias:
            comment = f"{comment} The same as `{section}={named['defaults'][0]}`."
        found.append(GroupFile(choice=path.stem, comment=comment, values=named, is_alias=is_alias))
    return sorted(found, key=lambda f: (order.index(f.choice) if f.choice in order else len(order), f.choice))


def _default(key: Key, files: Sequence[GroupFile]) -> str:
    """`{"grpo": "0.2", "dapo": "0.2", "gspo": "0.0003"}` -> `0.2` (gspo: `0.0003`); `???` is YAML for "say it"."""
    names = key.path.split(".")[1:]
    if ANY_NAME in names:
        return ""
    values = {}
    for file in files:
        found: Any = file.values
        for name in names:
            found = found.get(name, None) if isinstance(found, dict) and name in found else _ABSENT
        if found is not _ABSENT:
            values[file.choice] = shown(found)
    if set(values.values()) == {"???"}:
        return "none: must be given"
    usual = Counter(values.values()).most_common(1)[0][0]
    if any(len(value) > 60 for value in values.values()):
        return "see the YAML"
    others = [f"{choice}: {'must be given' if v == '???' else f'`{v}`'}" for choice, v in values.items() if v != usual]
    return f"`{usual}`" + (f" ({', '.join(others)})" if others else "")


def _owners(key: Key, models: Mapping[str, Any]) -> str:
    """Which choices, or which types of an item, have a key that not all have."""
    if key.types:
        all_types = {
            kind for other in keys() if other.path.startswith(key.path.rpartition(".")[0]) for kind in other.types
        }
        return f" (types {', '.join(key.types)})" if set(key.types) != all_types else ""
    return f" (only {', '.join(key.choices)})" if len(key.choices) < len(models) else ""


def _items(section: str) -> list[str]:
    """The types of the items that a section's mappings hold: the parts of a reward."""
    lines = []
    for choice in choice_models(section).values():
        for name, field in choice.model_fields.items():
            models, is_mapping = inner_models(field.annotation)
            if is_mapping and len(models) > 1:
                lines += [f"Types of `{section}.{name}.{ANY_NAME}.type`:", ""]
                lines += [f"- `{tag(model, 'type')}`: {' '.join((model.__doc__ or '').split())}" for model in models]
                lines += [""]
    return lines


def _header(title: str, text: str) -> list[str]:
    heading = [f"## {title}\n"] if title == "Top level" else [f"## `{title}`\n"]
    return [*heading, *([f"{text}\n"] if text else []), "| key | type | default | what it does |", "|---|---|---|---|"]


def _row(key: Key, default: str, only: str = "") -> str:
    kind = type_text(key.field).replace("|", "\\|")
    text = (key.field.description or "").replace("|", "\\|")
    return f"| `{key.path}` | {kind} | {default} | {text}{only} |"


def _spelling_table(spellings: Sequence[Spelling]) -> list[str]:
    rows = [f"| `{s.theirs}` | {', '.join(f'`{key}`' for key in s.ours) or 'none'} | {s.note} |" for s in spellings]
    return ["| theirs | ours | note |", "|---|---|---|", *rows]


def type_text(field: FieldInfo) -> str:
    """The type of a field in words: `int >= 1 or null`, `"chain" | "tree"`."""
    return _type(field.annotation, field.metadata)


def _type(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [m for extra in arguments[1:] for m in (extra.metadata if isinstance(extra, FieldInfo) else [extra])]
        return _type(arguments[0], [*inner, *metadata])
    if origin is Literal:
        return " | ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join("null" if a is NoneType else _type(a) for a in arguments)
    if origin is tuple:
        inside = f"{_type(arguments[0])}, ..." if Ellipsis in arguments else ", ".join(map(_type, arguments))
        return f"[{inside}]" + _bounds(metadata)
    if origin is dict:
        return f"mapping of {_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "task" if issubclass(annotation, TaskBundle) else "section"
    names = {bool: "true or false", int: "int", float: "number", str: "text"}
    return names[annotation] + _bounds(metadata)


def _bounds(metadata: Iterable[Any]) -> str:
    words = []
    for bound in metadata:
        match bound:
            case Ge(ge=value):
                words.append(f">= {value}")
            case Gt(gt=value):
                words.append(f"> {value}")
            case Le(le=value):
                words.append(f"<= {value}")
            case Lt(lt=value):
                words.append(f"< {value}")
            case MinLen(min_length=value):
                words.append("not empty" if value == 1 else f"at least {value}")
            case _:
                pass
    return " " + ", ".join(words) if words else ""


if __name__ == "__main__":
    main()
