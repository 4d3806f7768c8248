"""Shared by commands: model options, the model with its settings, notes and progress on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.cli.signals import ended_by_sigterm
from rlvr.errors import ConfigError, UserError, suggestion
from rlvr.places import ENDPOINT
from rlvr.printable import printable
from rlvr.progress import progress

if TYPE_CHECKING:
    from rlvr.config import Config
    from rlvr.records.checks import Check
    from rlvr.run.inference import Inference
    from rlvr.tasks.base import Reads

MODEL_HERE = "run folder, checkpoint folder, model folder, GGUF file, Hub id or smollm2"
MODEL_HELP = f"{MODEL_HERE}, or an endpoint: openai:ADDRESS#NAME"
SPLITS = {"test": "test", "validation": "test", "train": "train"}
"""`validation` means `test`: a task has one held-out set; its settings select the file or split."""
OF_TRAINING = (
    "algorithm", "warm_start", "trainer", "engine", "tracker", "name", "run_dir", "resume", "debug",
    "rollout.prompts_per_step", "rollout.group_size", "rollout.max_staleness",
    "evaluation.every", "evaluation.headline",
)  # fmt: skip
"""Settings and sections that only `rlvr train` reads; see `OF_BOTH`."""
OF_BOTH = ("trainer.device", "trainer.precision", "trainer.num_threads", "engine.max_batch_size", "engine.dtype")


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-dir", metavar="DIR", help="folder with your own configurations, groups and modules")


def add_set(
    parser: argparse.ArgumentParser, what: str = "a setting", example: str = "rollout.max_completion_tokens=40"
) -> None:
    told = f"change {what}, e.g. --set {example}; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=told)


def add_counts(parser: argparse.ArgumentParser) -> None:
    for option, metavar, least in (("--num-examples", "N", 1), ("--samples-per-example", "K", 0)):
        key = option.removeprefix("--").replace("-", "_")
        also = ["--limit"] if key == "num_examples" else []  # its name in other evaluators
        parser.add_argument(
            option, *also, dest=key, type=at_least(least), metavar=metavar, help=f"default: evaluation.{key}"
        )


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add MODEL and the options of its evaluation."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--task",
        metavar="T",
        help="configuration or task whose settings to use (default: those of MODEL's own run); of a run that evaluates "
        "several tasks one of them",
    )
    add_config_dir(parser)
    parser.add_argument(
        "--retriever",
        metavar="R",
        help="retriever of search tasks: bm25, filtered, semantic[/MODEL], hybrid, golden, rerank or search",
    )
    add_set(parser)
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="also write every completion as a JSON line as soon as it is finished; the same command resumes it",
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines on stdout")
    parser.add_argument(
        "--split",
        type=_split,
        default="test",
        metavar="S",
        help="test: the held-out examples (default; validation says the same); train: the training stream",
    )
    for option in ("--temperature", "--top-p"):
        parser.add_argument(option, type=float, metavar="X", help="of samples; default: the run's own")


def check_used(lines: Sequence[str]) -> None:
    """ConfigError for a --set without effect."""
    for line in lines:
        key = line.lstrip("+~").partition("=")[0]
        if key not in OF_BOTH and any(f"{key}.".startswith(f"{name}.") for name in OF_TRAINING):
            raise ConfigError(f"--set {line}: only rlvr train reads {key}; leave it out.")


@contextmanager
def opened(
    args: argparse.Namespace,
    lines: Sequence[str] = (),
    *,
    samples: str,
    sampled: Callable[[Config], bool],
    own_words: bool = False,
    before: Inference | None = None,
) -> Iterator[Inference]:
    """Open the model of the arguments with the settings in `lines`. Loads torch only after checking the arguments.
    `samples` is the option that enables sampling, `sampled` tells whether it is enabled. With `own_words` the prompts
    are the user's, and no data are read; training data are read only for their own split. The model of the inference
    `before` is used again, and its notes are not repeated.

    SIGTERM ends the block as Ctrl-C does, and the command exits with 143.
    """
    from rlvr.models.hub import is_local
    from rlvr.records.graded import check_writable

    check_used(args.set)
    given = {key: getattr(args, key) for key in ("temperature", "top_p") if getattr(args, key) is not None}
    config = settings_of(args, [*args.set, *lines, *(f"rollout.{key}={value}" for key, value in given.items())])
    if given and not sampled(config):
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise ConfigError(f"{option}: nothing is sampled, and greedy answers have none; add {samples} K.")
    if args.output:
        check_writable(args.output)
    if not (args.model.startswith(ENDPOINT) or Path(args.model).is_absolute() or is_local(args.model)):
        note(f"looking for {args.model} on the Hub")
    hush()
    with progress("loading libraries"):
        from rlvr.run.inference import open_inference

    reads: Reads = "nothing" if own_words else "all" if args.split == "train" else "held_out"
    model, known = (args.model, []) if before is None else (before.loaded, before.notes)
    with ended_by_sigterm(), open_inference(model, config, reads=reads) as inference:
        for line in inference.notes:
            if line not in known:
                note(line)
        try:
            yield inference
        except (KeyboardInterrupt, SystemExit):
            if args.output:
                note(f"rlvr: what is done is kept in {args.output}.partial: the same command resumes from there")
            raise


def hush() -> None:
    """Silence progress bars and failure logs of libraries: we report failures once."""
    import logging

    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def settings_of(args: argparse.Namespace, changes: Sequence[str]) -> Config:
    """The settings to evaluate the model with."""
    from rlvr.lines import override_lines
    from rlvr.run.sources import inference_config

    lines = override_lines({} if args.retriever is None else {"task.retriever": args.retriever})
    return inference_config(args.model, [*changes, *lines], task=args.task, config_dir=args.config_dir)


def _split(text: str) -> str:
    """An argparse type: a name of `SPLITS`, as in the records."""
    if text not in SPLITS:
        raise argparse.ArgumentTypeError(f"there is no split {text}; {suggestion(text, list(SPLITS))}")
    return SPLITS[text]


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: an integer of at least `least`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number of {least} or more")
        return int(text)

    return parse


def port(text: str) -> int:
    """An argparse type."""
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text} is no port, 0 to 65535")
    return int(text)


def note(line: str) -> None:
    """Print a note on stderr, with control characters escaped."""
    print(printable(line), file=sys.stderr, flush=True)


def save_checks(target: str, kind: str, checks: Iterable[Check]) -> None:
    """Write what was found about a run beside it, for its report; a place that cannot be written to is a note."""
    from rlvr.records.checks import write_checks
    from rlvr.run.sources import run_of

    if (run := run_of(Path(target))) is None:
        return
    try:
        note(f"note: kept in {write_checks(run, kind, checks)}; rlvr report {target} shows it")
    except UserError as error:
        note(f"note: {error}")
