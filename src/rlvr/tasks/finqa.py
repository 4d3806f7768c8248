"""FinQA, arXiv:2109.00122: a page of a financial report, text and table, and a question on it.

    {"id": "ETR/2016/page_23.pdf-2", "pre_text": [...], "post_text": [...], "table": [["", "2015"], ["revenue", "$ 5"]],
     "qa": {"question": "what is the net change ...?", "program": "subtract(5829, 5735)", "exe_ans": 94.0}}

The gold is `exe_ans`, the result of the gold program, and not the display text `answer`: they differ in unit, rounding
and sometimes value. Rows of the Hub's copy (`question`, `final_result` beside the page, no program) are read too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.rewards.metrics import FinqaMetric, FinqaProgramMetric, Metric
from rlvr.rewards.numbers import parse_answer
from rlvr.rows import DataError, Row, clean, number_text
from rlvr.settings import Text, setting
from rlvr.tasks.dataset import Data
from rlvr.tasks.problems import Problem, fingerprint
from rlvr.tasks.settings import DataPath, SplitSettings, TaskContext, data_folder
from rlvr.tasks.splits import NO_GOLD, Part, make_data, parse_rows

CELL = " | "  # no cell of the data has a bar, and a model tells bars from the spaces inside cells
STEP = re.compile(r"[a-z_]+\(")
CALL = re.compile(r"\b(?:add|subtract|multiply|divide|exp|greater|table_\w+)\s*\(")
"""A step of a program, as an example of one: `subtract(5829, 5735)`."""


@register("task", "finqa")
class Finqa(SplitSettings):
    """FinQA, arXiv:2109.00122: questions on a page of a financial report, text and table."""

    prompt: ClassVar[str] = "financial_reasoning"
    reward = "finqa"
    hub_id: ClassVar[str] = "ibm-research/finqa"
    path: DataPath = Field(default_factory=lambda: data_folder("finqa", "ibm-research/finqa"))
    eval_split: Text = setting("test", "held-out split")
    answer: Literal["number", "program"] = setting(
        "number",
        "what to answer with: a number or yes/no, or a program of the data set's own language (with "
        "reward=finqa_program prompt=financial_program)",
    )

    @property
    def answer_kind(self) -> str:
        return self.answer

    def make_metric(self) -> Metric:
        return FinqaProgramMetric() if self.answer == "program" else FinqaMetric()

    def check_run(self, config: Any) -> None:
        super().check_run(config)
        shows_steps = CALL.search(config.prompt.text) is not None
        if (
            self.answer == "program"
            and config.prompt.system
            and not (shows_steps or "program" in config.prompt.text.lower())
        ):
            raise ConfigError(
                "task.answer=program: prompt.system does not ask for a program, so no answer would be one; choose "
                "prompt=financial_program."
            )
        if self.answer == "number" and shows_steps:
            raise ConfigError(
                "task.answer=number: the prompt asks for a program, so no answer could be read; choose "
                "prompt=financial_reasoning, or task.answer=program reward=finqa_program."
            )

    def load(self, context: TaskContext) -> Data:
        """Rows without `exe_ans` have no gold; they are left out and noted."""

        def part(key: str) -> Part:
            return parse_rows(self.rows(key), lambda row: parse(row, self.answer == "program"))

        train = part("train_split") if context.reads == "all" else None
        return make_data(
            (train, part("eval_split")), where=self.path, seed=context.seed, max_train=self.max_train_examples
        )


def parse(row: Row, wants_program: bool) -> Problem | str:
    """The problem of a row, with metadata `table`, `exe_ans` and, where it is known, `program`; or `NO_GOLD`."""
    flat = "qa" not in row.fields and "question" in row.fields
    prefix = "" if flat else "qa."
    gold_field = "final_result" if flat else "qa.exe_ans"
    question, table = row.text(f"{prefix}question"), _table(row)
    gold = _gold(row, gold_field)
    if gold is None:
        return NO_GOLD
    facts = row.fields.get("gold_inds") if flat else row.get("qa").get("gold_inds")
    program = None if flat else row.get("qa").get("program")
    if program is not None:
        program = row.text("qa.program")
    elif wants_program:
        raise DataError(
            f"{row.place}: field 'qa.program' is missing: use the official JSON files, or task.answer=number."
        )
    solution = program or ""
    if wants_program:  # the sentences that annotators found the numbers in
        facts = list(facts.values()) if isinstance(facts, dict) else facts if isinstance(facts, list) else []
        solution = "\n".join(clean(fact) for fact in facts if isinstance(fact, str))
    steps = len(STEP.findall(program)) if program else 0
    size = () if not steps else ("1_step",) if steps == 1 else ("2_steps",) if steps == 2 else ("3_or_more_steps",)
    metadata: dict[str, Any] = {"table": table, "exe_ans": gold}
    if program is not None:
        metadata["program"] = program
    return Problem(
        id=row.text("id"),
        key=fingerprint(question, *(cell for cells in table for cell in cells)),
        question=f"{render_page(_lines(row, 'pre_text'), table, _lines(row, 'post_text'))}\n\nQuestion: {question}",
        answer=program if wants_program and program else gold if isinstance(gold, str) else number_text(gold),
        solution=solution,
        metadata=metadata,
        tags=(*size, "yes_or_no") if isinstance(gold, str) else size,
    )


def render_page(pre_text: Sequence[str], table: Sequence[Sequence[str]], post_text: Sequence[str]) -> str:
    """The page as text; a row of the table is a line with ` | ` between its cells:

    results of operations ...

     | amount ( in millions )
    2014 net revenue | $ 5735

    the regulatory asset ...
    """
    rows = [CELL.join(" ".join(cell.split()) for cell in row) for row in table]
    blocks = ["\n".join(pre_text), "\n".join(rows), "\n".join(post_text)]
    return "\n\n".join(block for block in blocks if block.strip())


def _gold(row: Row, field: str) -> float | str | None:
    """A number, `yes` or `no`; None if there is none."""
    value = row.get(field)
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.strip().lower() in ("yes", "no"):
        return value.strip().lower()
    number = math.nan
    with suppress(ValueError, OverflowError):  # an integer of hundreds of digits
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = float(value)
        elif isinstance(value, str) and parse_answer(value) is not None:
            number = float(value.replace(",", ""))
    if not math.isfinite(number):
        raise row.wrong(field, value, "a number, yes or no")
    return number


def _table(row: Row) -> list[list[str]]:
    table = row.get("table")
    if not isinstance(table, list) or not all(isinstance(cells, list) for cells in table):
        raise row.wrong("table", table, "a list of rows, each a list of cells")
    for cells in table:
        for cell in cells:
            if isinstance(cell, bool) or not isinstance(cell, str | int | float):
                raise row.wrong("table", cell, "made of cells that are texts or numbers")
    return [[clean(str(cell)) for cell in cells] for cells in table]


def _lines(row: Row, field: str) -> list[str]:
    lines = row.get(field)
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise row.wrong(field, lines, "a list of texts")
    return [text for line in lines if (text := clean(line))]
