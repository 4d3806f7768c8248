"""What `eval` and `predict` share: which model on which task, and progress on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.errors import ConfigError

if TYPE_CHECKING:
    from rlvr.build import Inference
    from rlvr.config.schema import Config

MODEL_HELP = "run folder, checkpoint folder, model folder or Hub id"


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, --task, --retriever, --set, --output and --json."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--task",
        metavar="T",
        help="configuration or task whose settings to use (default: those of MODEL's own run)",
    )
    parser.add_argument(
        "--retriever",
        metavar="R",
        help="how tasks that search do it: bm25, semantic[/MODEL], hybrid, golden, rerank or search",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, e.g. --set rollout.max_completion_tokens=40; may be repeated",
    )
    parser.add_argument("--output", metavar="FILE", help="also write what the model said, one JSON line a completion")
    parser.add_argument("--json", action="store_true", help="print JSON lines on stdout")


@contextmanager
def opened(args: argparse.Namespace, more: Sequence[str] = ()) -> Iterator[Inference]:
    """The model that the arguments name. torch loads here, after the arguments were found to make sense."""
    import logging

    from transformers.utils.logging import disable_progress_bar

    from rlvr.build import open_inference
    from rlvr.tracking.evaluations import check_writable

    if args.output:
        check_writable(args.output)
    disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # the failure is told once, in a sentence
    if not Path(args.model).exists() and not Path(args.model).is_absolute():
        print(f"looking for {args.model} on the Hub", file=sys.stderr)
    with ExitStack() as stack:
        try:
            config = settings_of(args, [*args.set, *more])
            inference = stack.enter_context(open_inference(args.model, config))
        except ConfigError as error:
            # compose speaks of the option that names a configuration for `rlvr train`
            raise ConfigError(str(error).replace("--config-name", "--task")) from error
        for line in inference.notes:
            note(line)
        yield inference


def settings_of(args: argparse.Namespace, changes: Sequence[str]) -> Config:
    """The settings to try the model with; ConfigError for a retriever where nothing is searched."""
    from rlvr.build import inference_config
    from rlvr.config.lines import override_lines

    if args.retriever is None:
        return inference_config(args.model, changes, task=args.task)
    task = inference_config(args.model, [], task=args.task).task
    if not hasattr(task, "retriever"):
        raise ConfigError(
            f"--retriever {args.retriever}: task {task.name} searches no documents; leave this out, or name a task "
            "that does, e.g. --task musique."
        )
    return inference_config(args.model, [*changes, *override_lines({"task.retriever": args.retriever})], task=args.task)


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: a whole number, `least` or more."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number of {least} or more")
        return int(text)

    return parse


def note(line: str) -> None:
    """What a user should know beside the result."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while the block runs, if stderr is a terminal; gives `on_progress(done, total)`."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal) as bar:
        line = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(line, completed=done, total=total)
