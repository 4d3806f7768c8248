"""GSM8K, arXiv:2110.14168: `{"question": ..., "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips ...\\n#### 72"}`."""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import Field

from rlvr.registry import register
from rlvr.rewards.metrics import Metric, NumericMetric
from rlvr.rewards.numbers import parse_answer
from rlvr.rows import Row, clean
from rlvr.settings import PositiveInt, Text, setting
from rlvr.tasks.dataset import Data
from rlvr.tasks.problems import Problem, fingerprint
from rlvr.tasks.readers import Split, split_names
from rlvr.tasks.settings import DataPath, SplitSettings, Subset, TaskContext, data_folder
from rlvr.tasks.splits import NO_GOLD, Part, make_data, parse_rows

FIELDS = ("question", "answer")
CALCULATION = re.compile(r"<<[^<>\n]{0,200}>>")
SIZES = ("1_step", "2_steps", "3_steps", "4_steps", "5_or_more_steps")
"""How many calculations the reference solution marks."""


@register("task", "gsm8k")
class Gsm8k(SplitSettings):
    """GSM8K, arXiv:2110.14168: grade-school word problems with whole numbers as answers."""

    prompt: ClassVar[str] = "math_reasoning"
    reward = "gsm8k"
    hub_id: ClassVar[str] = "openai/gsm8k"
    path: DataPath = Field(default_factory=lambda: data_folder("gsm8k", "openai/gsm8k"))
    subset: Subset = "main"
    eval_split: Text = setting("test", "held-out split")
    solution_lines: PositiveInt | None = setting(
        None,
        "demonstrations and few-shot examples show this many lines of a solution, the last ones; null: all",
        only_if="model.from_scratch or prompt.few_shot > 0",
    )

    @property
    def answer_kind(self) -> str:
        return "number"

    def make_metric(self) -> Metric:
        return NumericMetric()

    def load(self, context: TaskContext) -> Data:
        """Rows without a number after `####` have no gold; they are left out and noted."""
        train = self._part("train_split") if context.reads == "all" else None
        held_out = self._part("eval_split")
        return make_data((train, held_out), where=self.path, seed=context.seed, max_train=self.max_train_examples)

    def _part(self, key: str) -> Part:
        rows: dict[str, Row] = {}
        for split in split_names(f"task.{key}", getattr(self, key)):
            found = Split(self.path, split, self.subset).rows(FIELDS)
            rows |= {f"gsm8k/{split}/{number}": row for number, row in enumerate(found, start=1)}
        names = iter(rows)
        return parse_rows(rows.values(), lambda row: parse(row, next(names), self.solution_lines))


def parse(row: Row, name: str, solution_lines: int | None) -> Problem | str:
    """The problem of a row, or `NO_GOLD`.

    `"48/2 = <<48/2=24>>24\\n#### 1,072"` gives the answer `1072` and the solution `48/2 = 24`.
    """
    question, text = row.text("question"), row.text("answer")
    working, mark, gold = text.rpartition("####")
    answer = clean(gold).replace(",", "")
    if not mark or parse_answer(answer) is None:
        return NO_GOLD
    lines = [line.strip() for line in CALCULATION.sub("", working).splitlines() if line.strip()]
    shown = lines if solution_lines is None else lines[-solution_lines:]
    steps = len(CALCULATION.findall(working))
    return Problem(
        id=name,
        key=fingerprint(question),
        question=question,
        answer=answer,
        solution="\n".join(shown),
        tags=(SIZES[min(steps, len(SIZES)) - 1],) if steps else (),
    )
