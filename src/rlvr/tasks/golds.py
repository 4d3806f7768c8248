"""Whether the golds of data can be paid: rows with others are named, counted and left out.

Most golds are numbers and words, which a glance knows to be read. The others are read by the reward's own reader in its
worker processes: `NUM_AT_LOADING` of a file while its rows are parsed, each other one before it is first drawn.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from rlvr.data.problems import Problem
from rlvr.rewards.base import Part, Verifier
from rlvr.rewards.metrics import Metric
from rlvr.rewards.sandbox import CallResult, Sandbox

NUM_AT_LOADING = 200
UNREAD = "have a gold that the reward or metric cannot read"
"""Reason for excluding a row."""


class GoldReader:
    """Asks the parts of a reward, and those of a metric, whether they can read a gold; remembers what they say."""

    def __init__(self, reward: Verifier | None, metric: Metric, sandbox: Sandbox) -> None:
        graders = (*getattr(reward, "parts", {}).values(), *metric.parts)
        parts: Iterable[Part] = (part for part in graders if isinstance(part, Part) and part.reads_some_golds)
        self._parts = tuple({repr(part): part for part in parts}.values())
        self._sandbox = sandbox
        self._asked: dict[str, list[Future[CallResult]]] = {}

    def is_surely_read(self, gold: str) -> bool:
        """Whether a glance shows that each part reads the gold."""
        return not gold or all(part.surely_reads(gold) for part in self._parts)

    def ask(self, gold: str) -> None:
        """Begin to read the gold in a worker process, while the caller goes on."""
        if gold in self._asked:
            return
        if not self._asked:
            for module in (module for part in self._parts for module in part.preload):
                self._sandbox.preload(module)
        self._asked[gold] = [self._sandbox.submit(part.reads_gold, gold) for part in self._parts]

    def unread(self, problems: Sequence[Problem]) -> list[Problem]:
        """Those of the problems whose gold a part cannot read. One that takes too long is kept: a slow machine must not
        choose the data, and grading names it."""
        unsure = [problem for problem in problems if not self.is_surely_read(problem.answer)]
        for problem in unsure:
            self.ask(problem.answer)
        return [p for p in unsure if any(future.result().value is False for future in self._asked[p.answer])]
