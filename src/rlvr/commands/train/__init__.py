"""`rlvr train`: composes a configuration and trains, once or for every point of a sweep."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from shlex import quote
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from rlvr import imports
from rlvr.cli.model_arguments import add_config_dir
from rlvr.errors import ConfigError
from rlvr.lines import resuming
from rlvr.progress import is_terminal, progress, wrapped
from rlvr.records.files import PRUNED
from rlvr.scale.launch import check_launch, errors_once, is_local_main_process, launcher, num_processes

if TYPE_CHECKING:
    from rlvr.commands.train.body import TrainResult
    from rlvr.config import Config
    from rlvr.search.pruning import Pruner

HELP = "train a model"
DESCRIPTION = """Train a model from a configuration. The default configuration is `rpn`, arithmetic on this machine."""
EXAMPLE = """examples:
  rlvr train                                            the default: a minute on a CPU
  rlvr train --config-name rpn_ppo seed=3               another configuration, another seed
  rlvr train algorithm=dapo trainer.max_steps=60        another algorithm, another value
  rlvr train --cfg job                                  print the resolved configuration and stop
  rlvr train --multirun seed=1..10 run_dir=runs/seeds   ten runs, one after another
  rlvr train --multirun sweep.trials=20 'trainer.learning_rate=tag(log,interval(1e-4,1e-2))'
  rlvr train run_dir=runs/x resume=true                 resume from the last checkpoint
  rlvr train --config-dir runs/x --config-name config   repeat a run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config-name",
        metavar="NAME",
        help="configuration to start from (default: rpn; with resume=true the run's own)",
    )
    add_config_dir(parser)
    parser.add_argument(
        "--help-config",
        nargs="?",
        const="",
        metavar="KEY",
        help="print every key (of a section, of one choice such as algorithm=ppo) with type, default, bounds, meaning",
    )
    parser.add_argument("--cfg", choices=["job"], help="print the resolved configuration and stop")
    parser.add_argument(
        "-m", "--multirun", action="store_true", help="run every combination of a=1,2 b=x,y; with sweep.trials=N search"
    )
    parser.add_argument(
        "--prune-against",
        metavar="FOLDER",
        help="end the run once its held-out interval lies below that of the median run in FOLDER at the same step",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="group=choice or section.key=value")


def more_help() -> str:
    from rlvr.commands.train.choices import listing

    return listing()


def run(args: argparse.Namespace) -> int:
    from rlvr.config.compose import DEFAULT_CONFIG, to_yaml

    if args.help_config is not None:
        from rlvr.commands.train.help import help_lines

        print(help_lines(args.help_config, args.config_dir))
        return 0
    if args.multirun:
        from rlvr.commands.train.multirun import run_sweep

        args.config_name = args.config_name or DEFAULT_CONFIG
        with errors_once():
            if num_processes() > 1:
                raise ConfigError("--multirun: does not work under torchrun; start one run per launch.")
            if args.prune_against:
                raise ConfigError(
                    "--prune-against: is for a single run; with --multirun a search prunes, sweep.trials=20."
                )
        return run_sweep(args)
    with errors_once():
        config = _config(args.overrides, args.config_name, args.config_dir)
        if not args.cfg:
            _check_before_torch(config, args.prune_against)
    if args.cfg:
        if is_local_main_process():
            sys.stdout.write(to_yaml(config))
        return 0

    with progress("loading libraries") if is_local_main_process() else nullcontext():
        from rlvr.commands.train.body import train
    from rlvr.cli.signals import stop_on_signals

    with stop_on_signals(quiet=num_processes() > 1) as stop:
        pruner = _pruner(config, args.prune_against) if args.prune_against else None
        result = train(config, stop.stopped if pruner is None else lambda: stop.stopped() or pruner())
        pruned = (result.folder / PRUNED).read_text("utf-8").strip() if pruner and pruner.pruned else ""
        if result.is_first:
            text = results(result, config.task.label, config.evaluation.headline, pruned)
            sys.stdout.write(wrapped(text, get_terminal_size().columns) if is_terminal(sys.stdout) else text)
    if result.finished or pruned:
        return 0
    return stop.exit_code or 143  # another rank got the signal: torchrun sends SIGTERM


def _check_before_torch(config: Config, prune_against: str | None) -> None:
    """Fail fast: ConfigError for what can be known before torch is imported."""
    from rlvr.config.sections import check_place, check_resumes

    check_resumes(config)
    if num_processes() == 1:  # of several, another one may have made it a moment ago
        check_place(config.run_dir, resume=config.resume)
    check_launch(config.trainer.strategy, config.trainer.world_size)
    for bundle in config.bundles.values():
        bundle.task.check_found("task")
        for name, part in bundle.reward.parts.items():
            part.check_found(f"reward.parts.{name}")
    if prune_against:
        from rlvr.search.pruning import check_pruning

        check_pruning(config, prune_against)


def _pruner(config: Config, folder: str) -> Pruner:
    from rlvr.search.pruning import Pruner

    name = f"eval/{config.task.label}/{config.evaluation.headline}"
    steps = config.trainer.max_steps
    return Pruner(folder=Path(str(config.run_dir)), beside=Path(folder), name=name, max_steps=steps)


def results(result: TrainResult, task: str, headline: str, pruned: str = "") -> str:
    """The results of a run in a few lines; `headline` is `accuracy`, or a reward part. `pruned`: why the run was."""
    lines = []
    name = f"eval/{task}/{headline}"
    if name in result.metrics:
        low, high = result.metrics.get(f"{name}_low"), result.metrics.get(f"{name}_high")
        interval = "" if low is None else f" (95 % interval {low:.3f} to {high:.3f})"
        before, step = f"held-out {headline.replace('_', ' ')} {result.before[name]:.3f}", int(result.metrics["step"])
        steps = f"{result.num_steps} step{'' if result.num_steps == 1 else 's'}"
        if result.num_steps == 0 and result.finished:
            lines.append(f"{task}: {before}{interval}; trainer.max_steps=0: no reinforcement learning")
        elif step == 0:
            lines.append(f"{task}: {before}{interval} at step 0; {steps} made, not evaluated since")
        else:
            late = "" if step == result.num_steps else f", at step {step}"
            lines.append(f"{task}: {before} -> {result.metrics[name]:.3f}{interval}{late} in {steps}")
    if result.finished:
        lines += [f"model: {result.folder / 'final'}", f"curve: {result.folder / 'metrics.jsonl'}"]
        lines.append(f"try it: rlvr eval {quote(str(result.folder))}")
    else:
        ended = f"pruned: {pruned}" if pruned else "stopped"
        lines.append(f"{ended}; go on with: {launcher()} train {resuming(result.folder)}")
    return "".join(line + "\n" for line in lines)


def _config(overrides: Sequence[str], name: str | None, folder: str | None) -> Config:
    """Compose the configuration. A resumed run keeps its own, unless the command names one or chooses in a group."""
    from rlvr.config.compose import DEFAULT_CONFIG, load_config
    from rlvr.config.config import CHOICES
    from rlvr.config.overrides import parse_overrides
    from rlvr.search.settings import is_setting
    from rlvr.settings import dumped

    for line in filter(is_setting, overrides):
        raise ConfigError(f"{line}: belongs to a sweep that searches; add --multirun.")
    if name is not None:
        return load_config(overrides, config_name=name, config_dir=folder)
    values = {override.key_or_group: override.value() for override in parse_overrides(overrides)}
    run = str(values.get("run_dir") or "") if values.get("resume") is True else ""
    choices = {key: value for key, value in values.items() if key in CHOICES and isinstance(value, str)}
    if not run or not Path(run, "config.yaml").is_file():
        return load_config(overrides, config_name=DEFAULT_CONFIG, config_dir=folder)
    if choices.keys() - {"engine"}:  # a repeated command of the default configuration
        try:
            return load_config(overrides, config_name=DEFAULT_CONFIG, config_dir=folder)
        except ConfigError as error:
            raise ConfigError(f"{error} (The run in {run} goes on with its own choices if none is given.)") from None
    imports.look_in(folder)
    if engine := choices.get("engine"):  # a run's file is resolved and has no choices: replace the section
        old = dumped(load_config([], config_name="config", config_dir=run).engine)
        rest = [line for line in overrides if line.lstrip("+") != f"engine={engine}"]
        overrides = [*(f"~engine.{key}" for key in old), f"engine.name={engine}", *rest]
    return load_config(overrides, config_name="config", config_dir=run)
