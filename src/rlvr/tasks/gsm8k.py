"""GSM8K, arXiv:2110.14168: `{"question": ..., "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips ...\\n#### 72"}`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlvr.rewards.numbers import parse_answer
from rlvr.tasks.dataset import Data
from rlvr.tasks.problems import Problem, fingerprint
from rlvr.tasks.readers import read_split, split_names
from rlvr.tasks.rows import Row, clean
from rlvr.tasks.splits import Part, make_data, parse_rows

if TYPE_CHECKING:
    from rlvr.config.schema import Gsm8kTask

FIELDS = ("question", "answer")
CALCULATION = re.compile(r"<<[^<>\n]{0,200}>>")


def load_gsm8k(settings: Gsm8kTask, seed: int) -> Data:
    """Rows without a number after `####` have no gold; they are left out and noted."""
    return make_data(
        _part(settings, "train_split", settings.train_split),
        _part(settings, "eval_split", settings.eval_split),
        where=settings.path,
        seed=seed,
        max_train=settings.max_train_examples,
    )


def _part(settings: Gsm8kTask, key: str, splits: str) -> Part:
    problems: list[Row] = []
    names: list[str] = []
    for split in split_names(f"task.{key}", splits):
        rows = read_split(settings.path, split, subset=settings.subset, fields=FIELDS)
        problems += rows
        names += [f"gsm8k/{split}/{number}" for number in range(1, len(rows) + 1)]
    ids = iter(names)
    return parse_rows(problems, lambda row: parse(row, next(ids), settings.solution_lines))


def parse(row: Row, name: str, solution_lines: int | None) -> Problem | None:
    """The problem of a row; None without a gold.

    `"48/2 = <<48/2=24>>24\\n#### 1,072"` gives the answer `1072` and the solution `48/2 = 24`.
    """
    question, text = row.text("question"), row.text("answer")
    working, mark, gold = text.rpartition("####")
    answer = clean(gold).replace(",", "")
    if not mark or parse_answer(answer) is None:
        return None
    lines = [line.strip() for line in CALCULATION.sub("", working).splitlines() if line.strip()]
    shown = lines if solution_lines is None else lines[-solution_lines:]
    return Problem(
        id=name,
        key=fingerprint(question),
        question=question,
        answer=answer,
        solution="\n".join(shown),
        tags=_tags(len(CALCULATION.findall(working))),
    )


def _tags(steps: int) -> tuple[str, ...]:
    """How many calculations the reference solution makes; nothing where it marks none."""
    sizes = ("1_step", "2_steps", "3_steps", "4_steps", "5_or_more_steps")
    return (sizes[min(steps, len(sizes)) - 1],) if steps else ()
