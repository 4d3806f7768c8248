"""`rlvr audit` on bugs that other projects had, and on our own scorers.

    RLVR_DATA=data python benchmarks/audit.py > docs/benchmarks/audit.md

Each bug is a small reward function (`audit_bugs.py`) on generated questions with numbers of all kinds: signs,
thousands, decimals, fractions. It is found if the audit flags the kind that names it. Then our own tasks: each flagged
kind must be a documented oddity.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from datetime import date

import audit_bugs

import rlvr

BUGS: dict[str, tuple[str, str]] = {  # function -> the kind that names it; what was wrong
    "last_number": ("echo of the question", "the last number of prompt and completion counts (verl#2150: `flexible`)"),
    "substring": ("all candidates", "`answer in completion`"),
    "wide_tolerance": ("near", "a relative tolerance of 5 %"),
    "first_box": ("earlier answer", "the first box counts"),
    "no_commas": ("commas", "1,234 is not 1234 (CoursIA#12505: $1,234.00 was read as 234)"),
    "percent_dropped": ("percent or number", "93.5 and 0.935 are one answer"),
    "sign_lost": ("sign", "digits only: -3 is 3, as after SQuAD's normalization"),
    "evaluates": ("code", "`eval` of the text"),
    "empty_gold": ("empty gold", "texts that normalize to nothing are equal (SQuAD's and MuSiQue's scorers)"),
    "timeout_is_right": ("hang", "an alarm of its own leaves the default score (verl#5635: the alarm was swallowed)"),
    "exception_is_right": ("exception", "an exception counts as right"),
    "no_latex_fraction": ("fraction", "`\\frac{3}{4}` is refused for 3/4"),
    "no_unit": ("unit", "18 dollars is refused for 18"),
    "gold_unreadable": ("unreadable gold", "a gold that cannot be parsed gives 1.0 (open-r1#159)"),
    "whole_text": ("two formats", "without a box the whole text counts (verifiers#1028), or `####`"),
    "coin": ("same text twice", "a judge that changes its mind"),
}
TASKS = ("gsm8k", "finqa", "rpn", "two_hop", "musique", "hotpotqa")
DOCUMENTED = {  # (task, verifier, kind) -> where
    ("musique", "metric", "empty gold"): "docs/scoring.md; rows without an answer are left out when the data load",
    ("hotpotqa", "metric", "empty gold"): "docs/scoring.md; rows without an answer are left out when the data load",
}


def questions(seed: int = 0, num: int = 60) -> Iterator[dict[str, str]]:
    """Two numbers, and the larger one, in many spellings of numbers."""
    rng = random.Random(seed)
    makes = (
        lambda: str(rng.randrange(2, 99)),
        lambda: str(-rng.randrange(2, 99)),
        lambda: str(rng.randrange(1_000, 99_999)),
        lambda: f"{rng.randrange(1, 99) / 100}",
        lambda: f"{rng.randrange(101, 9_999) / 100}",
        lambda: f"{rng.choice((1, 3, 5, 7))}/{rng.choice((2, 4, 8))}",
    )
    for index in range(num):
        a, b = makes[index % len(makes)](), makes[index // 2 % len(makes)]()
        answer = a if index % 2 else b
        yield {
            "question": f"Question {index}: of the numbers {a} and {b}, which one is chosen by rule {index % 2}?"
            f" The candidates: {a}, {b}",
            "answer": answer,
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-examples", type=int, default=50)
    parser.add_argument("--parts", nargs="+", default=["bugs", "tasks"])
    args = parser.parse_args()
    print("# Audits of verifiers with known bugs, and of our own\n")
    print(f"    {' '.join(['python benchmarks/audit.py', *sys.argv[1:]])}\n")
    print(f"{date.today()}, seed 0, {args.num_examples} examples each, no adversary (`--seconds 0`).\n")
    if "bugs" in args.parts:
        bugs(args.num_examples)
    if "tasks" in args.parts:
        ours(args.num_examples)


def bugs(num: int) -> None:
    rows, found = list(questions()), 0
    print("## Bugs of other projects\n")
    print("Rebuilt as small functions ([audit_bugs.py](../../benchmarks/audit_bugs.py)); `sound` has none of them.\n")
    print(_line("verifier", "what was wrong", "named by", "found", "other kinds flagged"))
    print(_line(*5 * ["---"]))
    for name, (kind, what) in {"sound": ("nothing", "nothing"), **BUGS}.items():
        audit = rlvr.audit(getattr(audit_bugs, name), data=rows, seconds=0, num_examples=num, prompt="boxed")
        named = kind in [*audit.flagged, *(row.kind for row in audit.noted)] or not (audit.flagged or name in BUGS)
        found += named and name in BUGS
        others = listed([one for one in audit.flagged if one != kind]) or "none"
        print(_line(f"`{name}`", what, kind, "yes" if named else "**no**", others), flush=True)
    print(f"\n{found} of {len(BUGS)} are found and named.\n")


def ours(num: int) -> None:
    print("## Our own scorers\n")
    print("Rewards as in training and metrics as in evaluation; what only the documented format refuses is left out.\n")
    print(_line("task", "verifier", "flagged", "examples", "for instance", "documented in"))
    print(_line(*6 * ["---"]))
    for task in TASKS:
        audit = rlvr.audit(task, seconds=0, num_examples=num)
        shown = (*audit.refused, *audit.alarms, *audit.noted)
        for row in shown:
            one = next(one for one in audit.findings if (one.verifier, one.kind) == (row.verifier, row.kind))
            said = f"gold {one.gold[:40]!r}, text {one.text[-60:]!r}: {one.score:g} of {one.full:g}"
            where = DOCUMENTED.get((task, row.verifier, row.kind), "**nowhere**")
            print(
                _line(task, row.verifier, row.kind, f"{row.num_failed} of {row.num_examples}", said, where), flush=True
            )
        if not shown:
            print(_line(task, "both", "nothing", f"{num}", "", ""), flush=True)


def listed(kinds: Sequence[str], most: int = 7) -> str:
    """`commas, unit and 3 more`"""
    more = f" and {len(kinds) - most} more" if len(kinds) > most else ""
    return ", ".join(kinds[:most]) + more


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    main()
