"""`rlvr doctor`: is the mathematics of RL right on this model, tokenizer, template and data?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlvr.cli.model_arguments import MODEL_HERE, add_config_dir, add_set, hush, save_checks
from rlvr.cli.signals import ended_by_sigterm
from rlvr.printable import printable
from rlvr.progress import is_terminal, progress, wrapped
from rlvr.records.checks import to_line

if TYPE_CHECKING:
    from rlvr.records.checks import Check

HELP = "check the mathematics on your model, template and reward"
DESCRIPTION = """Try a run's own engine, trainer, chat and reward on MODEL: does the template only append, does every
stop token stop, are the sampled ids trained on, do engine and trainer agree, is the gradient that of the loss, is a
right answer paid? Each check is a sentence, with evidence and a remedy where it failed. No weight of MODEL is changed.
Exit status 1 if a check fails."""
EXAMPLE = """examples:
  rlvr doctor runs/latest                                  a run, on its own task
  rlvr doctor PATH_OR_HUB_ID --task gsm8k
  rlvr doctor PATH_OR_HUB_ID --task gsm8k --set model.lora.enabled=true --set algorithm=dapo
  rlvr doctor PATH_OR_HUB_ID --task jsonl --set task.path=my.jsonl --json
"""
MARKS = {"ok": "ok  ", "fail": "FAIL", "notice": "note", "skipped": "skip"}
COLORS = {"ok": "\x1b[32m", "fail": "\x1b[1;31m", "notice": "\x1b[33m", "skipped": "\x1b[2m"}
TRAINED, OTHER, END = "\x1b[32m", "\x1b[2m", "\x1b[0m"
WIDTH, MAX_EVIDENCE = 118, 600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HERE)
    parser.add_argument(
        "--task", metavar="T", help="configuration or task to train on (default: the task of MODEL's own run)"
    )
    add_config_dir(parser)
    add_set(parser, example="model.lora.enabled=true")
    parser.add_argument("--json", action="store_true", help="print one JSON line a check on stdout")


def run(args: argparse.Namespace) -> int:
    from rlvr.run.sources import inference_config

    config = inference_config(args.model, args.set, task=args.task, config_dir=args.config_dir)
    with progress("loading libraries"):
        from rlvr.commands.doctor.body import examine, trained_from

    hush()
    config = trained_from(args.model, config)
    with ended_by_sigterm(), progress("checking") as on_progress:
        checks = examine(config, on_progress=on_progress)
    if args.task is None:
        save_checks(args.model, "doctor", checks)
    if args.json:
        sys.stdout.writelines(map(to_line, checks))
    else:
        sys.stdout.write(told(args.model, checks, color=is_terminal(sys.stdout)))
    return int(any(check.status == "fail" for check in checks))


def told(model: str, checks: Sequence[Check], *, color: bool) -> str:
    """A line a check; evidence and remedy below those that failed, and the trained tokens in color."""
    lines = []
    for check in checks:
        mark = f"{COLORS[check.status]}{MARKS[check.status]}{END}" if color else MARKS[check.status]
        lines.append(f"{mark}  {check.name:25} {printable(check.says)}")
        if "row" in check.evidence:
            lines.append(f"      {masked(check.evidence['row'], color=color)}")
        if check.status in ("fail", "notice"):
            known = {name: value for name, value in check.evidence.items() if name != "row"}
            found = json.dumps(known, ensure_ascii=False, default=str)
            cut = found if len(found) <= MAX_EVIDENCE else f"{found[:MAX_EVIDENCE]} ..."
            lines += [f"      found: {printable(cut)}", f"      do:    {printable(check.remedy)}"]
    counts = {status: sum(check.status == status for check in checks) for status in MARKS}
    seconds = sum(check.seconds for check in checks)
    summary = f"{counts['ok']} ok, {counts['fail']} failed, {counts['notice']} noted, {counts['skipped']} skipped"
    lines.append(f"{model}: {summary}, in {seconds:.0f} s")
    return "\n".join(wrapped(line, WIDTH) if "\x1b" not in line else line for line in lines) + "\n"


def masked(row: Sequence[Any], *, color: bool) -> str:
    """Tokens that are trained on as they are (green), others in brackets (dim)."""
    parts: list[tuple[str, bool]] = []
    for text, trained in row:
        if parts and parts[-1][1] == trained:
            parts[-1] = (parts[-1][0] + text, trained)
        else:
            parts.append((text, trained))
    spans = [(text if trained else f"[{text}]").replace("\n", "\\n") for text, trained in parts]
    if not color:
        return printable("".join(spans))
    return "".join(
        f"{TRAINED if is_on else OTHER}{printable(span)}{END}" for span, (_, is_on) in zip(spans, parts, strict=True)
    )
