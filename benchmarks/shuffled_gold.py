"""`rlvr` with an intentional bug: the gold answer of a training example of keep_one is that of another of its facts.

    python benchmarks/shuffled_gold.py train --config-name keep_one

docs/research.md shows the effect.
"""

from __future__ import annotations

import random
from dataclasses import replace

from rlvr.cli.main import main
from rlvr.research.keep_one import KeepOneTask
from rlvr.types import Example

right = KeepOneTask.train_example


def of_another(self: KeepOneTask, index: int) -> Example:
    """The example with the answer of any of its other facts."""
    example = right(self, index)
    others = [fact[2] for fact in example.metadata["facts"].values() if fact != example.metadata["asked"]]
    return replace(example, answer=random.Random(index).choice(others)) if others else example


if __name__ == "__main__":
    KeepOneTask.train_example = of_another
    raise SystemExit(main())
