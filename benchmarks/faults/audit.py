"""`rlvr audit` on verifiers with planted bugs and on sound ones, and on rlvr's own scorers.

    python benchmarks/faults/audit.py
    python benchmarks/faults/audit.py --only sign box --num-examples 24
    RLVR_DATA=data python benchmarks/faults/audit.py --tasks

A bug is rightly named if one of the kinds of texts that name it is flagged. A sound verifier is accused if a wrong text
is said to be paid; one that asks for a template of its answers gets it.
"""

from __future__ import annotations

import argparse
from typing import Any

from table import Fault, Verdict, parser_of, run
from verifiers import TABLE, TEMPLATES

import rlvr

TASKS = ("gsm8k", "finqa", "rpn", "two_hop", "musique", "hotpotqa")
DOCUMENTED = {
    ("musique", "empty gold"),
    ("hotpotqa", "empty gold"),
}  # docs/score.md; such rows are left out in loading


def judged(fault: Fault, arguments: argparse.Namespace, **more: Any) -> Verdict:
    """Flagged kinds of a wrong verifier, those of alarms alone of a sound one."""
    try:
        audit: Any = rlvr.audit(seconds=0, num_examples=arguments.num_examples, **fault.made, **more)
    except Exception as error:  # a refusal, with the reason
        return Verdict(says=f" (refused: {str(error)[:100]})")
    if not fault.right:
        return Verdict(tuple(row.kind for row in audit.alarms))
    kinds = [*audit.flagged, *(row.kind for row in audit.noted)]
    return Verdict(tuple(sorted(kinds, key=lambda kind: kind not in fault.right))[:5])


def main() -> None:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--num-examples", type=int, default=24)
    parser.add_argument("--tasks", action="store_true", help="instead audit the shipped tasks: all of them are sound")
    arguments = parser.parse_args()

    def judge(fault: Fault) -> Verdict:
        verdict = judged(fault, arguments)
        name = fault.name.partition(",")[0]
        if verdict.says and not fault.right and name in TEMPLATES:
            verdict = judged(fault, arguments, answer_template=TEMPLATES[name])
        return verdict

    def judge_task(fault: Fault) -> Verdict:
        audit: Any = rlvr.audit(fault.name, seconds=0, num_examples=arguments.num_examples)
        rows = (*audit.refused, *audit.alarms, *audit.noted)
        return Verdict(tuple(row.kind for row in rows if (fault.name, row.kind) not in DOCUMENTED))

    if arguments.tasks:
        run([Fault(name, "task", (), None) for name in TASKS], arguments, judge_task)
    else:
        run(TABLE, arguments, judge)


if __name__ == "__main__":
    main()
