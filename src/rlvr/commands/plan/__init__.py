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
    forecast = plan(config, gpus=args.gpus, seconds=args.seconds)
    if args.json:
        print(json.dumps(plain(forecast)))
        return 0
    for line in forecast.notes:
        note(f"note: {line}")
    sys.stdout.write(table(forecast))
    return 0


def plain(forecast: Plan) -> dict[str, object]:
    """As JSON: seconds and bytes."""
    measured = forecast.measured
    return {
        "device": measured.device,
        "gpus": forecast.gpus,
        "step_s": forecast.step_s,
        "stages_s": forecast.stages,
        "bound_by": forecast.bound_by,
        "mean_tokens": measured.mean_tokens,
        "taught_share": measured.taught_share,
        "total_s": forecast.total_s,
        "range_s": forecast.range_s,
        "totals_s": forecast.totals,
        "memory_bytes": forecast.memory_bytes,
        "memory": measured.memory,
        "disk": forecast.disk,
        "gains": dict(forecast.gains),
        "notes": forecast.notes,
    }


def table(forecast: Plan) -> str:
    """The plan in one table."""
    from rlvr.evaluation.tables import table as aligned
    from rlvr.training.memory import size_text

    rows = [(name, duration(took), f"{took / forecast.step_s:.0%} of a step") for name, took in forecast.stages.items()]
    rows += [("a step", duration(forecast.step_s), f"bound by {forecast.bound_by}")]
    rows += [
        (name, duration(took), f"{took / forecast.total_s:.0%} of the run") for name, took in forecast.totals.items()
    ]
    low, high = map(duration, forecast.range_s)
    rows += [
        (
            "the run",
            duration(forecast.total_s),
            f"{low} to {high}; {forecast.measured.mean_tokens:.3g} tokens a turn",
        )
    ]
    rows += [("memory", size_text(forecast.memory_bytes), "peak of a process")]
    disk = ", ".join(f"{name} {size_text(size)}" for name, size in forecast.disk.items())
    rows += [("disk", size_text(sum(forecast.disk.values())), disk)]
    lines = aligned((forecast.measured.device, "", ""), rows, markdown=False)
    best = [f"{name} ({gain:.0%} less)" for name, gain in forecast.gains if gain > LEAST_GAIN]
    return lines + f"would help most: {best[0] if best else 'nothing that was tried'}\n"


def duration(seconds: float) -> str:
    """`0.04 s`, `42 s`, `3:05 min`, `2:10 h`."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds >= 0.0005 else "0 s"
    unit, size = ("min", 60) if seconds < 3600 else ("h", 3600)
    return f"{int(seconds // size):,}:{int(seconds % size * 60 / size):02} {unit}"
