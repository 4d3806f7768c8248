"""`rlvr audit`: can this verifier be trusted?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlvr.cli.model_arguments import add_config_dir, at_least, note, save_checks

if TYPE_CHECKING:
    from rlvr.trust.probes.causes import RewardFault
    from rlvr.trust.probes.judge import Audit, Finding, Misjudged

HELP = "find right answers that a reward refuses, and wrong ones that it pays"
DESCRIPTION = """Grade rewritten right answers, edited wrong ones and known exploits by the reward and the metric of a
task, or by your own function, and train a tiny model to find more. Exit status 1: something wrong is paid."""
EXAMPLE = """examples:
  rlvr audit gsm8k
  rlvr audit my.jsonl                                   questions and answers of a file, and their reward
  rlvr audit runs/latest                                the task and the reward of a run; its report shows it, too
  rlvr audit finqa reward=numeric --seconds 0           another reward, without the trained adversary
  rlvr audit my_rewards:score --data my.jsonl           your function on your questions
  rlvr audit my_rewards:score --task gsm8k prompt=boxed
  rlvr audit my_rewards:score --data my.jsonl --answer-template '<result>{answer}</result>'
  rlvr audit rpn --json                                 all findings
"""
GROUPS = {
    "rewrite": "right answers refused",
    "format": "refused by the format alone",
    "edit": "wrong answers paid",
    "exploit": "exploits paid",
    "gold": "paid by a row without an answer (such rows are left out when the data load)",
    "stability": "contradicts itself",
    "adversary": "found by the adversary",
}
SHOWN = 160  # characters of a text


def share(text: str) -> float:
    """An argparse type."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share, 0 to 1")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="configuration, task, data file or run folder, or module:function with --data, --task",
    )
    parser.add_argument("--data", metavar="FILE", help="questions and answers for a function: .jsonl, .json, .csv")
    parser.add_argument("--task", metavar="T", help="configuration or task with the questions for a function")
    add_config_dir(parser)
    parser.add_argument("--num-examples", type=at_least(2), default=50, metavar="N", help="default: 50")
    parser.add_argument(
        "--seconds", type=at_least(0), default=60, metavar="S", help="time of the adversary, 0: none (default: 60)"
    )
    told = "largest share of examples for which a wrong answer of one kind may be paid (default: 0)"
    parser.add_argument("--threshold", type=share, default=0.0, metavar="X", help=told)
    parser.add_argument(
        "--answer-template",
        metavar="TEXT",
        help="how a completion that your function reads is written: '<result>{answer}</result>' (default: found out)",
    )
    parser.add_argument("--shown", type=at_least(0), default=1, metavar="N", help="texts shown of a kind (default: 1)")
    parser.add_argument("--json", action="store_true", help="print JSON lines on stdout: rows, then all findings")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for rlvr train")


def run(args: argparse.Namespace) -> int:
    from rlvr.commands.audit.body import AuditOptions, audit, audit_config
    from rlvr.trust.probes.causes import checks

    where = {"data": args.data, "task": args.task, "config_dir": args.config_dir}
    config = audit_config(args.target, args.overrides, **where)
    options = AuditOptions(
        num_examples=args.num_examples,
        seconds=args.seconds,
        threshold=args.threshold,
        answer_template=args.answer_template,
    )
    result = audit(config, target=args.target, options=options)
    for line in result.notes:
        note(f"note: {line}")
    save_checks(args.target, "audit", checks(result))
    sys.stdout.writelines(f"{line}\n" for line in (plain(result) if args.json else report(result, args.shown)))
    return 1 if result.alarms else 0


def plain(audit: Audit) -> Iterator[str]:
    for row in audit.rows:
        more = {"share": row.share.value, "share_low": row.share.low, "share_high": row.share.high}
        yield json.dumps(vars(row) | more | {"alarm": row in audit.alarms})
    yield from (json.dumps(vars(finding)) for finding in audit.findings)


def report(audit: Audit, shown: int) -> Iterator[str]:
    """A table of the kinds with failures, their texts, and a sentence with a remedy for each."""
    from rlvr.trust.probes.causes import exact_spellings, find_causes
    from rlvr.trust.probes.exploits import SLOW

    for group, title in GROUPS.items():
        rows = [row for row in audit.rows if row.group == group]
        yield f"{title}: {len([row for row in rows if row.num_failed])} of {len(rows)} kinds"
        for row in rows:
            if row.num_failed or row.num_errors:
                yield _row(row)
                texts = [one for one in audit.findings if (one.verifier, one.kind) == (row.verifier, row.kind)]
                for finding in texts[: 0 if group == "format" else shown]:
                    yield from _finding(finding)
    causes = find_causes(audit)
    for cause in causes:
        yield from _cause(audit.target, cause)
    explained = {(cause.verifier, kind) for cause in causes for kind in (cause.kind, *cause.explains)}
    for name, rows in exact_spellings(audit).items():
        explained |= {(name, row.kind) for row in rows}
        remedies = "; ".join(dict.fromkeys(row.remedy for row in rows))
        yield f"- {audit.target}: the {name} takes an answer in its gold's own spelling alone,"
        yield f"  which is right if the prompt asks for it; else normalize both before you compare: {remedies}."
    for row in (*audit.refused, *audit.alarms):
        if (row.verifier, row.kind) in explained:
            continue
        what = "refuses" if row.group == "rewrite" else "does not end on" if row.kind == SLOW else "pays"
        yield f"- {audit.target}: the {row.verifier} {what} {row.kind!r}: {_figures(audit, row)}{row.remedy}."
    if not (audit.refused or audit.alarms):
        yield f"{audit.target}: nothing wrong was paid, and nothing right refused."


def _cause(target: str, cause: RewardFault) -> Iterator[str]:
    """The fault behind many kinds, a text that shows it, and what it may explain."""
    shown = f" (as {_short(cause.example.text)})" if cause.example else ""
    yield f"- {target}: the {cause.verifier}: {cause.name}: {cause.says}{shown}: {cause.remedy}."
    if cause.explains:
        kinds = ", ".join(cause.explains)
        yield f"  {len(cause.explains)} more kinds may follow from it; audit again when it is corrected: {kinds}."


def _figures(audit: Audit, row: Misjudged) -> str:
    """What a wrong and a right answer earn, of a format that pays too much."""
    from rlvr.trust.probes.exploits import FORM

    for one in audit.findings:
        if row.kind == one.kind == FORM:
            return f"a wrong answer in the right format earns {one.score:g}, a right one {one.full:g}: "
    return ""


def _row(row: Misjudged) -> str:
    interval = row.share
    errors = f", {row.num_errors} errors" if row.num_errors else ""
    counts = f"{row.num_failed} of {row.num_examples} ({interval.low:.0%} to {interval.high:.0%}){errors}"
    return f"  {row.verifier:7} {row.kind:28} {counts}"


def _finding(one: Finding) -> Iterator[str]:
    score = "failed" if one.score is None else f"{one.score:g} of {one.full:g}"
    yield f"    question {_short(one.question)}"
    yield f"    gold {_short(one.gold)}   text {_short(one.text)}   score {score} {one.message}".rstrip()


def _short(text: str) -> str:
    """On one line, control characters escaped; the end of a long one."""
    line = repr(text)[1:-1]
    return line if len(line) <= SHOWN else f"...{line[-SHOWN:]}"
