"""`rlvr train --multirun sweep.trials=N`: checks the search, runs it, and prints its table."""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from optuna.distributions import FloatDistribution

from rlvr.cli.signals import stop_on_signals
from rlvr.config import Config
from rlvr.config.compose import load_config, to_yaml
from rlvr.config.overrides import parse_overrides
from rlvr.config.sections import check_place
from rlvr.errors import ConfigError
from rlvr.lines import override_lines
from rlvr.printable import table
from rlvr.records.files import writing
from rlvr.run.run_folder import lock
from rlvr.search.manager import HOPELESS, Search, interval
from rlvr.search.pruning import check_measured
from rlvr.search.settings import SweepSettings
from rlvr.search.space import Space, Value, read_space
from rlvr.search.trials import TRIALS, Trial, check_same_search, note_search, propose

OF_THE_SEARCH = ("run_dir", "resume")  # a search goes on by itself


def run_search(args: argparse.Namespace, settings: SweepSettings) -> int:
    """Exit status 0 if a trial has finished; 1 if none has, or one was ended by a signal from elsewhere."""
    space = read_space([line for line in args.overrides if line.partition("=")[0] not in OF_THE_SEARCH])
    config = _checked(space, args)
    if space.size <= settings.trials:
        raise ConfigError(
            f"sweep.trials={settings.trials}: the space has {space.size:.0f} points; without sweep.* the sweep runs "
            "each of them once."
        )
    check_measured(config, with_interval=settings.prune)
    if args.cfg:
        first = propose(space, {}, 0, settings)
        sys.stdout.write(to_yaml(_config(space, space.overrides(first), args)))
        return 0
    config.tracker.check_installed()
    folder = Path(_run_dir(args.overrides) or f"runs/{config.name}-search-{time.strftime('%Y%m%d-%H%M%S')}")
    check_place(str(folder), resume=True)
    about = _about(args, settings)
    check_same_search(folder, about)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with lock(folder), stop_on_signals() as stop:
        note_search(folder, about)
        search = _search(folder, space, settings, config, args)
        search.run(stop.stopped)
    print(summary(search))
    is_done = any(trial.state == "done" for trial in search.trials.values())
    return stop.exit_code or int(not is_done or bool(search.interrupted))


def _run_dir(overrides: Sequence[str]) -> str | None:
    """The folder of the search; ConfigError for another value of what belongs to the search than one can have."""
    lines = [line for line in overrides if line.partition("=")[0] in OF_THE_SEARCH]
    values = {override.key_or_group: override.value() for override in parse_overrides(lines)}
    if values.get("resume") not in (None, True):
        raise ConfigError("resume=false: a search goes on with what its folder holds; choose another run_dir.")
    found = values.get("run_dir")
    if found is not None and not isinstance(found, str | int):
        raise ConfigError(f"{lines[-1]}: a search has one folder; its trials get theirs inside of it.")
    return None if found is None else str(found)


def _about(args: argparse.Namespace, settings: SweepSettings) -> dict[str, object]:
    """What may not change when a search goes on; more trials, and more at a time, may."""
    lines = [line for line in args.overrides if line.partition("=")[0] not in OF_THE_SEARCH]
    about = {"config_name": args.config_name, "config_dir": args.config_dir, "overrides": lines}
    return about | {f"sweep.{name}": getattr(settings, name) for name in ("sampler", "seed", "prune")}


def _search(folder: Path, space: Space, settings: SweepSettings, config: Config, args: argparse.Namespace) -> Search:
    base, more = ["train", "--config-name", args.config_name], {}
    if args.config_dir:
        base += ["--config-dir", args.config_dir]
    if settings.jobs > 1 and config.trainer.num_threads is None:
        more["trainer.num_threads"] = max(1, (os.cpu_count() or 1) // settings.jobs)
    if config.tracker.report_to and config.tracker.group is None:
        more["tracker.group"] = folder.absolute().name
    return Search(
        folder=folder,
        space=space,
        settings=settings,
        name=f"eval/{config.task.label}/{config.evaluation.headline}",
        base=base,
        more=override_lines(more),
        say=lambda line: print(f"rlvr: {line}", file=sys.stderr, flush=True),
    )


# ---------------------------------------------------------------------------------------------------- before the start


def _config(space: Space, overrides: Sequence[str], args: argparse.Namespace) -> Config:
    return load_config([*space.fixed, *overrides], config_name=args.config_name, config_dir=args.config_dir)


def _checked(space: Space, args: argparse.Namespace) -> Config:
    """The configuration of a point. ConfigError if a value of the space is wrong wherever the other axes are: beside
    their first values and beside their last ones."""
    corners = [{axis.key: axis.samples[end] for axis in space.axes} for end in (0, -1)]
    try:
        for axis in space.axes:
            for value in axis.samples:
                _any_config(space, [corner | {axis.key: value} for corner in corners], args)
        return _any_config(space, corners, args)
    except ConfigError as error:
        raise _worded(error, space) from None


def _any_config(space: Space, points: Sequence[dict[str, Value]], args: argparse.Namespace) -> Config:
    """The configuration of the first of the points that has one; else its error."""
    errors: list[ConfigError] = []
    for point in points:
        try:
            return _config(space, space.overrides(point), args)
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _worded(error: ConfigError, space: Space) -> ConfigError:
    for axis in space.axes:
        is_wrong = f"{axis.key}=" in str(error) and "a whole number" in str(error)
        if is_wrong and isinstance(axis.distribution, FloatDistribution):
            inside = axis.line.partition("=")[2]
            return ConfigError(f"{axis.line}: needs whole numbers; write {axis.key}=int({inside}).")
    return error


# ------------------------------------------------------------------------------------------------------------ the table


def summary(search: Search) -> str:
    """The trials in order of their score, the best one's command, and how to go on."""
    trials = sorted(search.trials.values(), key=_rank)
    metric = search.name.rpartition("/")[2].replace("_", " ")
    rows = [("trial", metric, "step", "state", "settings"), *map(_row, trials)]
    return "\n".join([table(rows), *_after(search, trials)])


def _rank(trial: Trial) -> tuple[int, float, int]:
    """Finished trials first, the best before the others; then pruned ones, then the rest."""
    order = ("done", "pruned", "running", "failed").index(trial.state)
    return order, -trial.score if trial.score is not None else 0.0, trial.number


def _row(trial: Trial) -> tuple[str, ...]:
    state = "stopped" if trial.state == "running" else trial.state
    note = f" ({trial.reason})" if trial.reason and trial.state != "pruned" else ""
    return str(trial.number), interval(trial), str(trial.step), f"{state}{note}", " ".join(trial.overrides)


def _tied(best: Trial, trials: Sequence[Trial]) -> str:
    """`trials 3, 5 and 9`: other points with an interval that reaches into that of the best one."""
    done = [one for one in trials if one.state == "done" and one.params != best.params]
    alike = [one.number for one in done if None not in (one.high, best.low) and one.high >= best.low]  # type: ignore
    if not alike:
        return ""
    *first, last = map(str, alike)
    return f"trials {', '.join(first)} and {last}" if first else f"trial {last}"


def _after(search: Search, trials: Sequence[Trial]) -> Iterator[str]:
    best = trials[0] if trials and trials[0].state == "done" else None
    if best is not None:
        yield f"\nbest: trial {best.number}, {interval(best)}; train it again with\n  {best.command}"
        if alike := _tied(best, trials):
            yield (
                f"tied with it: {alike}, whose 95 % intervals overlap its own; more held-out examples "
                "(evaluation.num_examples), or several seeds of each, would tell"
            )
    left = search.settings.trials - sum(trial.state != "running" for trial in trials)
    if search.hopeless:
        yield f"\ngave up: {HOPELESS} trials failed and none came through, the last one with: {search.hopeless}"
        yield "correct it; the same command tries again what failed before its first step, then goes on"
    elif left:
        yield f"\n{left} of {search.settings.trials} trials have not ended; the same command goes on"
    folder = quote(str(search.folder))
    yield f"\nall of them: {search.folder / TRIALS}, rlvr runs {folder}, rlvr report {folder}"
