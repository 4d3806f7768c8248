"""What the runners of planted faults share: a row of the table, the choice of rows, and the count."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fault:
    """Something planted. `right`: the findings that name it. None: a sound control, where each is a false alarm."""

    name: str
    kind: str
    right: tuple[str, ...]
    made: Any  # what the tool's runner makes it from
    invented: str = "first"  # the list that it was written for; `first` ones were there when checks were tuned


@dataclass(frozen=True)
class Verdict:
    """What a tool said: `named` are the findings of which one must be right; `aside`: why it does not count."""

    named: tuple[str, ...] = ()
    says: str = ""
    aside: str = ""


def outcome(fault: Fault, verdict: Verdict) -> str:
    if verdict.aside:
        return "aside"
    if not fault.right:
        return "false alarm" if verdict.named else "sound"
    if set(verdict.named) & set(fault.right):
        return "right"
    return "other" if verdict.named else "missed"


def parser_of(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the rows, and plant nothing")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="rows with one of these in their name")
    parser.add_argument("--kind", nargs="+", default=[], help="rows of these kinds; `sound` are the controls")
    parser.add_argument("--invented", nargs="+", default=[], help="rows of these lists")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jsonl", type=Path, help="also write a line a row here")
    return parser


def chosen(table: Sequence[Fault], arguments: argparse.Namespace) -> list[Fault]:
    """The rows that the arguments ask for, in the table's order."""
    assert len({fault.name for fault in table}) == len(table), "two rows have one name"
    rows = [fault for fault in table if not arguments.only or any(text in fault.name for text in arguments.only)]
    rows = [fault for fault in rows if not arguments.kind or fault.kind in arguments.kind]
    rows = [fault for fault in rows if not arguments.invented or fault.invented in arguments.invented]
    if not rows:
        raise SystemExit("no row has such a name, kind and list; see --list")
    if arguments.sample is not None and arguments.sample < len(rows):
        places = sorted(random.Random(arguments.seed).sample(range(len(rows)), arguments.sample))
        rows = [rows[place] for place in places]
    return rows


def run(table: Sequence[Fault], arguments: argparse.Namespace, judge: Callable[[Fault], Verdict]) -> None:
    """Print a row of a Markdown table for each fault, and the counts."""
    rows, counts, begin = chosen(table, arguments), Counter[str](), time.perf_counter()
    if arguments.list:
        for fault in rows:
            print(f"{fault.invented}\t{fault.kind}\t{fault.name}\t{' or '.join(fault.right) or 'nothing'}")
        return
    print("| kind | planted | said | that is | s |\n|---|---|---|---|---|")
    for fault in rows:
        start = time.perf_counter()
        try:
            verdict = judge(fault)
        except Exception as error:  # a fault that this model or version cannot have ends no run of hours
            verdict = Verdict(aside=f"not planted: {type(error).__name__}: {str(error)[:80]}")
        result, seconds = outcome(fault, verdict), time.perf_counter() - start
        counts[result] += 1
        said = ", ".join(verdict.named) or verdict.aside or "nothing"
        print(f"| {fault.kind} | {fault.name} | {said}{verdict.says} | {result} | {seconds:.1f} |", flush=True)
        if arguments.jsonl:
            line = {"name": fault.name, "outcome": result, "seconds": round(seconds, 2), **asdict(verdict)}
            with arguments.jsonl.open("a") as file:
                file.write(json.dumps(line) + "\n")
    faults = sum(counts[name] for name in ("right", "other", "missed"))
    print(
        f"\nnamed rightly {counts['right']} of {faults}, by another name {counts['other']}, missed {counts['missed']}"
    )
    print(f"false alarms {counts['false alarm']} of {counts['false alarm'] + counts['sound']} sound ones")
    print(f"set aside {counts['aside']}; {time.perf_counter() - begin:.0f} s")
