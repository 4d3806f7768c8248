"""All names in `metrics.jsonl`: the tables of `metrics.md` next to this file (docs has a copy)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the catalogue. In names, `<part>`, `<task>` ... match a word, `<k>` a number."""

    name: str
    unit: str
    meaning: str
    bad: str


_ROW = re.compile(r"^\| `(.+?)` \| (.+?) \| (.+?) \| (.+) \|$", re.MULTILINE)
_PAGE = Path(__file__).with_suffix(".md").read_text(encoding="utf-8").replace(r"\|", "\0")
CATALOGUE = tuple(Metric(*(cell.replace("\0", "|") for cell in cells)) for cells in _ROW.findall(_PAGE))

_PLACEHOLDERS = {
    "part": r"[^/]+",
    "task": r"[^/]+",
    "k": r"\d+",
    "tag": r"(?:\d+_(?:or_more_)?[a-z]+|yes_or_no)",
    "fact": r"(?:hops|hop_answers|answer_em|answer_f1|(?:citation|paragraphs|corpus)_(?:recall|precision|f1))",
    "tool": r"(?:turns_mean|tool_calls_mean|max_turns_share|"
    r"(?:tool_error|malformed_call|unknown_tool|invalid_argument|tool_timeout)_share)",
}


@cache
def _pattern(name: str) -> re.Pattern[str]:
    pieces = re.split(r"<(\w+)>", name)
    return re.compile("".join(_PLACEHOLDERS[p] if i % 2 else re.escape(p) for i, p in enumerate(pieces)))


def describe(name: str) -> Metric | None:
    """The catalogue's row for a name, exact names before patterns, long ones before short; None if unknown."""
    fitting = [metric for metric in CATALOGUE if _pattern(metric.name).fullmatch(name)]
    return max(fitting, key=lambda metric: (metric.name == name, len(metric.name)), default=None)


def undocumented(names: Iterable[str]) -> list[str]:
    return sorted(name for name in set(names) if describe(name) is None)
