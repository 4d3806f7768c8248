"""FinQA, arXiv:2109.00122: questions about a page of a financial report with text and table.

    {"id": "ETR/2016/page_23.pdf-2", "pre_text": [...], "post_text": [...], "table": [["", "2015"], ["revenue", "$ 5"]],
     "qa": {"question": "what is the net change ...?", "program": "subtract(5829, 5735)", "exe_ans": 94.0}}

The gold is `exe_ans`, the result of the gold program, not the display text `answer`: they differ in unit, rounding and
sometimes value. Rows of the Hub's copy (`question`, `final_result` beside the page, no program) are also accepted.
"""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, AliasChoices, AliasPath, BaseModel, BeforeValidator, Field, PlainValidator

from rlvr.data.problems import Problem, fingerprint
from rlvr.data.rows import Cell, FilledText, Row, clean, number_text
from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.rewards.finqa import FinqaProgramMetric
from rlvr.rewards.metrics import Metric
from rlvr.rewards.numbers import parse_answer
from rlvr.rewards.numeric import FinqaMetric
from rlvr.run_view import RunView
from rlvr.settings import Text, setting
from rlvr.tasks.loading import NO_GOLD
from rlvr.tasks.settings import DataPath, SplitSettings, data_folder

CELL = " | "  # no cell has a bar; unlike spaces, bars are unambiguous
STEP = re.compile(r"[a-z_]+\(")
CALL = re.compile(r"\b(?:add|subtract|multiply|divide|exp|greater|table_\w+)\s*\(")
"""A program step, to find an example of one: `subtract(5829, 5735)`."""


@register("task", "finqa")
class Finqa(SplitSettings):
    """FinQA, arXiv:2109.00122: questions about a page of a financial report, text and table."""

    prompt: ClassVar[str] = "financial_reasoning"
    reward = "finqa"
    hub_id: ClassVar[str] = "ibm-research/finqa"
    path: DataPath = Field(default_factory=lambda: data_folder("finqa", "ibm-research/finqa"))
    eval_split: Text = setting("test", "held-out split")
    answer: Literal["number", "program"] = setting(
        "number",
        "form of answers: a number or yes/no, or a program in the data set's language (with "
        "reward=finqa_program prompt=financial_program)",
    )

    @property
    def answer_kind(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.answer

    def make_metric(self) -> Metric:
        return FinqaProgramMetric() if self.answer == "program" else FinqaMetric()

    def check_run(self, run: RunView) -> None:
        super().check_run(run)
        text, wants_program = run.prompt.text, self.answer == "program"
        if CALL.search(text) is not None:
            is_wrong = not wants_program
        else:
            is_wrong = wants_program and run.prompt.system and "program" not in text.lower()
        if is_wrong:
            raise ConfigError(
                f"task.answer={self.answer}: the prompt asks for a {'number' if wants_program else 'program'}, so no "
                "answer could be read; choose prompt=financial_reasoning for numbers, or prompt=financial_program "
                "reward=finqa_program for programs."
            )

    def parse(self, row: Row) -> Problem | str:
        """With metadata `table`, `exe_ans` and, if known, `program`; `NO_GOLD` without `exe_ans`."""
        page: _Page = row.read(_Page)
        gold, program, wants_program = page.exe_ans, page.program, self.answer == "program"
        if gold is None:
            return NO_GOLD
        if wants_program and program is None:
            raise row.wrong(
                "qa.program", None, "must be a program (see the official JSON files, or task.answer=number)"
            )
        solution = program or ""
        if wants_program:  # sentences with the numbers, marked by annotators
            found = page.gold_inds
            facts = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
            solution = "\n".join(clean(fact) for fact in facts if isinstance(fact, str))
        steps = len(STEP.findall(program or ""))
        size = {0: (), 1: ("1_step",), 2: ("2_steps",)}.get(steps, ("3_or_more_steps",))
        text = render_page(page.pre_text, page.table, page.post_text)
        return Problem(
            id=page.id,
            key=fingerprint(page.question, *(cell for cells in page.table for cell in cells)),
            question=f"{text}\n\nQuestion: {page.question}",
            about=fingerprint(text),
            answer=program if wants_program and program else gold if isinstance(gold, str) else number_text(gold),
            solution=solution,
            metadata={"table": page.table, "exe_ans": gold} | ({} if program is None else {"program": program}),
            tags=(*size, "yes_or_no") if isinstance(gold, str) else size,
        )


def _gold(value: Any) -> float | str | None:
    """A number, `yes` or `no`; None if missing."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.strip().lower() in ("yes", "no"):
        return value.strip().lower()
    with suppress(ValueError, OverflowError):  # an integer of hundreds of digits
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number or (isinstance(value, str) and parse_answer(value) is not None):
            number = float(value.replace(",", "") if isinstance(value, str) else value)
            if math.isfinite(number):
                return number
    raise ValueError("must be a number, yes or no")


def _table_cell(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _of_qa(name: str, flat: str) -> Any:
    return Field(validation_alias=AliasChoices(AliasPath("qa", name), flat))


Lines = Annotated[list[Cell], AfterValidator(lambda lines: [line for line in lines if line])]


class _Page(BaseModel):
    table: list[list[Annotated[Cell, BeforeValidator(_table_cell)]]]
    pre_text: Lines
    post_text: Lines
    id: FilledText
    question: FilledText = _of_qa("question", "question")
    exe_ans: Annotated[float | str | None, PlainValidator(_gold)] = _of_qa("exe_ans", "final_result")
    program: FilledText | None = Field(None, validation_alias=AliasPath("qa", "program"))
    gold_inds: Any = Field(None, validation_alias=AliasChoices(AliasPath("qa", "gold_inds"), "gold_inds"))


def render_page(pre_text: Sequence[str], table: Sequence[Sequence[str]], post_text: Sequence[str]) -> str:
    """The page as text; a table row is a line with ` | ` between cells:

    results of operations ...

     | amount ( in millions )
    2014 net revenue | $ 5735

    the regulatory asset ...
    """
    rows = [CELL.join(" ".join(cell.split()) for cell in row) for row in table]
    blocks = ["\n".join(pre_text), "\n".join(rows), "\n".join(post_text)]
    return "\n\n".join(block for block in blocks if block.strip())
