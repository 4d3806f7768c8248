"""`rlvr predict`: a model's answers to one prompt, a file of prompts, or a task's held-out examples."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlvr.cli.model_arguments import add_model_arguments, at_least, note, opened
from rlvr.errors import ConfigError, UserError
from rlvr.printable import printable
from rlvr.progress import progress

if TYPE_CHECKING:
    from rlvr.chat.rendering import Chat
    from rlvr.core.engine.base import Engine, OnToken
    from rlvr.evaluation.players import Player
    from rlvr.records.graded import EvaluationRecord
    from rlvr.run.inference import Inference
    from rlvr.types import Completion, Example, SamplingParams

BATCH_SIZE = 256
HELP = "sample answers from a model"
DESCRIPTION = """Answer one prompt (on a terminal token by token as it is sampled), a file of prompts, or examples of a
task (JSON lines). Greedy, or with --num-samples K sampled answers per prompt. Episodes with tools are printed turn by
turn: completion, tool calls, tool replies, answer, and whether it is right; --json gives these as JSON lines."""
EXAMPLE = """examples:
  rlvr predict runs/latest --prompt "3 4 + 5 *"                      steps, answer, and whether it is right
  rlvr predict runs/latest --input sums.jsonl --output answers.jsonl   lines like {"prompt": "3 4 + 5 *"}
  rlvr predict some/folder --task rpn --num-examples 20              held-out examples of a task
  rlvr predict runs/latest --num-examples 2 --retriever golden       episodes with tools, turn by turn
  rlvr predict runs/latest --prompt "3 4 +" --num-samples 4 --temperature 0.7
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", metavar="TEXT", help='one problem, e.g. "3 4 + 5 *"')
    what.add_argument("--input", metavar="F.jsonl", help='JSON lines with a "prompt" or "question"')
    what.add_argument(
        "--num-examples", type=at_least(1), metavar="N", help="examples of the split (with --task: default 10)"
    )
    parser.add_argument(
        "--num-samples", type=at_least(1), metavar="K", help="K sampled answers per prompt (default: one greedy answer)"
    )
    parser.add_argument(
        "--batch-size",
        type=at_least(1),
        metavar="N",
        help=f"concurrent episodes (default: {BATCH_SIZE})",
    )


def run(args: argparse.Namespace) -> int:
    if not (args.prompt is not None or args.input or args.task or args.num_examples):
        raise ConfigError(
            'rlvr predict: nothing to predict; add --prompt "3 4 + 5 *", --input F.jsonl, --num-examples N or --task T.'
        )
    if args.input and args.output and Path(args.input).resolve() == Path(args.output).resolve():
        raise ConfigError(f"--output {args.output}: is also the --input; choose another file.")
    prompts = [args.prompt] if args.prompt is not None else _read_prompts(args.input) if args.input else None
    is_sampled = args.num_samples is not None
    with opened(
        args, samples="--num-samples", sampled=lambda _: is_sampled, own_words=prompts is not None
    ) as inference:
        examples = _examples(args, inference, prompts)
        one = args.prompt is not None and args.num_samples in (None, 1) and not args.json and not args.output
        live = one and sys.stdout.isatty() and inference.engine is not None  # print tokens as they are sampled
        records = _predict(args, inference, examples, live=live)
        _print(args, records, rpn=inference.tasks.own.name == "rpn", live=live)
    return 0


def _print(args: argparse.Namespace, records: Sequence[EvaluationRecord], *, rpn: bool, live: bool) -> None:
    """Print the records; for an already streamed one only the grade."""
    from rlvr.tracking.episodes import by_turn, grade_line

    if args.output and (args.prompt is None and not args.json):
        return
    if live:
        sys.stdout.write(f"\n{printable(grade_line(records[0]))}\n")
    elif not args.json and any(len(record.turns) > 1 or any(turn.calls for turn in record.turns) for record in records):
        sys.stdout.write("\n".join(map(by_turn, records)))
    elif not args.json and args.prompt is not None:
        sys.stdout.write("\n".join(steps(record) if rpn else answer(record) for record in records))
    else:
        from rlvr.records.jsonl import to_line

        sys.stdout.write(b"".join(map(to_line, records)).decode("utf-8", errors="replace"))


def _examples(args: argparse.Namespace, inference: Inference, prompts: Sequence[str] | None) -> list[Example]:
    from rlvr.evaluation.evaluate import examples_of

    task = inference.tasks.own
    return (
        examples_of(task, args.num_examples or 10, args.split) if prompts is None else list(map(task.example, prompts))
    )


def _read_prompts(path: str) -> list[str]:
    """The prompts of a JSON-lines file; empty lines are skipped."""
    prompts = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8", errors="replace").split("\n"), start=1):
        if not line.strip():
            continue
        prompt = None
        with suppress(ValueError, AttributeError, RecursionError):
            row = json.loads(line)
            prompt = row.get("prompt", row.get("question"))
        if not isinstance(prompt, str):
            raise UserError(f'{path}, line {number}: not a JSON object with a "prompt" or "question".')
        prompts.append(prompt)
    return prompts


def _predict(
    args: argparse.Namespace, inference: Inference, examples: Sequence[Example], *, live: bool
) -> Sequence[EvaluationRecord]:
    """All records, appended to --output as they finish; existing ones are not repeated."""
    from rlvr.evaluation.evaluate import Session, check_answered, play_set
    from rlvr.evaluation.records import RecordFile
    from rlvr.run.evaluate_sets import origin_of

    task = inference.tasks.own
    player = _live_player(inference, examples[0]) if live else inference.player(task)
    origin = origin_of(inference, task, "prompts" if args.prompt is not None or args.input else args.split)
    samples = (0,) if args.num_samples is None else range(1, args.num_samples + 1)
    with ExitStack() as stack:
        file = stack.enter_context(RecordFile(Path(args.output), {origin.settings})) if args.output else None
        for problem in file.problems if file else ():
            note(problem)
        session = Session(
            origin=origin,
            file=file,
            on_progress=None if live else stack.enter_context(progress("predicting")),
            max_running=args.batch_size or BATCH_SIZE,
        )
        sampling = inference.config.rollout.params(player.stop_ids)
        records = asyncio.run(play_set(player, task, examples, sampling, samples, session))
        if file:
            file.finish(records)
    check_answered(records)
    return records


def _live_player(inference: Inference, example: Example) -> Player:
    """A player that streams sampled text to stdout."""
    from rlvr.evaluation.players import LocalPlayer

    player = inference.player(inference.tasks.own)
    assert isinstance(player, LocalPlayer)
    is_rpn = inference.tasks.own.name == "rpn"
    if is_rpn:
        sys.stdout.write(example.metadata["expression"] + "\n= ")

    def write(text: str) -> None:
        if is_rpn:  # one line per step
            text = text.replace(" =", "\n=").replace("<eoe>", "")
        sys.stdout.write(text)
        sys.stdout.flush()

    return replace(player, engine=cast(Any, StreamedEngine(player.engine, cast("Chat", player.chat), write)))


class StreamedEngine:
    """An engine that writes sampled tokens, and replies between turns, as they come. Control characters are escaped."""

    def __init__(self, engine: Engine, chat: Chat, write: Callable[[str], None]) -> None:
        self._engine, self._chat, self._write = engine, chat, write
        self._known = 0  # tokens of the episode already shown or part of a prompt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)  # delegate everything else

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        """Sample with the engine and write token by token, never half a character."""
        from rlvr.serve.sampling import Transcript

        if self._known:
            self._write(f"\n{printable(self._chat.decode(prompt_ids[self._known :]))}\n")
        transcript = Transcript(self._chat.stream())

        def add(token: int, logprob: float) -> None:
            transcript.add(token)
            self._write(printable(transcript.take()))
            if on_token is not None:
                on_token(token, logprob)

        completion = await self._engine.generate(prompt_ids, sampling, session=session, on_token=add)
        transcript.finish()
        self._write(printable(transcript.take()))
        self._known = len(prompt_ids) + len(completion.token_ids)
        return completion


def steps(record: EvaluationRecord) -> str:
    """The derivation line by line, then the grade:

    3 4 + 5 *
    = 0 5 *
    = 0
    answer 0: right
    """
    from rlvr.tracking.episodes import grade_line

    written = f"{record.prompt} {_last_words(record)}".replace("<boe>", "").partition("<eoe>")[0]
    first, *rest = (part.strip() for part in written.split("="))
    lines = [first, *(f"= {step}" for step in rest)]
    return printable("\n".join([*lines, grade_line(record)]) + "\n")


def answer(record: EvaluationRecord) -> str:
    from rlvr.tracking.episodes import grade_line

    return printable(f"{_last_words(record).strip()}\n{grade_line(record)}\n")


def _last_words(record: EvaluationRecord) -> str:
    return record.completions[-1] if record.turns else ""
