"""The procedural tasks of the reasoning_gym library, arXiv:2505.24760, scored by their own verifiers.

Problems are drawn endlessly. A hash of the question selects the held-out tenth, independent of the seed.
"""

import contextlib
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

from rlvr.data.problems import Problem, fingerprint
from rlvr.data.rows import clean
from rlvr.data.sources import DrawnSource
from rlvr.errors import ConfigError
from rlvr.printable import ascii_text
from rlvr.registry import register
from rlvr.rewards.metrics import Metric
from rlvr.rewards.reasoning_gym import ReasoningGymMetric, require_reasoning_gym
from rlvr.seeding import derive_seed
from rlvr.settings import Text, setting
from rlvr.tasks.base import TaskContext
from rlvr.tasks.generator import Scalar
from rlvr.tasks.loading import Data
from rlvr.tasks.settings import DataSettings

HELD_OUT_SHARE = 0.1
CHUNK_SIZE = 64
MAX_CHUNKS = 16


@register("task", "reasoning_gym")
class ReasoningGymTask(DataSettings):
    """One of the 100+ procedural tasks of the reasoning_gym library, with its own verifier."""

    prompt: ClassVar[str] = "math_reasoning"
    reward = "reasoning_gym"
    is_generated: ClassVar[bool] = True
    brings_verifier: ClassVar[bool] = True
    dataset: Text = setting(description="name of the task in reasoning_gym, e.g. chain_sum")
    settings: Mapping[str, Scalar | tuple[Scalar, ...] | None] = setting({}, "its settings, as in reasoning_gym")

    @property
    def origin(self) -> str:
        return self.dataset

    @property
    def metric_uses_sandbox(self) -> bool:
        return True

    def make_metric(self) -> Metric:
        return ReasoningGymMetric()

    def load(self, context: TaskContext) -> Data:
        require_reasoning_gym()
        source = DrawnSource(
            Drawer(self).draw,
            name=f"reasoning_gym/{self.dataset}",
            eval_share=HELD_OUT_SHARE,
            seed=context.seed,
            max_train=self.max_train_examples,
        )
        source.train(0)
        note = f"problems of reasoning_gym's {self.dataset}, drawn without end, {HELD_OUT_SHARE:.0%} of them held out"
        return Data(source=source, notes=(note,))


class Drawer:
    """Problem `place` of an endless seeded stream; the library generates them in chunks, which can be slow to start.

    Seed 7, places 0 to 63: entries 0 to 63 of one of the library's data sets; place 64: entry 0 of another.
    """

    def __init__(self, settings: ReasoningGymTask) -> None:
        import reasoning_gym

        self._settings = settings
        name, more = settings.dataset, settings.settings
        self._chunk = lru_cache(MAX_CHUNKS)(
            lambda number: reasoning_gym.create_dataset(name, seed=number, size=CHUNK_SIZE, **more)
        )

    def draw(self, seed: int, place: int) -> Problem:
        """Draw a problem; without a reference answer `answer` is empty."""
        name = self._settings.dataset
        chunk, offset = divmod(place, CHUNK_SIZE)
        try:
            with contextlib.redirect_stdout(sys.stderr):  # one of the data sets prints
                entry: dict[str, Any] = self._chunk(derive_seed(seed, chunk) % 2**32)[offset]
        except Exception as error:  # the library raises assertions, values, types
            said = f"{type(error).__name__}: {ascii_text(str(error)[:200])}"
            settings = dict(self._settings.settings)
            raise ConfigError(
                f"task.dataset={name} task.settings={settings}: reasoning_gym cannot make a problem of them ({said})."
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
