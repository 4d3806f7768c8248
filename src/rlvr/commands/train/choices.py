"""What `rlvr train --help` lists, read from files: no component is imported for it."""

from itertools import takewhile
from pathlib import Path
from textwrap import fill, shorten

from rlvr import registry

PACKAGE = Path(__file__).parents[2]
WIDTH, SENTENCE = 118, 96
GROUPS = ("task", "model", "algorithm", "engine", "prompt")
"""Whose choices are components; rewards are bundles of parts, in YAML."""


def listing() -> str:
    """The packaged configurations, each with the first sentence of its file, and the choices of each group."""
    files = sorted((PACKAGE / "conf").glob("*.yaml"))
    width = max(len(file.stem) for file in files)
    lines = [f"  {file.stem:{width}}  {_first_sentence(file)}" for file in files]
    groups = {group: sorted(registry.names(group)) for group in GROUPS}
    groups["reward"] = sorted(file.stem for file in (PACKAGE / "conf" / "reward").glob("*.yaml"))
    choices = [
        fill(", ".join(names), WIDTH, initial_indent=f"  {f'{name}=':11}", subsequent_indent=" " * 13)
        for name, names in groups.items()
    ]
    parts = ["", "configurations (--config-name):", *lines, "", "groups (rlvr train --help-config GROUP):", *choices]
    return "\n".join(parts) + "\n"


def _first_sentence(file: Path) -> str:
    """Of the file's first comment, up to a colon where it is long."""
    lines = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    text = " ".join(line.removeprefix("# ") for line in lines).partition(". ")[0].rstrip(".")
    return text if len(text) <= SENTENCE else shorten(text.partition(": ")[0], SENTENCE, placeholder=" ...")
