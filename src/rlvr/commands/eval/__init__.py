"""`rlvr eval`: held-out accuracy of a model with its interval."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.cli.model_arguments import add_counts, add_model_arguments, at_least, note, opened, settings_of
from rlvr.progress import progress

if TYPE_CHECKING:
    from rlvr.evaluation.summary import EvaluationResult
    from rlvr.records.graded import EvaluationRecord
    from rlvr.run.inference import Inference

HELP = "evaluate a model"
DESCRIPTION = """Evaluate a model on held-out examples: greedy accuracy and, with samples, avg@k, pass@k and maj@k.
Every score has a 95 % interval. The grade is the task's metric, not the training reward."""
EXAMPLE = """examples:
  rlvr eval runs/latest                                   greedy accuracy on the run's own task
  rlvr eval runs/latest --samples-per-example 8           also sampled accuracy, pass@k and maj@8
  rlvr eval runs/latest/warm_start --num-examples 1000    the model before RL
  rlvr eval some/folder --task rpn --json                 any model, as one JSON line
  rlvr eval some/folder --task musique --retriever hybrid   with another retriever
  rlvr eval openai:http://127.0.0.1:8000/v1#NAME --task gsm8k   a model behind an endpoint (key: OPENAI_API_KEY)
  rlvr eval some/folder --task gsm8k --few-shot 0,1,2,4   with 0, 1, 2, 4 worked examples in the prompt, compared
  rlvr eval runs/latest --output F.jsonl --verbose 5      keep every completion; show 5 that failed
"""
SHOWN_FAILURES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_counts(parser)
    parser.add_argument(
        "--few-shot",
        type=_numbers,
        metavar="K,...",
        help="evaluate with each of these values of prompt.few_shot, and compare the others with the first on the same "
        "questions",
    )
    parser.add_argument(
        "--verbose",
        type=at_least(1),
        nargs="?",
        const=SHOWN_FAILURES,
        metavar="N",
        help=f"print N incorrect episodes on stderr (default: {SHOWN_FAILURES})",
    )


def run(args: argparse.Namespace) -> int:
    if args.few_shot is not None:
        return _by_shots(args)
    inference, results = evaluated(args, args.output)
    for task, result in results.items():
        if args.json:
            print(json.dumps({"model": inference.loaded.source, "task": task, "split": args.split, **result.metrics}))
        else:
            sys.stdout.write(table(inference.loaded.source, task, args.split, result.metrics))
    return 0


def evaluated(
    args: argparse.Namespace, output: str | None, more: Sequence[str] = (), before: Inference | None = None
) -> tuple[Inference, dict[str, EvaluationResult]]:
    """The results by task name, with `more` settings than the arguments have, of the model of `before` if it is given;
    with `output` the records are kept there."""
    chosen = {"num_examples": args.num_examples, "samples_per_example": args.samples_per_example}
    lines = [*(f"evaluation.{key}={value}" for key, value in chosen.items() if value is not None), *more]
    sampled = attrgetter("evaluation.samples_per_example")
    with opened(args, lines, samples="--samples-per-example", sampled=sampled, before=before) as inference:
        from rlvr.run.evaluate_sets import evaluate_into

        path = None if output is None else Path(output)
        with progress("evaluating") as on_progress:
            results = evaluate_into(inference, path, split=args.split, on_progress=on_progress, on_note=note)
    if args.verbose is not None:
        sys.stderr.write(failures([record for result in results.values() for record in result.records], args.verbose))
    return inference, results


def _by_shots(args: argparse.Namespace) -> int:
    """One evaluation for each number of worked examples, all with the model that the first one loads."""
    settings_of(args, [*args.set, f"prompt.few_shot={max(args.few_shot)}"])  # refused before anything is evaluated
    before: Inference | None = None
    by_task: dict[str, dict[int, EvaluationResult]] = {}
    for shots in args.few_shot:
        output = args.output and str(_beside(Path(args.output), shots))
        before, results = evaluated(args, output, [f"prompt.few_shot={shots}"], before)
        for task, result in results.items():
            by_task.setdefault(task, {})[shots] = result
    from rlvr.commands.eval.few_shot import lines_of, table_of

    assert before is not None, "an empty list is no argument"
    for task, results in by_task.items():
        source = before.loaded.source
        if args.json:
            for line in lines_of(results):
                print(json.dumps({"model": source, "task": task, "split": args.split, **line}))
        else:
            sys.stdout.write(table_of(f"{source} on {task}, by worked examples in the prompt", task, results))
    return 0


def _beside(output: Path, shots: int) -> Path:
    """`F.jsonl` -> `F_2_shot.jsonl`: records of other prompts are other records."""
    return output.with_name(f"{output.stem}_{shots}_shot{output.suffix}")


def _numbers(text: str) -> tuple[int, ...]:
    """An argparse type: `0,1,4`, each once."""
    found = tuple(map(at_least(0), text.split(",")))
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text} has a number twice")
    return found


def failures(records: Sequence[EvaluationRecord], limit: int) -> str:
    """The first `limit` incorrect episodes, greedy ones first: prompt, completion, gold answer, reason.

    Model output is escaped, and cut if long.
    """
    from rlvr.tracking.episodes import by_turn

    wrong = sorted((record for record in records if not record.correct), key=lambda record: record.sample_index > 0)
    shown = [by_turn(record) for record in wrong[:limit]]
    more = [f"... and {len(wrong) - limit:,} more\n"] if len(wrong) > limit else []
    return "\n".join([*shown, *more]) if wrong else "every answer was right\n"


def table(source: str, task: str, split: str, metrics: Mapping[str, float]) -> str:
    """The metrics as text: scores in percent with interval, other metrics, then scores by kind of example."""
    from rlvr.evaluation.tables import number, score_name

    values = {name.removeprefix(f"eval/{task}/"): value for name, value in metrics.items()}
    num, kind = values.pop("num_examples"), "held-out" if split == "test" else "training"
    lines = [
        f"{source} on {task}, {num:.0f} {kind} example{'' if num == 1 else 's'}",
        f"{'':32}{'':>8}   95 % interval",
    ]
    scores = [name for name in values if f"{name}_low" in values]
    for name in scores:
        value, low, high = values.pop(name), values.pop(f"{name}_low"), values.pop(f"{name}_high")
        lines.append(f"{score_name(name):32}{value:>8.1%}   {low:.1%} to {high:.1%}")
    kinds = [name.removeprefix("accuracy_") for name in scores if name.startswith("accuracy_")]
    rows = {name: [values.get(f"{name}_{kind}") for kind in kinds] for name in values}
    rows = {name: row for name, row in rows.items() if any(value is not None for value in row)}
    of_kinds = {f"{name}_{kind}" for name in rows for kind in kinds}
    plain = {name: value for name, value in values.items() if name not in of_kinds}
    lines += [f"{score_name(name):32}{number(name, value):>8}" for name, value in plain.items()]
    if rows:  # one column per kind of example: `part citation   0.40   0.25`
        width = max(6, *(len(score_name(kind)) for kind in kinds))
        lines += ["", f"{'':32}" + "  ".join(score_name(kind).rjust(width) for kind in kinds)]
        for name, row in rows.items():
            cells = ["" if value is None else number(name, value) for value in row]
            lines.append(f"{score_name(name):32}" + "  ".join(cell.rjust(width) for cell in cells).rstrip())
    return "\n".join(lines) + "\n"
