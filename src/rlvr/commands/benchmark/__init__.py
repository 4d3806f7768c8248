"""`rlvr benchmark`: models x tasks x retrievers in one table."""

import argparse
import json
import sys
from pathlib import Path

from rlvr.cli.model_arguments import MODEL_HELP, add_config_dir, add_counts, add_set, check_used, hush, note
from rlvr.errors import ConfigError
from rlvr.progress import progress

HELP = "evaluate many models on many tasks"
DESCRIPTION = """Evaluate every model on every task, with every retriever for search tasks. Each model is loaded once.
All results are kept in DIR: after a kill the same command resumes and retries failed cells; models, tasks and
retrievers can be added. DIR/summary.md, .csv and .json hold the table."""
EXAMPLE = """examples:
  rlvr benchmark --models runs/a,runs/b --tasks rpn --output-dir results
  rlvr benchmark --models runs/a,Qwen/Qwen3-0.6B --tasks gsm8k,musique --retrievers bm25,hybrid \\
      --num-examples 500 --samples-per-example 4 --output-dir results
  rlvr benchmark --models openai:http://127.0.0.1:8000/v1#b --output-dir results   another model, same tasks
  rlvr benchmark --output-dir results                                              resume
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = {"--models": f"each a {MODEL_HELP}", "--tasks": "configurations or tasks", "--retrievers": "ways to search"}
    for option, what in names.items():
        parser.add_argument(option, type=_names, default=(), metavar="A,B", help=f"{what}, separated by commas")
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="folder of all results")
    add_config_dir(parser)
    add_counts(parser)
    add_set(parser, "a setting of every task")
    parser.add_argument("--json", action="store_true", help="print one JSON line per cell and comparison")


def _names(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name between its commas")
    return tuple(dict.fromkeys(names))


def run(args: argparse.Namespace) -> int:
    check_used(args.set)
    folder = Path(args.output_dir)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--output-dir {folder}: is no folder; choose another one.")
    with progress("loading libraries"):
        from rlvr.commands.benchmark.body import BenchmarkPlan, benchmark

    hush()
    asked = BenchmarkPlan(
        models=args.models,
        tasks=args.tasks,
        retrievers=args.retrievers,
        num_examples=args.num_examples,
        samples_per_example=args.samples_per_example,
        changes=tuple(args.set),
        config_dir=args.config_dir,
    )
    result = benchmark(folder, asked, show=note, bar=progress)
    if args.json:
        sys.stdout.writelines(json.dumps(line) + "\n" for line in result.lines())
    else:
        sys.stdout.write(result.table())
    if result.failed:
        names = ", ".join(cell.name for cell in result.failed)
        note(f"{len(result.failed)} of {len(result.cells)} cells failed; the same command tries them again: {names}")
    return int(bool(result.failed))
