"""GSM8K, arXiv:2110.14168: `{"question": ..., "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips ...\\n#### 72"}`."""

import re
from typing import ClassVar

from pydantic import Field

from rlvr.data.problems import Problem, fingerprint
from rlvr.data.rows import FilledText, Row, clean
from rlvr.registry import register
from rlvr.rewards.metrics import Metric
from rlvr.rewards.numbers import parse_gold
from rlvr.rewards.numeric import NumericMetric
from rlvr.settings import PositiveInt, Text, setting
from rlvr.tasks.loading import NO_GOLD
from rlvr.tasks.settings import DataPath, SplitSettings, Subset, data_folder

CALCULATION = re.compile(r"<<[^<>\n]{0,200}>>")
SIZES = ("1_step", "2_steps", "3_steps", "4_steps", "5_or_more_steps")
"""Tag: number of calculations marked in the reference solution."""


@register("task", "gsm8k")
class Gsm8k(SplitSettings):
    """GSM8K, arXiv:2110.14168: grade-school word problems with integer answers."""

    prompt: ClassVar[str] = "math_reasoning"
    reward = "gsm8k"
    hub_id: ClassVar[str] = "openai/gsm8k"
    columns: ClassVar[tuple[str, ...]] = ("question", "answer")
    answer_kind = "number"
    path: DataPath = Field(default_factory=lambda: data_folder("gsm8k", "openai/gsm8k"))
    subset: Subset = "main"
    eval_split: Text = setting("test", "held-out split")
    solution_lines: PositiveInt | None = setting(
        None,
        "number of last solution lines in demonstrations and few-shot examples; null: all",
        only_if="model.from_scratch or warm_start.enabled or prompt.few_shot > 0  # a model made from scratch, "
        "warm_start.enabled or prompt.few_shot > 0",
    )

    def make_metric(self) -> Metric:
        return NumericMetric()

    def parse(self, row: Row) -> Problem | str:
        """`NO_GOLD` without a number after `####`.

        `"48/2 = <<48/2=24>>24\\n#### 1,072"` gives the answer `1072` and the solution `48/2 = 24`.
        """
        question, text = row.read(FilledText, "question"), row.read(FilledText, "answer")
        working, mark, gold = text.rpartition("####")
        answer = clean(gold).replace(",", "")
        if not mark or parse_gold(answer) is None:
            return NO_GOLD
        lines = [line.strip() for line in CALCULATION.sub("", working).splitlines() if line.strip()]
        steps = len(CALCULATION.findall(working))
        return Problem(
            id=f"gsm8k/{row.name}",
            key=fingerprint(question),
            question=question,
            answer=answer,
            solution="\n".join(lines[-(self.solution_lines or len(lines)) :]),
            tags=(SIZES[min(steps, len(SIZES)) - 1],) if steps else (),
        )
