"""`rlvr` with an intentional bug: the policy's evidence is about the answer of another question.

    python benchmarks/shuffled_gold.py train --config-name keep_one

docs/keep_one.md shows the effect.
"""

from __future__ import annotations

import random
from dataclasses import replace

from rlvr.cli.main import main
from rlvr.core.value import Branch
from rlvr.run.late import LateGrader
from rlvr.types import Example, LateGrade

right = LateGrader._branches


def of_another(self: LateGrader, example: Example, late: LateGrade) -> list[Branch]:
    """The branches with an answer drawn by the example's id, the same for all episodes of a group."""
    answers = [fact[2] for fact in example.metadata["facts"].values()]
    return right(self, replace(example, answer=random.Random(example.id).choice(answers)), late)


if __name__ == "__main__":
    LateGrader._branches = of_another
    raise SystemExit(main())
