"""The training stream in order, the default."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.registry import register
from rlvr.samplers.base import PromptSampler


@register("sampler", "uniform")
class Uniform(PromptSampler):
    """The training stream in order."""

    _cursor: int = 0

    def take(self, count: int) -> Sequence[int]:
        self._cursor += count
        return range(self._cursor - count, self._cursor)

    def state(self) -> dict[str, Any]:
        return {"cursor": self._cursor}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._cursor = state["cursor"]
