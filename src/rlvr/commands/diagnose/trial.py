"""A remedy tried: a few steps with it, and as many without, from the same weights and with the same seeds."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import fmean, stdev

import rlvr
from rlvr.config import Config
from rlvr.config.compose import load_config, to_run_yaml
from rlvr.errors import UserError
from rlvr.progress import progress
from rlvr.records.files import write_atomically, writing
from rlvr.records.history import read_history
from rlvr.run.sources import own_config, with_absolute_model
from rlvr.training.checkpoint import list_checkpoints
from rlvr.trust.chain import Diagnosis, Effect, RemedyTrial
from rlvr.trust.record import Record, read_record

CERTAIN = 1.96  # standard errors: a 95 % interval
READING = ("rollout.max_completion_tokens", "prompt.tool_format")  # an evaluation's level changes with them at once


def tried(source: str, diagnosis: Diagnosis, steps: int) -> RemedyTrial:
    """Train with the remedy of the likeliest cause beside the unchanged run; the run is only read.

    UserError if no cause is named, its remedy is no setting, or the first weights are lost.
    """
    cause = diagnosis.top
    if cause is None:
        raise UserError(f"{source}: no cause is named ({diagnosis.verdict}), so there is no remedy to try.")
    if cause.in_code:
        raise UserError(
            f"{source}: the remedy of {cause.name} is in your code, model or data, not in a setting, so there is "
            f"nothing to try: {cause.remedy}"
        )
    root = Path(source)
    start = _start(root, read_record(read_history(root), with_weights=False))
    folder, arms = _beside(root), list[Record]()
    for name, overrides in (("unchanged", ()), ("remedy", cause.overrides)):
        arm = folder / name
        _prepare(root, arm, start, _config(source, overrides, start + steps, steps))
        with progress(f"training {steps} steps, {name}"), _latest_kept():
            rlvr.train(config_name="config", config_dir=arm, run_dir=str(arm), resume=True)
        arms.append(read_record(read_history(arm), with_weights=False))
    return RemedyTrial(
        cause=cause.name,
        overrides=list(cause.overrides),
        start=start,
        steps=steps,
        folder=str(folder),
        differences=differences(*arms),
    )


def _start(root: Path, record: Record) -> int:
    """Step of the weights to go on from: 0, unless a checkpoint is better than they by more than chance."""
    saved, evaluations = list_checkpoints(root / "checkpoints"), {one.step: one for one in record.evaluations}
    first = evaluations.get(0)
    better = [step for step in saved if first and step in evaluations and evaluations[step].low > first.high]
    start = max(better, key=lambda step: evaluations[step].value, default=0)
    config = own_config(str(root))
    if config is None:
        raise UserError(f"{root} is no run folder to go on from: it has no config.yaml.")
    is_own = config.model.from_scratch or config.warm_start.enabled
    if start == 0 and is_own and not (root / "warm_start").is_dir():
        raise UserError(f"{root} has no warm_start/: its first weights are lost, so nothing can be tried.")
    return start


def _beside(root: Path) -> Path:
    """`runs/x.try`, or the first of `runs/x.try-2`, ... that is not there."""
    own = root.resolve()
    names = (f"{own.name}.try" if number == 1 else f"{own.name}.try-{number}" for number in count(1))
    return next(path for name in names if not (path := own.with_name(name)).exists())


def _config(source: str, overrides: Sequence[str], max_steps: int, steps: int) -> Config:
    config = own_config(source)
    assert config is not None, "checked before"
    evaluates = [] if config.evaluation.every is None else [f"evaluation.every={steps}"]
    lasting = [
        f"trainer.max_steps={max_steps}",
        "trainer.checkpoint_every=null",
        "tracker.console=none",
        "tracker.report_to=[]",
        *evaluates,
    ]
    if not isinstance(config.trainer.warmup_steps, float) and config.trainer.warmup_steps > max_steps:
        lasting.append(f"trainer.warmup_steps={max_steps}")
    folder = str(Path(source).resolve())
    return with_absolute_model(load_config([*lasting, *overrides], config_name="config", config_dir=folder))


def _prepare(root: Path, arm: Path, start: int, config: Config) -> None:
    """A folder that resumes from the run's weights, with this configuration as its own."""
    with writing(arm):
        arm.mkdir(parents=True)
        if (root / "warm_start").is_dir():
            (arm / "warm_start").symlink_to((root / "warm_start").resolve())
        if start:
            (arm / "checkpoints").mkdir()
            checkpoint = list_checkpoints(root / "checkpoints")[start]
            (arm / "checkpoints" / checkpoint.name).symlink_to(checkpoint.resolve())
    write_atomically(arm / "config.yaml", to_run_yaml(config).encode())


@contextmanager
def _latest_kept(latest: Path = Path("runs") / "latest") -> Iterator[None]:
    """`runs/latest` stays where it is: what is tried is not the user's newest run."""
    before = latest.readlink() if latest.is_symlink() else None
    try:
        yield
    finally:
        if before is not None and latest.is_symlink() and latest.readlink() != before:
            latest.unlink()
            latest.symlink_to(before)


def differences(before: Record, after: Record) -> list[Effect]:
    """Of the held-out metric, if it was evaluated, and of the reward's rise."""
    found = [_of_rewards(_rewards(before), _rewards(after))]
    if before.evaluations and after.evaluations:
        found[:0] = _of_evaluations(f"held-out {before.headline.replace('_', ' ')}", before, after)
    return found


def _of_evaluations(name: str, before: Record, after: Record) -> list[Effect]:
    """Both are of the same held-out examples, which makes the interval too wide.

    A remedy may change at once what is read of the same weights, as more room for completions does: then the rises
    since the start are compared; none, if the start was not evaluated.
    """
    ends = [one.evaluations[-1] for one in (before, after)]
    starts = [one.evaluations[0] for one in (before, after) if one.evaluations[0].step < one.updates[0]["step"]]
    if len(starts) < 2 and any(before.history.setting(key) != after.history.setting(key) for key in READING):
        return []
    values = [one.value for one in ends]
    if len(starts) == 2 and starts[0].value != starts[1].value:
        name, values = f"rise of {name}", [end.value - start.value for start, end in zip(starts, ends, strict=True)]
        ends += starts
    return [_difference(name, values[0], values[1], math.hypot(*(one.error for one in ends)))]


def _of_rewards(before: Sequence[float], after: Sequence[float]) -> Effect:
    """How far rewards rise from the first half of the steps to the second. Steps of both have the same prompts, so
    their differences are compared; a level that changes at once, as with a temperature, does not count."""
    middle = len(before) // 2
    first, last = (fmean(values[middle:]) - fmean(values[:middle]) for values in (before, after))
    gaps = [b - a for a, b in zip(before, after, strict=True)]
    halves = gaps[:middle], gaps[middle:]
    error = math.sqrt(sum(stdev(half) ** 2 / len(half) if len(half) > 1 else math.inf for half in halves))
    return _difference("rise of the reward", first, last, error)


def _difference(name: str, before: float, after: float, error: float) -> Effect:
    gap, margin = after - before, CERTAIN * error
    return Effect(name=name, unchanged=before, remedy=after, low=gap - margin, high=gap + margin)


def _rewards(record: Record) -> list[float]:
    return [row["reward/mean"] for row in record.updates]
