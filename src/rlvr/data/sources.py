"""Sources of problems for data tasks: an endless training stream, and held-out problems.

Problem `index` of the training stream is a pure function of (data, seed, index): resume only needs the index.
"""

import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import Any

from rlvr.data.problems import Problem, hash_rank, is_held_out
from rlvr.errors import UserError
from rlvr.seeding import EVAL_SEED, derive_seed

Keep = Callable[[Problem], bool]

MAX_TRIES = 2_000
"""Draws without a new problem before a generator counts as exhausted."""


class Source(ABC):
    """An endless training stream, and disjoint held-out problems."""

    sizes: tuple[int, int] | None = None  # numbers of training and held-out problems, if finite

    @abstractmethod
    def train(self, index: int, stream: str = "train") -> Problem:
        """Problem `index` of an endless stream; other stream names give another order if possible."""

    @abstractmethod
    def held_out(self, num: int) -> list[Problem]:
        """The first `num` distinct held-out problems, the same for every seed; fewer if there are no more."""

    def some(self, num: int) -> Sequence[Problem]:
        """Training problems in a fixed order: all of a list, the first `num` of an endless source."""
        return [self.train(index) for index in range(num)]

    @abstractmethod
    def holds_out(self, key: bytes) -> bool:
        """Whether the key is held out, regardless of other exclusions."""

    @abstractmethod
    def leave_out(self, train: Keep, held_out: Keep) -> Sequence[tuple[str, int, int]]:
        """Keep only problems accepted by `train` and `held_out`. This changes the order, so call it before anything is
        drawn. Returns the exclusions if known: `("training", 3, 7473)` for 3 of 7,473; and `("held-out", ...)`."""


class Epochs:
    """The order of each pass over n problems: `Epochs(seed=0).place(4, 3)` is the index of the second one of pass 1.

    With `rank` each pass is sorted by it, with a new random order among equals.
    """

    def __init__(self, seed: int, rank: Callable[[int], float] | None = None) -> None:
        self._seed, self._rank = seed, rank
        self._last: tuple[tuple[str, int, int], list[int]] = (("", 0, 0), [])

    def place(self, index: int, size: int, stream: str = "train") -> int:
        """Step `index` of endless passes over `size` places, each pass in a new seeded order."""
        epoch, step = divmod(index, size)
        which = (stream, epoch, size)
        if self._last[0] != which:
            order = list(range(size))
            random.Random(derive_seed(self._seed, "data", stream, epoch)).shuffle(order)
            if self._rank is not None:
                order.sort(key=self._rank)
            self._last = (which, order)
        return self._last[1][step]


class ListSource(Source):
    """In-memory problems: epochs of the training problems, each in a new seeded order.

    For 3 problems a, b, c: train(0..5) is e.g. b a c | c a b. Held-out problems are ordered by hash, so that the first
    n are a random sample, independent of the file's order and of exclusions.

    With a `difficulty`, each epoch goes from easy to difficult. With a `stratum`, held-out problems alternate between
    strata in order, while they have any.
    """

    def __init__(
        self,
        train: Sequence[Problem],
        held_out: Sequence[Problem],
        seed: int,
        *,
        difficulty: Callable[[Problem], float] | None = None,
        stratum: Callable[[Problem], float] | None = None,
    ) -> None:
        self._train = list(train)
        self._held_out = sorted(held_out, key=lambda problem: hash_rank(problem.id.encode("utf-8", "replace")))
        self._held_out_keys = frozenset(problem.key for problem in held_out)
        self._epochs = Epochs(seed, None if difficulty is None else lambda place: difficulty(self._train[place]))
        self._stratum = stratum

    def train(self, index: int, stream: str = "train") -> Problem:
        if not self._train:
            raise UserError("every training example is also held out, or there is none to train on: give other data.")
        return self._train[self._epochs.place(index, len(self._train), stream)]

    def held_out(self, num: int) -> list[Problem]:
        if self._stratum is None:
            return self._held_out[:num]
        places: dict[float, Iterator[int]] = defaultdict(count)
        ranked = [(next(places[stratum := self._stratum(each)]), stratum, each) for each in self._held_out]
        return [problem for *_, problem in sorted(ranked, key=lambda one: one[:2])[:num]]

    def some(self, num: int) -> Sequence[Problem]:
        return self._train

    def leave_out(self, train: Keep, held_out: Keep) -> Sequence[tuple[str, int, int]]:
        before = self.sizes
        self._train = [problem for problem in self._train if train(problem)]
        self._held_out = [problem for problem in self._held_out if held_out(problem)]
        now = self.sizes
        return [(kind, was - is_, was) for kind, was, is_ in zip(("training", "held-out"), before, now, strict=True)]

    def holds_out(self, key: bytes) -> bool:
        return key in self._held_out_keys

    @property
    def sizes(self) -> tuple[int, int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self._train), len(self._held_out)


class HashedSource(Source):
    """Holds out a share of the problems by the hash of their keys; excluded problems are not drawn."""

    def __init__(self, *, eval_share: float, seed: int, max_train: int | None = None) -> None:
        self._share, self._seed, self._max_train = eval_share, seed, max_train
        self._epochs = Epochs(seed)
        self._keep: list[tuple[Keep, Keep]] = []
        self._restart()

    def holds_out(self, key: bytes) -> bool:
        return is_held_out(key, self._share)

    def leave_out(self, train: Keep, held_out: Keep) -> Sequence[tuple[str, int, int]]:
        self._keep.append((train, held_out))
        self._restart()
        return ()

    @abstractmethod
    def _restart(self) -> None:
        """Forget drawn problems."""

    def _trains(self, problem: Problem) -> bool:
        return not self.holds_out(problem.key) and all(keep(problem) for keep, _ in self._keep)

    def _evaluates(self, problem: Problem) -> bool:
        return self.holds_out(problem.key) and all(keep(problem) for _, keep in self._keep)


class ReplaySource(HashedSource):
    """Problems of a Python iterator, read on demand, in its order; `begin()` restarts it.

    If the iterator ends, epochs follow as for a list. Given `held_out` problems stand for a share of the iterator's,
    and are left out of training.
    """

    def __init__(
        self, begin: Callable[[], Iterator[Problem]], held_out: Sequence[Problem] | None = None, **split: Any
    ) -> None:
        self._begin = begin
        self._given = None if held_out is None else {problem.key: problem for problem in held_out}
        super().__init__(**split)

    def holds_out(self, key: bytes) -> bool:
        return super().holds_out(key) if self._given is None else key in self._given

    def train(self, index: int, stream: str = "train") -> Problem:
        if index < self._read(index + 1):
            return self._problems[index]
        if not self._problems and self._given is not None:
            raise UserError(
                "every example to train on is also held out, or its prompt is too long: let training or held-out "
                "examples be others."
            )
        if not self._problems:
            raise UserError(
                "the generator gives no example to train on: let it yield more, lower task.eval_share, or, where its "
                "prompts are too long, raise task.max_prompt_tokens or the model's context."
            )
        return self._problems[self._epochs.place(index, len(self._problems), stream)]

    def held_out(self, num: int) -> list[Problem]:
        seen: set[bytes] = set()

        def is_new(problem: Problem) -> bool:
            wanted = self._evaluates(problem) and problem.key not in seen
            seen.update([problem.key] if wanted else [])
            return wanted

        if self._given is not None:
            return list(islice(filter(is_new, self._given.values()), num))
        return list(islice(self._accepted(is_new), num))

    def some(self, num: int) -> Sequence[Problem]:
        return self._problems[: self._read(num)][:num]

    def _restart(self) -> None:
        self._iterator = self._accepted(self._trains)
        self._problems: list[Problem] = []  # training problems read so far

    def _accepted(self, wanted: Keep) -> Iterator[Problem]:
        """Accepted problems; ends after many consecutive rejections."""
        num_others = 0
        limit = int(MAX_TRIES / min(self._share, 1 - self._share))
        for problem in self._begin():
            num_others += 1
            if wanted(problem):
                num_others = 0
                yield problem
            if num_others >= limit:
                return

    def _read(self, num: int) -> int:
        """Read until `num` training problems are known, or all; returns their number."""
        num = min(num, self._max_train or num)
        self._problems += islice(self._iterator, max(0, num - len(self._problems)))
        return len(self._problems)


class DrawnSource(HashedSource):
    """Problems of endless seeded streams: `draw(seed, place)`.

    A draw on the wrong side of the split is repeated from another stream, so training never sees a held-out problem,
    even with few different ones.
    """

    def __init__(self, draw: Callable[[int, int], Problem], *, name: str, **split: Any) -> None:
        self._draw, self._name = draw, name
        super().__init__(**split)

    def train(self, index: int, stream: str = "train") -> Problem:
        if self._max_train is not None:
            index, stream = self._epochs.place(index, self._max_train, stream), "train"
        for attempt in range(MAX_TRIES):
            problem = self._draw(derive_seed(self._seed, self._name, stream, attempt), index)
            if self._trains(problem):
                return problem
        raise UserError(
            f"{self._name} gives no problem to train on in {MAX_TRIES:,} draws: allow longer prompts, or choose other "
            "settings."
        )

    def held_out(self, num: int) -> list[Problem]:
        """Drawn once and kept."""
        num_tries = 0
        while len(self._held_out) < num and num_tries < MAX_TRIES:
            problem = self._draw(derive_seed(EVAL_SEED, self._name, "held out"), self._num_draws)
            self._num_draws += 1
            num_tries += 1
            if self._evaluates(problem) and problem.key not in self._held_out:
                self._held_out[problem.key] = problem
                num_tries = 0
        return list(islice(self._held_out.values(), num))

    def _restart(self) -> None:
        self._held_out: dict[bytes, Problem] = {}
        self._num_draws = 0


def anything(problem: Problem) -> bool:
    """Accepts every problem."""
    return True
