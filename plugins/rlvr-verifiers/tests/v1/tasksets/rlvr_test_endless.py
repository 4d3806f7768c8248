"""A taskset without end."""

import itertools
from collections.abc import Iterable

from rlvr_test_taskset import Config, Data, Letters, TasksetConfig, vf


class Endless(vf.Taskset[Letters, TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterable[Letters]:
        for number in itertools.count():
            yield Letters(Data(prompt=f"say {number}"), Config())


__all__ = ["Endless"]
