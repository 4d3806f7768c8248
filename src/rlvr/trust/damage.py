"""Texts that were damaged on their way to the model; damage.toml says by what they are known."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

DAMAGE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def damaged(texts: Sequence[str], *, templated: bool) -> Iterator[tuple[str, list[str], str]]:
    """What the texts of each kind do, the texts, and the remedy. `templated`: the model has a chat template."""
    for kind in DAMAGE.values():
        pattern, unless = re.compile(kind["pattern"]), re.compile(kind.get("unless", r"(?!)"))
        hit = [text for text in texts if pattern.search(text) and not unless.search(text)]
        yield kind["says"], hit if templated or not kind.get("templated") else [], kind["remedy"]
