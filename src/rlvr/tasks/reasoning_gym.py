"""The procedural tasks of the reasoning_gym library, arXiv:2505.24760, scored by their own verifiers.

Problems are drawn without end. A hash of the question says which tenth of them is held out, for every seed alike.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rlvr.config.messages import nearest
from rlvr.errors import ConfigError
from rlvr.rewards.reasoning_gym import require_reasoning_gym
from rlvr.tasks.dataset import Data
from rlvr.tasks.problems import Problem, fingerprint
from rlvr.tasks.rows import DataError, ascii_text, clean
from rlvr.tasks.sources import DrawnSource

if TYPE_CHECKING:
    from rlvr.config.schema import ReasoningGymTask

HELD_OUT_SHARE = 0.1
OWN = ("seed", "size")


def load_reasoning_gym(settings: ReasoningGymTask, seed: int) -> Data:
    """ConfigError for an unknown data set or setting, UserError if the library is not installed."""
    require_reasoning_gym()
    _check(settings)
    source = DrawnSource(
        lambda number: draw(settings, number),
        name=f"reasoning_gym/{settings.dataset}",
        eval_share=HELD_OUT_SHARE,
        seed=seed,
        max_train=settings.max_train_examples,
    )
    source.train(0)
    note = f"problems of reasoning_gym's {settings.dataset}, drawn without end, {HELD_OUT_SHARE:.0%} of them held out"
    return Data(source=source, notes=(note,))


def draw(settings: ReasoningGymTask, number: int) -> Problem:
    """The problem that the library makes of a seed. Some data sets have no reference answer: it is empty then."""
    import reasoning_gym

    try:
        made = reasoning_gym.create_dataset(settings.dataset, seed=number % 2**32, size=1, **settings.settings)
    except Exception as error:  # a foreign library: assertions, values, types
        raise ConfigError(
            f"task.settings={dict(settings.settings)}: reasoning_gym's {settings.dataset} refuses them "
            f"({type(error).__name__}: {ascii_text(str(error)[:200])})."
        ) from error
    try:
        entry: dict[str, Any] = made[0]
    except Exception as error:  # a foreign library
        raise DataError(
            f"reasoning_gym's {settings.dataset} cannot make a problem of these settings "
            f"({type(error).__name__}: {ascii_text(str(error)[:200])}): choose others."
        ) from error
    question = clean(entry["question"])
    key = fingerprint(question)
    answer = entry.get("answer")
    return Problem(
        id=f"reasoning_gym/{settings.dataset}/{key.hex()}",
        key=key,
        question=question,
        answer="" if answer is None else str(answer),
        metadata={"dataset": settings.dataset, "entry": entry},
    )


def _check(settings: ReasoningGymTask) -> None:
    from reasoning_gym.factory import DATASETS

    if settings.dataset not in DATASETS:
        near = nearest(settings.dataset, sorted(DATASETS))
        hint = f"did you mean {near}?" if near else f"there are {len(DATASETS)}, e.g. chain_sum, countdown, sudoku."
        raise ConfigError(f"task.dataset={settings.dataset}: reasoning_gym has no such data set; {hint}")
    known = sorted(field.name for field in fields(DATASETS[settings.dataset][1]) if field.name not in OWN)
    for name in settings.settings:
        if name in OWN:
            raise ConfigError(f"task.settings.{name}: is chosen by rlvr, from the run's seed; leave it out.")
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}."
            raise ConfigError(f"task.settings.{name}: {settings.dataset} has no such setting; {hint}")
