"""`rlvr train --multirun`: runs a sweep sequentially and prints a table of the results."""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from shlex import quote

from hydra.errors import HydraException

from rlvr.cli.signals import sentence
from rlvr.config import Config
from rlvr.config.compose import load_config, to_yaml
from rlvr.config.overrides import parse_overrides
from rlvr.config.sections import check_place
from rlvr.errors import ConfigError, UserError, install
from rlvr.lines import inclusive_range
from rlvr.printable import table
from rlvr.progress import progress
from rlvr.records.history import read_history
from rlvr.report.sweep import sweep_table
from rlvr.search.settings import is_setting, read_settings
from rlvr.search.values import swept_values

MAX_FOLDER_LENGTH = 100


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: `Job(swept=("seed=1",), overrides=("trainer.max_steps=5", "seed=1"))`."""

    swept: tuple[str, ...]
    overrides: tuple[str, ...]


def expand(overrides: Sequence[str]) -> list[Job]:
    """All combinations of the swept values, the last key changing fastest: `a=1,2 b=x,y` -> 4 jobs.

    Hydra's grammar (`a=1,2`, `a=choice(1,2)`, `seed=range(1,11)`) and `seed=1..10`, which includes 10.
    """
    axes: list[list[str]] = []
    swept_keys = []
    for override in parse_overrides([inclusive_range(line) for line in overrides]):
        line = override.input_line or ""
        if not override.is_sweep_override():
            axes.append([line])
            continue
        key = override.get_key_element()
        try:
            values = [] if key == "run_dir" else swept_values(override)
        except HydraException:  # glob(...) and interval(...)
            values = []
        if not values and "range" not in line:
            also = ", or search it: sweep.trials=20" if "interval" in line else ""
            raise ConfigError(f"{line}: cannot be swept; list the values of a setting, e.g. seed=1,2{also}.")
        axes.append([f"{key}={value}" for value in values])
        swept_keys.append(len(axes) - 1)
    return [Job(swept=tuple(point[i] for i in swept_keys), overrides=tuple(point)) for point in product(*axes)]


def folder_names(jobs: Sequence[Job]) -> list[str]:
    """`seed-1_algorithm-ppo`, or plain numbers if such names would be too long, odd or ambiguous."""
    names = ["_".join(job.swept).replace("=", "-") for job in jobs]
    plain = all(0 < len(name) <= MAX_FOLDER_LENGTH and not set(name) & set("/\\:,'\"{}[]$ ") for name in names)
    return names if plain and len(set(names)) == len(names) else [str(number) for number in range(len(jobs))]


def run_sweep(args: argparse.Namespace) -> int:
    if any(map(is_setting, args.overrides)):
        return _run_search(args)
    jobs = expand(args.overrides)
    if not jobs:
        raise ConfigError("--multirun: a range is empty; write the smaller value first, e.g. seed=1..10.")
    configs = [load_config(job.overrides, config_name=args.config_name, config_dir=args.config_dir) for job in jobs]
    parent = configs[0].run_dir or f"runs/{configs[0].name}-sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    if not args.cfg:
        check_place(parent, resume=True)
    configs = [_placed(config, Path(parent, name)) for config, name in zip(configs, folder_names(jobs), strict=True)]
    if args.cfg:
        sys.stdout.write("---\n".join(to_yaml(config) for config in configs))
        return 0
    return _run_all(jobs, configs)


def _run_search(args: argparse.Namespace) -> int:
    lines = [line for line in args.overrides if is_setting(line)]
    settings = read_settings(lines)
    if find_spec("optuna") is None:
        raise UserError(f"{lines[0]}: a search needs Optuna, which is not installed: {install('optuna')}.")
    from rlvr.commands.train.search import run_search

    args.overrides = [line for line in args.overrides if line not in lines]
    return run_search(args, settings)


def _placed(config: Config, folder: Path) -> Config:
    """The configuration in its folder. Unstarted runs of a resumed sweep start fresh, and finished ones of a repeated
    sweep are taken as they are; trackers group the runs, unless the user has set a group."""
    tracker = config.tracker
    if tracker.report_to and tracker.group is None:
        tracker = tracker.model_copy(update={"group": folder.absolute().parent.name})
    resume = (folder / "config.yaml").is_file() and (config.resume or _is_finished(folder, config))
    return config.model_copy(update={"run_dir": str(folder), "resume": resume, "tracker": tracker})


def _is_finished(folder: Path, config: Config) -> bool:
    """Whether a folder holds this very run, made to its end."""
    from rlvr.run.run_folder import RunFolder, changed_settings, read_config
    from rlvr.run.sources import with_absolute_model
    from rlvr.training.checkpoint import list_checkpoints

    run = RunFolder(root=folder)
    try:
        old, new = read_config(run), with_absolute_model(config)
    except UserError:
        return False
    made = max(list_checkpoints(run.checkpoints), default=None)
    ended = run.final.is_dir() and made == old.trainer.max_steps == new.trainer.max_steps
    return ended and not changed_settings(old, new)


def _run_all(jobs: Sequence[Job], configs: Sequence[Config]) -> int:
    with progress("loading libraries"):
        from rlvr.commands.train.body import train
    from rlvr.cli.signals import stop_on_signals

    for config in configs:
        config.tracker.check_installed()
    outcomes = []
    with stop_on_signals() as stop:
        for number, (job, config) in enumerate(zip(jobs, configs, strict=True), start=1):
            print(f"rlvr: run {number} of {len(jobs)}: {' '.join(job.swept)}", file=sys.stderr, flush=True)
            score = "-"
            try:
                result = train(config, stop.stopped)
                status = ("done before" if config.resume else "done") if result.finished else "stopped"
                name = f"eval/{config.task.label}/{config.evaluation.headline}"
                if (found := result.metrics.get(name)) is not None:
                    score = f"{found:.3f}"
            except (UserError, OSError) as error:
                status = f"failed: {sentence(error)}"
                print(f"rlvr: error: {sentence(error)}", file=sys.stderr, flush=True)
            outcomes.append((" ".join(job.swept) or "-", score, str(config.run_dir), status))
            if stop.stopped():
                break
    headlines = {config.evaluation.headline.replace("_", " ") for config in configs}
    metric = headlines.pop() if len(headlines) == 1 else "score"
    print(table([("run", metric, "folder", "status"), *outcomes]))
    if left := len(jobs) - len(outcomes):
        print(f"{left} more runs were not started; go on with the same run_dir and resume=true")
    folders = [Path(folder) for *_, folder, status in outcomes if not status.startswith("failed")]
    rows = sweep_table([read_history(folder) for folder in folders])[1:] if folders else []
    if means := [f"{said}: {num} runs, {score}" for said, num, score, _ in rows if "(" in score]:
        print("\n".join(["", *means, f"all of them on one page: rlvr report {quote(str(folders[0].parent))}"]))
    return stop.exit_code or int(any(not status.startswith("done") for *_, status in outcomes))
