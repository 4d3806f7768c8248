"""`rlvr predict`: what a model answers to one prompt, a file of prompts, or a task's held-out examples."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.cli.model_arguments import add_model_arguments, at_least, opened, progress
from rlvr.errors import ConfigError, UserError

if TYPE_CHECKING:
    from rlvr.build import Inference
    from rlvr.tasks.base import Task
    from rlvr.tracking.evaluations import EvaluationRecord
    from rlvr.types import Example

DESCRIPTION = """Let a model answer, greedily: one prompt (its steps are printed line by line), a file of prompts,
or held-out examples of a task (JSON lines). Episodes with tools are printed turn by turn: what the model said and
called, what came back, the answer, and whether it is right; --json gives these as JSON lines, too."""
EXAMPLE = """examples:
  rlvr predict runs/latest --prompt "3 4 + 5 *"                      steps, answer, and whether it is right
  rlvr predict runs/latest --input sums.jsonl --output answers.jsonl   lines like {"prompt": "3 4 + 5 *"}
  rlvr predict some/folder --task rpn --num-examples 20              held-out examples of a task
  rlvr predict runs/latest --num-examples 2 --retriever golden       episodes with tools, turn by turn
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `predict` to the command line."""
    parser = subparsers.add_parser("predict", help="let a model answer", description=DESCRIPTION, epilog=EXAMPLE)
    add_model_arguments(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", metavar="TEXT", help='one problem, e.g. "3 4 + 5 *"')
    what.add_argument("--input", metavar="F.jsonl", help='JSON lines with a "prompt" each')
    what.add_argument(
        "--num-examples", type=at_least(1), metavar="N", help="so many held-out examples (with --task: default 10)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict and print; the exit status."""
    if not (args.prompt is not None or args.input or args.task or args.num_examples):
        raise ConfigError(
            'rlvr predict: nothing to predict; add --prompt "3 4 + 5 *", --input F.jsonl, --num-examples N or --task T.'
        )
    if args.input and args.output and Path(args.input).resolve() == Path(args.output).resolve():
        raise ConfigError(f"--output {args.output}: is the --input too; choose another file.")
    prompts = _read_prompts(args.input) if args.input else None
    with opened(args) as inference:
        records = _predict(inference, _examples(args, inference.tasks.own, prompts))
    if args.output:
        from rlvr.tracking.evaluations import write_jsonl

        write_jsonl(args.output, records)
    is_shown = not args.json and not args.output
    if any(_has_tools(record) for record in records) and (is_shown or (args.prompt is not None and not args.json)):
        sys.stdout.write("\n".join(map(by_turn, records)))
    elif args.prompt is not None and not args.json:
        sys.stdout.write(steps(records[0]) if inference.tasks.own.name == "rpn" else answer(records[0]))
    elif args.json or not args.output:
        from rlvr.tracking.evaluations import to_json

        sys.stdout.writelines(to_json(record) + "\n" for record in records)
    return 0


def _examples(args: argparse.Namespace, task: Task, prompts: Sequence[str] | None) -> list[Example]:
    if args.prompt is not None:
        return [task.example(args.prompt)]
    if prompts is None:
        return task.eval_examples(args.num_examples or 10)
    examples = []
    for number, prompt in enumerate(prompts, start=1):
        try:
            examples.append(task.example(prompt))
        except UserError as error:
            raise UserError(f"{args.input}, prompt {number}: {error}") from error
    return examples


def _read_prompts(path: str) -> list[str]:
    """The prompts of a file of JSON lines; empty lines are skipped."""
    import json

    prompts = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                prompt = json.loads(line)["prompt"]
            except (ValueError, KeyError, TypeError):
                prompt = None
            if not isinstance(prompt, str):
                raise UserError(
                    f'{path}, line {number}: not a JSON object with a "prompt" text, e.g. {{"prompt": "3 4 +"}}.'
                )
            prompts.append(prompt)
    if not prompts:
        raise UserError(f"{path} holds no prompts: write one JSON object with a prompt on each line.")
    return prompts


def _predict(inference: Inference, examples: Sequence[Example]) -> Sequence[EvaluationRecord]:
    from rlvr.evaluation.evaluate import EVAL_SEED, attempt
    from rlvr.types import SamplingParams

    task = inference.tasks.own
    player = inference.player(task)
    sampling = SamplingParams(
        max_tokens=inference.config.rollout.max_completion_tokens,
        stop_ids=player.stop_ids,
        seed=EVAL_SEED,
        temperature=0.0,
    )
    with progress("predicting") as on_progress:
        attempts = attempt(player, task, examples, sampling, samples=(0,), on_progress=on_progress)
        return inference.run(attempts)


def steps(record: EvaluationRecord) -> str:
    """The derivation line by line, then the verdict:

    3 4 + 5 *
    = 0 5 *
    = 0
    answer 0: right
    """
    written = f"{record.prompt} {record.completions[-1]}".replace("<boe>", "").partition("<eoe>")[0]
    first, *rest = (part.strip() for part in written.split("="))
    lines = [first, *(f"= {step}" for step in rest)]
    return "\n".join([*lines, _verdict(record)]) + "\n"


def _has_tools(record: EvaluationRecord) -> bool:
    return len(record.turns) > 1 or any(turn.calls for turn in record.turns)


def answer(record: EvaluationRecord) -> str:
    """What the model wrote, then the verdict; without a known answer, the answer that was read."""
    return f"{record.completions[-1].strip()}\n{_verdict(record)}\n"


def by_turn(record: EvaluationRecord) -> str:
    """An episode with tools: what was said and called, what came back, then the verdict."""
    from rlvr.tracking.episodes import turn_lines, visible

    turns = [(turn.completion, turn.calls, turn.reply) for turn in record.turns]
    lines = ["".join(text for text, _ in line).rstrip() for line in turn_lines(turns, record.prompt)]
    return "\n".join([f"---- {visible(record.example_id)}", *lines, visible(_verdict(record))]) + "\n"


def _verdict(record: EvaluationRecord) -> str:
    from rlvr.tracking.episodes import verdict_text
    from rlvr.types import Verdict

    verdict = Verdict(answer=record.answer, correct=record.correct, failure=record.failure)
    return verdict_text(verdict, record.expected, record.stop_reason)
