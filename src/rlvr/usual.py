"""The usual ranges of settings: `setting(1.0, ..., usual=(0.1, 2))`, and what a run says of values outside."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo

from rlvr.settings import Settings, Usual, in_words


@dataclass(frozen=True, kw_only=True, slots=True)
class Unusual:
    """`Unusual(key="algorithm.gamma", value=0.5, default=1.0, range="0.85 to 1", leads="hardly any of ...",
    link="trained", share=0.59)`; `share` is the value beside the nearest usual one, or the reverse: below 1."""

    key: str
    value: float
    default: Any
    range: str
    leads: str
    link: str
    share: float

    def __str__(self) -> str:
        return f"{self.key}={self.value:g}: {self.range} is usual; {self.leads}"


def unusual(run: Mapping[str, Any], sections: Mapping[str, type[Settings]]) -> Iterator[Unusual]:
    """The values of a run outside of their usual ranges.

    `run` holds the values as config.yaml does, `sections` the classes of those that are looked at.
    """
    for name, settings in sections.items():
        yield from _within(run, name, settings, run.get(name))


def _within(run: Mapping[str, Any], path: str, settings: type[Settings], values: Any) -> Iterator[Unusual]:
    for name, field in settings.model_fields.items() if isinstance(values, Mapping) else ():
        value, kind = values.get(name), field.annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            yield from _within(run, f"{path}.{name}", kind, value)
        elif isinstance(value, int | float) and (usual := usual_of(field)):
            with suppress(KeyError, TypeError):  # a run of another version
                least, most = usual.range(run) if callable(usual.range) else usual.range
                if not least <= value <= most:
                    yield Unusual(
                        key=f"{path}.{name}",
                        value=value,
                        default=field.default,
                        range=in_words((least, most)),
                        leads=usual.below if value < least else usual.above,
                        link=usual.link,
                        share=value / least if value < least else most / value,
                    )


def usual_of(field: FieldInfo) -> Usual | None:
    extra = field.json_schema_extra
    return extra.get("usual") if isinstance(extra, dict) else None  # pyright: ignore[reportReturnType]
