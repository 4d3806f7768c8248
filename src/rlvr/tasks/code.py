"""Problems whose answers are programs, with the tests that judge them: docs/code.md."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from rlvr.data.conversations import is_conversation, read_prompt
from rlvr.data.problems import Problem, fingerprint
from rlvr.data.rows import ENDINGS, DataError, FilledText, Row, read_file
from rlvr.errors import ConfigError
from rlvr.jail.jail import Jail, chosen_way
from rlvr.jail.pool import jails
from rlvr.jail.ways import PROMISES
from rlvr.printable import ascii_text
from rlvr.registry import register
from rlvr.rewards.code import Code, CodeMetric
from rlvr.rewards.code_judge import Verdict, judge
from rlvr.rewards.metrics import Metric
from rlvr.settings import Text, setting
from rlvr.tasks.base import TaskContext
from rlvr.tasks.code_layouts import PLACES, QUESTIONS, NoTestsError, RowTests, places_in, read_tests, solutions_of
from rlvr.tasks.code_made import MADE, made_rows
from rlvr.tasks.loading import NUM_NAMED, Data
from rlvr.tasks.settings import DataPath, HeldOutShare, SplitSettings
from rlvr.types import Message

NUM_READ = 100
"""Rows that show the layout."""
NUM_TRIED = 50
"""Solutions of the data that are tried at loading."""
FENCED = "```python\n{}\n```"


@register("task", "code")
class CodeTask(SplitSettings):
    """Problems that programs solve, judged by the tests of the data: MBPP, HumanEval, APPS, LiveCodeBench, others."""

    reward = "code"
    has_tests: ClassVar[bool] = True
    answer_kind = "program"
    path: DataPath = setting(
        description="as for other tasks, or one file; made: functions of two numbers, without data"
    )
    eval_split: Text | None = setting(None, "held-out split; null: eval_share of the rows of train_split")
    eval_share: HeldOutShare = setting(
        0.1, "share of the rows, chosen by hash, that is never trained on", only_if="eval_split is None"
    )

    def make_metric(self) -> Metric:
        return CodeMetric()

    def rows(self, key: str) -> Iterator[Row]:
        """The rows of a split, or of `path` where it is one file."""
        if self.path == MADE:
            yield from made_rows()
            return
        path = Path(self.path).expanduser()
        if not path.name.endswith(ENDINGS):
            yield from super().rows(key)
            return
        if self.eval_split is not None:
            raise ConfigError(
                f"task.eval_split={self.eval_split}: task.path is a single file; name a folder of splits."
            )
        for number, row in enumerate(read_file(path), start=1):
            yield replace(row, name=str(number))

    def parser(self, key: str, seed: int) -> Callable[[Row], Problem | str]:
        """DataError if the first rows show no known place of tests."""
        first = list(islice(self.rows(key), NUM_READ))
        columns = places_in(first)
        if columns is None:
            there = ", ".join(dict.fromkeys(name for row in first for name in row.fields))
            known = ", ".join(place[0] for place in PLACES)
            raise DataError(
                f"{ascii_text(self.path)}: no column is known to hold tests (there are {ascii_text(there)}; known are "
                f"{known})."
            )
        return partial(parsed, columns=columns, name=self.name)

    def parse(self, row: Row) -> Problem | str:
        return parsed(row, columns=places_in([row]) or (), name=self.name)

    def load(self, context: TaskContext, **order: Any) -> Data:
        """Notes how programs are isolated, which tests were left out, and whose own solution fails."""
        data = super().load(context, **order)
        sizes = data.source.sizes or (0, 0)
        problems = [*data.source.some(0), *data.source.held_out(sizes[1])]
        parts = [part for part in getattr(context.reward, "parts", {}).values() if isinstance(part, Code)]
        notes = [note for part in parts[:1] for note in (_isolation(part), *_failing(problems, part))]
        return replace(data, notes=(*data.notes, *_left_out(problems), *notes))


def parsed(row: Row, *, columns: Sequence[str], name: str) -> Problem | str:
    """The problem of a row, or why it is left out."""
    try:
        row_tests = read_tests(row, columns)
    except NoTestsError as error:
        return str(error)
    messages: tuple[Message, ...] = ()
    field = next((field for field in QUESTIONS if field in row), QUESTIONS[0])
    if is_conversation(row, field):
        messages = read_prompt(row, field)
        question = "\n".join(message.content for message in messages)
    else:
        question = _asked(row, row.read(FilledText, field), row_tests)
    key = fingerprint(question)
    program = next(solutions_of(row), "")
    if program and "entry_point" in row and f"def {row.get('entry_point')}" not in program:
        program = f"{row.get(field)}{program}"  # HumanEval's solutions go on where the prompt ends
    return Problem(
        id=f"{name}/{row.name or key.hex()}",
        key=key,
        question=question,
        messages=messages,
        answer=FENCED.format(program.strip("\n")) if program else "",
        metadata={"tests": row_tests.tests, "num_left_out": row_tests.num_left_out},
        row=row.fields,
    )


def _asked(row: Row, question: str, row_tests: RowTests) -> str:
    """The question, the beginning of the program where there is one, and what is to be written."""
    item = row_tests.tests.cases[0].item
    starter = row.get("starter_code") if "starter_code" in row else ""
    parts = [question]
    if "entry_point" in row and "def " in question:
        parts = ["Complete this program:", FENCED.format(question)]
    elif isinstance(starter, str) and starter.strip():
        parts.append(f"Begin with:\n{FENCED.format(starter.strip())}")
    elif "call" in item:
        parts.append(f"It is called like this: {item['call']}")
    elif "stdin" in item:
        parts.append("Read from standard input and write to standard output.")
    return "\n\n".join((*parts, "Write the whole program in Python in one fenced block, ```python."))


def _left_out(problems: Sequence[Problem]) -> list[str]:
    """`31 of 1,284 tests are no call and literal: left out`"""
    num_left_out = sum(problem.metadata["num_left_out"] for problem in problems)
    num = num_left_out + sum(len(problem.metadata["tests"].cases) for problem in problems)
    share = f"{num_left_out:,} of {num:,} tests ({num_left_out / num:.1%})" if num else ""
    return [f"{share} cannot be split into a call and a literal: left out"] if num_left_out else []


def _isolation(part: Code) -> str:
    return f"programs run in a jail: {PROMISES[chosen_way(part.isolation)]}"


def _failing(problems: Sequence[Problem], part: Code) -> list[str]:
    """Which of the first solutions fail their own tests."""
    tried = [problem for problem in problems if problem.answer][:NUM_TRIED]
    pool = jails(chosen_way(part.isolation), part.num_jails)
    wrong = []
    for problem, future in [(problem, pool.submit(partial(_tried, problem, part))) for problem in tried]:
        if (verdict := future.result()).kind not in ("passed", "error"):
            wrong.append(f"{problem.id}: {verdict.kind} {ascii_text(verdict.message)}")
    if not wrong:
        return []
    more = f"; and {len(wrong) - NUM_NAMED} more" if len(wrong) > NUM_NAMED else ""
    return [
        f"{len(wrong)} of {len(tried)} solutions of the data fail their tests ({'; '.join(wrong[:NUM_NAMED])}{more})"
    ]


def _tried(problem: Problem, part: Code, jail: Jail) -> Verdict:
    program = problem.answer.removeprefix("```python\n").removesuffix("\n```")
    tests = part.chosen(problem.id, problem.metadata["tests"])
    return judge(jail, program, tests, timeout_s=part.timeout_s, memory_mb=part.memory_mb)
