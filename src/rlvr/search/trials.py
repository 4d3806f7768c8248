"""What is kept of a search in its folder, and what Optuna proposes from it.

    SWEEP/search.json     what is searched, and how
    SWEEP/trials.jsonl    a line for each trial, replaced as a whole after each change
    SWEEP/trial-7/        the run of a trial; SWEEP/trial-7.log: what it printed

Optuna's study is made from these lines for each proposal, with a sampler whose seed is that of the search and the
trial's number: the next point depends on the trials so far, and not on when the command was started.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial
from pydantic import TypeAdapter

from rlvr.errors import ConfigError, UserError
from rlvr.records.files import write_atomically
from rlvr.records.jsonl import from_line, to_line
from rlvr.search.settings import SweepSettings
from rlvr.search.space import Space, Value
from rlvr.seeding import derive_seed

SEARCH, TRIALS = "search.json", "trials.jsonl"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """`Trial(number=3, state="pruned", params={"trainer.learning_rate": 0.01}, score=0.31, low=0.27, high=0.35, ...)`

    Scores are the held-out headline: `score` with its interval is the last one, `scores` holds `(step, score)` of all.
    """

    number: int
    state: Literal["running", "done", "pruned", "failed"]
    params: Mapping[str, Value]
    overrides: tuple[str, ...]  # those of this point
    folder: str
    command: str  # trains this point alone
    step: int = 0  # of the last score
    score: float | None = None
    low: float | None = None
    high: float | None = None
    scores: tuple[tuple[int, float], ...] = ()
    reason: str = ""  # why it failed or was pruned


_TRIAL = TypeAdapter(Trial)
_STATES = {
    "running": TrialState.RUNNING,
    "done": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


def write_trials(folder: Path, trials: Mapping[int, Trial]) -> None:
    write_atomically(folder / TRIALS, b"".join(to_line(trials[number]) for number in sorted(trials)))


def read_trials(folder: Path, say: Callable[[str], None] = lambda text: None) -> dict[int, Trial]:
    """The trials of a search by number; UserError for a damaged file. A torn last line is left out, and said so."""
    file, trials = folder / TRIALS, list[Trial]()
    for line in file.read_bytes().splitlines(keepends=True) if file.is_file() else ():
        try:
            trials.append(from_line(_TRIAL, line))
        except ValueError as error:
            if line.endswith(b"\n"):
                raise UserError(f"{file} is damaged ({error}): start the search in another run_dir.") from None
            say(f"{file}: its last line is torn and is left out; its trial goes on in its folder")
    # the folder may have been moved
    return {one.number: replace(one, folder=str(folder / Path(one.folder).name)) for one in trials}


def check_same_search(folder: Path, about: Mapping[str, Any]) -> None:
    """ConfigError if the folder holds another search, or something else."""
    file = folder / SEARCH
    if not file.is_file():
        if folder.is_dir() and {path.name for path in folder.iterdir()} - {".lock"}:
            raise ConfigError(f"run_dir={folder} exists and holds no search: choose another run_dir.")
        return
    try:
        search = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}): start the search in another run_dir.") from None
    for key in about:
        if (then := search.get(key)) != (now := about[key]):
            if key == "overrides":
                then, now = (_only(one, other) for one, other in ((then, now), (now, then)))
            raise ConfigError(
                f"run_dir={folder}: holds a search with other {key} ({then} there, {now} here): repeat its command, or "
                "choose another run_dir."
            )


def note_search(folder: Path, about: Mapping[str, Any]) -> None:
    write_atomically(folder / SEARCH, (json.dumps(about, indent=1) + "\n").encode())


def _only(lines: Sequence[str], others: Sequence[str]) -> str:
    return " ".join(line for line in lines if line not in others) or "none"


def propose(space: Space, trials: Mapping[int, Trial], number: int, settings: SweepSettings) -> dict[str, Value]:
    """The point of trial `number`, by key: the same whenever it is asked with the same trials before it."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = derive_seed(settings.seed, "trial", number) % 2**32
    sampler: BaseSampler = TPESampler(seed=seed) if settings.sampler == "tpe" else RandomSampler(seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trials([_frozen(space, trials[one]) for one in sorted(trials)])
    proposed = study.ask({axis.key: axis.distribution for axis in space.axes}).params
    return {axis.key: axis.rounded(proposed[axis.key]) for axis in space.axes}


def _frozen(space: Space, trial: Trial) -> optuna.trial.FrozenTrial:
    scores = {step: score for step, score in trial.scores if math.isfinite(score)}
    return create_trial(
        state=_STATES[trial.state],
        value=trial.score if trial.state in ("done", "pruned") else None,
        params=dict(trial.params),
        distributions={axis.key: axis.distribution for axis in space.axes},
        intermediate_values=scores,
    )
