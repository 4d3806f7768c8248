"""`rlvr plan`: what a run will take, before it starts."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from rlvr.cli.model_arguments import add_config_dir, at_least, note
from rlvr.progress import progress

if TYPE_CHECKING:
    from rlvr.commands.plan.body import Plan

HELP = "predict time, memory and disk of a run"
DESCRIPTION = """Predict what `rlvr train` with the same words will take: seconds of a step by stage, memory, disk, the
whole run, what bounds it, and the change that would help most. Makes a few steps of the run on this machine, for about
ten seconds or as long as small steps take, at a learning rate next to 0."""
EXAMPLE = """examples:
  rlvr plan                                             the default configuration on this machine
  rlvr plan --config-name two_hop rollout.group_size=16
  rlvr plan --config-name gsm8k model.name_or_path=PATH_OR_HUB_ID --seconds 120
  rlvr plan --config-name gsm8k model.name_or_path=PATH_OR_HUB_ID --gpus 8
  rlvr plan --json                                      one JSON line
"""
LEAST_GAIN = 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config-name",
        metavar="NAME",
        help="configuration to start from (default: rpn)",
    )
    add_config_dir(parser)
    parser.add_argument(
        "--gpus",
        type=at_least(1),
        metavar="N",
        help="devices like this one, each with its share of the prompts (default: trainer.world_size, else 1)",
    )
    parser.add_argument(
        "--seconds",
        type=at_least(1),
        default=10,
        metavar="S",
        help="time to measure (default: 10)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line on stdout")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for rlvr train")


def run(args: argparse.Namespace) -> int:
    from rlvr.config.compose import DEFAULT_CONFIG, load_config

    config = load_config(
        args.overrides,
        config_name=args.config_name or DEFAULT_CONFIG,
        config_dir=args.config_dir,
    )
    with progress("loading libraries"):
        from rlvr.commands.plan.body import plan
    found = plan(config, gpus=args.gpus, seconds=args.seconds)
    if args.json:
        print(json.dumps(plain(found)))
        return 0
    for line in found.notes:
        note(f"note: {line}")
    sys.stdout.write(table(found))
    return 0


def plain(found: Plan) -> dict[str, object]:
    """As JSON: seconds and bytes."""
    measured = found.measured
    return {
        "device": measured.device,
        "gpus": found.gpus,
        "step_s": found.step_s,
        "stages_s": found.stages,
        "bound_by": found.bound_by,
        "mean_tokens": measured.mean_tokens,
        "taught_share": measured.taught_share,
        "total_s": found.total_s,
        "range_s": found.range_s,
        "totals_s": found.totals,
        "memory_bytes": found.memory_bytes,
        "memory": measured.memory,
        "disk": found.disk,
        "gains": dict(found.gains),
        "notes": found.notes,
    }


def table(found: Plan) -> str:
    """The plan in one table."""
    from rlvr.evaluation.tables import table as aligned
    from rlvr.training.memory import size_text

    rows = [(name, duration(took), f"{took / found.step_s:.0%} of a step") for name, took in found.stages.items()]
    rows += [("a step", duration(found.step_s), f"bound by {found.bound_by}")]
    rows += [(name, duration(took), f"{took / found.total_s:.0%} of the run") for name, took in found.totals.items()]
    low, high = map(duration, found.range_s)
    rows += [
        (
            "the run",
            duration(found.total_s),
            f"{low} to {high}; {found.measured.mean_tokens:.3g} tokens a turn",
        )
    ]
    rows += [("memory", size_text(found.memory_bytes), "peak of a process")]
    disk = ", ".join(f"{name} {size_text(size)}" for name, size in found.disk.items())
    rows += [("disk", size_text(sum(found.disk.values())), disk)]
    lines = aligned((found.measured.device, "", ""), rows, markdown=False)
    best = [f"{name} ({gain:.0%} less)" for name, gain in found.gains if gain > LEAST_GAIN]
    return lines + f"would help most: {best[0] if best else 'nothing that was tried'}\n"


def duration(seconds: float) -> str:
    """`0.04 s`, `42 s`, `3:05 min`, `2:10 h`."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds >= 0.0005 else "0 s"
    unit, size = ("min", 60) if seconds < 3600 else ("h", 3600)
    return f"{int(seconds // size):,}:{int(seconds % size * 60 / size):02} {unit}"
