"""The procedural tasks of the reasoning_gym library, arXiv:2505.24760, scored by their own verifiers.

Problems are drawn without end. A hash of the question says which tenth of them is held out, for every seed alike.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rlvr.config.messages import nearest
from rlvr.errors import ConfigError
from rlvr.rewards.reasoning_gym import require_reasoning_gym
from rlvr.seeding import derive_seed
from rlvr.tasks.dataset import Data
from rlvr.tasks.problems import Problem, fingerprint
from rlvr.tasks.rows import ascii_text, clean
from rlvr.tasks.sources import DrawnSource

if TYPE_CHECKING:
    from rlvr.config.schema import ReasoningGymTask

HELD_OUT_SHARE = 0.1
OWN = ("seed", "size")
CHUNK_SIZE = 64
MAX_CHUNKS = 16


def load_reasoning_gym(settings: ReasoningGymTask, seed: int) -> Data:
    """ConfigError for an unknown data set or setting, UserError if the library is not installed."""
    require_reasoning_gym()
    _check(settings)
    source = DrawnSource(
        Drawer(settings).draw,
        name=f"reasoning_gym/{settings.dataset}",
        eval_share=HELD_OUT_SHARE,
        seed=seed,
        max_train=settings.max_train_examples,
    )
    source.train(0)
    note = f"problems of reasoning_gym's {settings.dataset}, drawn without end, {HELD_OUT_SHARE:.0%} of them held out"
    return Data(source=source, notes=(note,))


class Drawer:
    """Problem `place` of the endless row with a seed; the library makes them in chunks, which can be slow to begin.

    Seed 7, places 0 to 63: entries 0 to 63 of one of the library's data sets; place 64: entry 0 of another.
    """

    def __init__(self, settings: ReasoningGymTask) -> None:
        self._settings = settings
        self._chunks: dict[int, Any] = {}

    def draw(self, seed: int, place: int) -> Problem:
        """Some data sets have no reference answer: it is empty then."""
        name = self._settings.dataset
        chunk, offset = divmod(place, CHUNK_SIZE)
        try:
            with contextlib.redirect_stdout(sys.stderr):  # one of the data sets prints
                entry: dict[str, Any] = self._chunk(derive_seed(seed, chunk) % 2**32)[offset]
        except Exception as error:  # a foreign library: assertions, values, types
            raise ConfigError(
                f"task.settings={dict(self._settings.settings)}: reasoning_gym's {name} cannot make a problem of them "
                f"({type(error).__name__}: {ascii_text(str(error)[:200])})."
            ) from error
        question = clean(entry["question"])
        key = fingerprint(question)
        answer = entry.get("answer")
        return Problem(
            id=f"reasoning_gym/{name}/{key.hex()}",
            key=key,
            question=question,
            answer="" if answer is None else str(answer),
            metadata={"dataset": name, "settings": dict(self._settings.settings), "entry": entry},
        )

    def _chunk(self, number: int) -> Any:
        import reasoning_gym

        if number not in self._chunks:
            while len(self._chunks) >= MAX_CHUNKS:
                del self._chunks[next(iter(self._chunks))]
            self._chunks[number] = reasoning_gym.create_dataset(
                self._settings.dataset, seed=number, size=CHUNK_SIZE, **self._settings.settings
            )
        return self._chunks[number]


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
