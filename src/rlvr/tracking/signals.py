"""Signals: every metric of `metrics.jsonl`, what it means, and from where on it is wrong; the table is signals.toml.

`python -m rlvr.tracking.signals > docs/metrics.md` writes the page; `python -m rlvr.tracking.signals chain` prints the
table of docs/diagnose.md.
"""

import math
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

LINKS = {
    "differs": "questions, and completions of one, differ",
    "ends": "completions end by themselves",
    "read": "answers and calls are read, and calls answered",
    "paid": "right answers are paid",
    "trained": "what was sampled is trained on",
    "step": "steps have the right size",
    "held": "what is learnt holds for held-out questions",
}
"""The chain from a prompt to the held-out score: a link that breaks explains what comes after it."""

_PLACEHOLDERS = {
    "part": r"[^/]+",
    "task": r"[^/]+",
    "k": r"\d+",
    "tag": r"(?:\d+_(?:or_more_)?[a-z]+|yes_or_no)",
    "fact": r"(?:hops|hop_answers|answer_em|answer_f1|(?:citation|paragraphs|corpus)_(?:recall|precision|f1))",
    "tool": r"(?:turns_mean|tool_calls_mean|max_turns_share|"
    r"(?:tool_error|malformed_call|unknown_tool|invalid_argument|tool_timeout)_share)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Signal:
    """A row of signals.toml, which says what the fields mean."""

    name: str
    section: str
    unit: str
    meaning: str
    fine: float | None = None
    wrong: float | None = None
    low: bool = False
    target: float = 0.0
    log: bool = False
    link: str = ""
    says: str = ""
    leads: str = ""
    remedy: str = ""
    look: str = ""
    mark: str = ""
    unless: tuple[str, ...] = ()
    unless_fine: tuple[str, ...] = ()
    unless_solved: bool = False

    @property
    def is_bounded(self) -> bool:
        return self.fine is not None or self.wrong is not None

    @property
    def is_judged(self) -> bool:
        """Whether `weight` knows from where to where it gets worse."""
        return self.fine is not None and self.wrong is not None

    def is_fine(self, value: float) -> bool:
        """Whether there is nothing to say about the value; True without a bound, False for NaN."""
        limit, size = self.wrong if self.fine is None else self.fine, abs(value - self.target)
        return limit is None or (size > limit if self.low else size <= limit)

    def is_wrong(self, value: float) -> bool:
        size = abs(value - self.target)
        return self.wrong is not None and (size <= self.wrong if self.low else size >= self.wrong)

    def weight(self, value: float | None) -> float:
        """How much the value speaks: 0 at `fine`, 1 at `wrong`; 0 for None and NaN."""
        if self.fine is None or self.wrong is None:
            raise ValueError(f"{self.name} has no two bounds in signals.toml")
        return between(value, self.fine, self.wrong, log=self.log)

    @property
    def bad(self) -> str:
        """What looks wrong, for the page: `from 0.4 (fine up to 0.1): they end before their answer`; `-`: nothing."""
        bounds = f"{self._bounds}: {self.leads}" if self.is_bounded else ""
        return "; ".join(part for part in (bounds, self.look) if part) or "-"

    @property
    def _bounds(self) -> str:
        if self.target:
            return f"over {self.fine:g} from {self.target:g}"
        if self.fine is None or self.wrong is None:
            return wrong_at(self)
        return f"{wrong_at(self)} (fine {'above' if self.low else 'up to'} {self.fine:g})"


def wrong_at(signal: Signal) -> str:
    """`0.01 or less`, `0`, `from 0.4`, or `over 0.2` where only `fine` is known."""
    limit = signal.fine if signal.wrong is None else signal.wrong
    if not signal.low:
        return f"{'over' if signal.wrong is None else 'from'} {limit:g}"
    return f"{limit:g} or less" if limit else "0"


def between(value: float | None, fine: float, wrong: float, *, log: bool = False) -> float:
    """0 at `fine` and before, 1 at `wrong` and beyond, in between linear or with the logarithm; 0 for None and NaN."""
    if value is None or math.isnan(value):
        return 0.0
    if log:
        value, fine, wrong = (math.log(max(number, 1e-12)) for number in (value, fine, wrong))
    return min(1.0, max(0.0, (value - fine) / (wrong - fine)))


def _read() -> Iterator[Signal]:
    sections = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    rows = {
        f"{prefix}/{key}".rstrip("/"): row | {"section": section["title"]}
        for prefix, section in sections.items()
        for key, row in section.items()
        if key != "title"
    }
    for name, row in rows.items():
        has_interval, like = row.pop("interval", False), row.pop("like", None)
        yield _signal(name, row if like is None else _borrowed(rows[like]) | {"unless": [like]} | row)
        for end, side in (("low", "lower"), ("high", "upper")) if has_interval else ():
            meaning = f"{name.rpartition('/')[2]}: {side} end of its 95 % interval"
            look = "an interval wider than the gain you look for: raise evaluation.num_examples"
            yield _signal(
                f"{name}_{end}", {"section": row["section"], "unit": row["unit"], "meaning": meaning, "look": look}
            )


def _borrowed(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("look", "mark", "unless")}


def _signal(name: str, row: dict[str, Any]) -> Signal:
    low = row.get("low", False) or ("fine" in row and "wrong" in row and row["wrong"] < row["fine"])
    lists = {key: tuple(row.get(key, ())) for key in ("unless", "unless_fine")}
    return Signal(**{"name": name, **row, **lists, "low": low})


SIGNALS = {signal.name: signal for signal in _read()}


@cache
def _pattern(name: str) -> re.Pattern[str]:
    pieces = re.split(r"<(\w+)>", name)
    return re.compile("".join(_PLACEHOLDERS[p] if i % 2 else re.escape(p) for i, p in enumerate(pieces)))


@cache
def describe(name: str) -> Signal | None:
    """The signal of a metric, exact names before patterns, long ones before short; None if unknown."""
    fitting = [signal for signal in SIGNALS.values() if _pattern(signal.name).fullmatch(name)]
    return SIGNALS.get(name) or max(fitting, key=lambda signal: len(signal.name), default=None)


def undocumented(names: Iterable[str]) -> list[str]:
    return sorted(name for name in set(names) if describe(name) is None)


_PAGE = """\
# Metrics

`metrics.jsonl` in a run folder has one JSON object per step: `step` first, then the names below in alphabetical order.
Non-finite numbers are written as `null`. The line of step 0 holds the evaluation before the first update. Names that do
not apply to a run (the critic's without a critic) are absent.

On one machine two runs with the same seed give equal lines, except under `time/` and `system/`. With
`rollout.max_staleness` > 0 only the prompts are equal, because the age of tokens depends on the clock.

`<task>` is the task's name, `<part>` the name of a reward part, `<k>` an integer, `<tag>` a kind of example
(`3_operators`, `2_hops`, `1_step`). Metrics of tools cover the episodes with tools. A share is between 0 and 1.

Up to *fine* there is nothing to say; beyond it the panel Health of `rlvr report` asks you to look. What looked wrong in
each of the last 5 steps is said on the terminal too. This page is written from
[signals.toml](../src/rlvr/tracking/signals.toml): `python -m rlvr.tracking.signals > docs/metrics.md`.
"""


def page() -> str:
    """The text of docs/metrics.md."""
    blocks = [_PAGE]
    for title in dict.fromkeys(signal.section for signal in SIGNALS.values()):
        rows = [(f"`{s.name}`", s.unit, s.meaning, s.bad) for s in SIGNALS.values() if s.section == title]
        blocks.append(f"## {title}\n\n" + _table(("name", "unit", "meaning", "looks wrong when"), rows))
    return "\n".join(blocks)


def chain() -> str:
    """The table of docs/diagnose.md: what is said on the terminal, in the order of the chain."""
    rows = [
        (LINKS[link], f"`{signal.name}`", wrong_at(signal), f"{signal.leads}. {signal.remedy}")
        for link in LINKS
        for signal in SIGNALS.values()
        if signal.link == link and signal.wrong is not None and "<" not in signal.name
    ]
    return _table(("should hold", "look at", "wrong", "then"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace("| --- ", "|---").replace("--- |", "---|")


if __name__ == "__main__":
    sys.stdout.write(chain() if "chain" in sys.argv else page())
