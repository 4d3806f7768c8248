"""What `eval` and `predict` share: which model on which task, which examples, and progress on stderr."""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.cli.signals import ended_by_sigterm
from rlvr.cli.streaming import shown
from rlvr.errors import ConfigError

if TYPE_CHECKING:
    from rlvr.app import Inference
    from rlvr.config import Config

MODEL_HELP = "run folder, checkpoint folder, model folder, Hub id, or an endpoint: openai:ADDRESS#NAME"
SPLITS = {"test": "test", "validation": "test", "train": "train"}
"""`validation` says the same as `test`: a task has one held-out set, and its settings say which file or split it is."""
ENDPOINT = "openai:"
OF_TRAINING = (
    "algorithm", "warm_start", "trainer", "engine", "tracker", "name", "run_dir", "resume", "debug",
    "rollout.prompts_per_step", "rollout.group_size", "rollout.max_staleness",
    "evaluation.every", "evaluation.headline",
)  # fmt: skip
"""Settings, and sections of them, that nothing but `rlvr train` reads; see `OF_BOTH`."""
OF_BOTH = ("trainer.device", "trainer.precision", "trainer.num_threads", "engine.max_batch_size")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, --task, --retriever, --set, --output and --json."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--task",
        metavar="T",
        help="configuration or task whose settings to use (default: those of MODEL's own run); of a run that evaluates "
        "several tasks one of them",
    )
    parser.add_argument("--config-dir", metavar="DIR", help="folder with your own configurations and groups")
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
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="also write what the model said, one JSON line a completion, as it comes; the same command goes on from "
        "there",
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines on stdout")


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """--split, --temperature and --top-p."""
    parser.add_argument(
        "--split",
        type=split,
        default="test",
        metavar="S",
        help="test: the held-out examples (default; validation says the same); train: the training stream",
    )
    parser.add_argument(
        "--temperature", type=_number(above=0, most=math.inf), metavar="X", help="of samples; default: the run's own"
    )
    parser.add_argument(
        "--top-p", type=_number(above=0, most=1), metavar="X", help="of samples; default: the run's own"
    )


def sampling_changes(args: argparse.Namespace, num_samples: str, *, sampled: Callable[[Config], bool]) -> Changes:
    """The settings that --temperature and --top-p change; ConfigError where nothing is sampled.

    `num_samples` is the option that has something sampled, and `sampled` tells whether it has.
    """
    given = {"temperature": args.temperature, "top_p": args.top_p}
    lines = [f"rollout.{key}={value}" for key, value in given.items() if value is not None]

    def check(config: Config) -> None:
        if lines and not sampled(config):
            option = "--temperature" if args.temperature is not None else "--top-p"
            raise ConfigError(f"{option}: nothing is sampled, and greedy answers have none; add {num_samples} K.")

    return Changes(lines=lines, check=check)


def check_used(lines: Sequence[str]) -> None:
    """ConfigError for a --set that would have no effect."""
    for line in lines:
        key = line.lstrip("+~").partition("=")[0]
        if key not in OF_BOTH and any(f"{key}.".startswith(f"{name}.") for name in OF_TRAINING):
            raise ConfigError(f"--set {line}: only rlvr train reads {key}; leave it out.")


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Settings that options change, and what has to hold of all settings then, else `check` raises ConfigError."""

    lines: Sequence[str] = ()
    check: Callable[[Config], None] = lambda config: None


@contextmanager
def opened(args: argparse.Namespace, changes: Changes) -> Iterator[Inference]:
    """The model that the arguments name. torch loads here, after the arguments were found to make sense.

    SIGTERM ends the block as Ctrl-C does, and then the command with status 143.
    """
    import logging

    from transformers.utils.logging import disable_progress_bar

    from rlvr.app import open_inference
    from rlvr.tracking.evaluations import check_writable

    check_used(args.set)
    if args.output:
        check_writable(args.output)
    disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # the failure is told once, in a sentence
    is_local = args.model.startswith(ENDPOINT) or Path(args.model).exists() or Path(args.model).is_absolute()
    if not is_local:
        note(f"looking for {args.model} on the Hub")
    with ExitStack() as stack:
        stack.enter_context(ended_by_sigterm())
        config = settings_of(args, [*args.set, *changes.lines])
        changes.check(config)
        inference = stack.enter_context(open_inference(args.model, config))
        for line in inference.notes:
            note(line)
        try:
            yield inference
        except (KeyboardInterrupt, SystemExit):
            if args.output:
                note(f"rlvr: what is done is kept in {args.output}.partial: the same command goes on from there")
            raise


def settings_of(args: argparse.Namespace, changes: Sequence[str]) -> Config:
    """The settings to try the model with; ConfigError for a retriever where nothing is searched."""
    from rlvr.app import inference_config
    from rlvr.lines import override_lines
    from rlvr.retrieval.retriever import find_retriever
    from rlvr.retrieval.settings import RetrievalSettings

    asked = partial(inference_config, args.model, task=args.task, config_dir=args.config_dir)
    if args.retriever is None:
        return asked(changes)
    task = asked([]).task
    if not hasattr(task, "retriever"):
        raise ConfigError(
            f"--retriever {args.retriever}: task {task.name} searches no documents; leave this out, or name a task "
            "that does, e.g. --task musique."
        )
    find_retriever(args.retriever, RetrievalSettings())
    return asked([*changes, *override_lines({"task.retriever": args.retriever})])


def split(text: str) -> str:
    """An argparse type: a name of `SPLITS`, as the records call it."""
    if text not in SPLITS:
        near = difflib.get_close_matches(text, SPLITS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(SPLITS)}"
        raise argparse.ArgumentTypeError(f"there is no split {text}; {hint}")
    return SPLITS[text]


def _number(*, above: float, most: float) -> Callable[[str], float]:
    """An argparse type: a number above `above`, `most` or less."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (above < value <= most and math.isfinite(value)):
            limit = f", at most {most:g}" if math.isfinite(most) else ""
            raise argparse.ArgumentTypeError(f"{text} is not a number above {above:g}{limit}")
        return value

    return parse


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: a whole number, `least` or more."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number of {least} or more")
        return int(text)

    return parse


def note(line: str) -> None:
    """What a user should know beside the result; names out of files and from endpoints are shown, never interpreted."""
    print(shown(line), file=sys.stderr, flush=True)


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while the block runs, if stderr is a terminal; gives `on_progress(done, total)`."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal) as bar:
        line = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(line, completed=done, total=total)
