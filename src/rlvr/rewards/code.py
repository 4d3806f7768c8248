"""Programs judged by tests, in a jail: docs/code.md."""

import asyncio
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, get_args

from pydantic import PrivateAttr

from rlvr.errors import UserError
from rlvr.jail.jail import chosen_way
from rlvr.jail.pool import jails
from rlvr.registry import register
from rlvr.rewards.base import Grade, Part, Verifier
from rlvr.rewards.code_judge import CodeTests, Kind, Verdict, judge
from rlvr.rewards.metrics import Metric
from rlvr.rewards.parts import PartRunner
from rlvr.run_view import TaskView
from rlvr.settings import PositiveFloat, PositiveInt, setting
from rlvr.types import Attempt, GradedAnswer, StopReason

KINDS: tuple[Kind, ...] = get_args(Kind)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`\n]*")
_PYTHON = ("", "python", "python3", "py", "py3")


@register("reward", "code")
class Code(Part):
    """1 for a program that passes the tests of its problem, in a jail without network and files.

    The program is the last fenced block of Python behind the reasoning; a completion without one is invalid. Inputs go
    into the jail and values come out: what is expected stays outside. A jail that fails is an error, no wrong answer.
    """

    in_process = True
    reads_answer = True
    needs_metadata = True
    scores, instead = "task=code", "numeric, math or text"

    credit: Literal["all", "share"] = setting("all", "all: 1 if all tests pass; share: the share of them that does")
    max_tests: PositiveInt | None = setting(
        15, "tests of a problem, drawn once, the same for all its completions; null: all"
    )
    timeout_s: PositiveFloat = setting(
        6.0, "seconds of a core that a test may take; all tests of a program may last five times as long"
    )
    memory_mb: PositiveInt = setting(512, "address space of a program, in MB")
    num_jails: PositiveInt = setting(2, "programs that run at the same time")
    isolation: Literal["auto", "bwrap", "namespaces", "landlock", "none"] = setting(
        "auto", "how programs are isolated; auto: the first of the others that works here; none: not at all"
    )

    def bound(self, key: str, functions: Mapping[str, Callable[..., Any]]) -> Self:
        """UserError if no way of isolation works here."""
        chosen_way(self.isolation)
        return self

    def suits(self, task: TaskView) -> bool:
        return task.has_tests

    async def grade(self, attempt: Attempt) -> Grade:
        tests = attempt.example.metadata.get("tests")
        if not isinstance(tests, CodeTests):
            return Grade.failed(f"example {attempt.example.id!r} has no tests: it is not of task=code", bad_data=True)
        program = program_in(attempt.said) if attempt.stop_reason is StopReason.STOP else None
        if program is None:
            return self._graded(Verdict(kind="no program"))
        chosen = self.chosen(attempt.example.id, tests)
        limits = {"timeout_s": self.timeout_s, "memory_mb": self.memory_mb, "every": self.credit == "share"}
        work = partial(judge, program=program, tests=chosen, **limits)
        return self._graded(await asyncio.wrap_future(jails(chosen_way(self.isolation), self.num_jails).submit(work)))

    def chosen(self, example_id: str, tests: CodeTests) -> CodeTests:
        """At most `max_tests` of the tests in their order, always the same of an example."""
        if self.max_tests is None or len(tests.cases) <= self.max_tests:
            return tests
        places = random.Random(example_id).sample(range(len(tests.cases)), self.max_tests)
        return replace(tests, cases=tuple(tests.cases[place] for place in sorted(places)))

    def _graded(self, verdict: Verdict) -> Grade:
        if verdict.kind == "error":
            return Grade.failed(f"the jail failed: {verdict.message}")
        share = verdict.num_passed / verdict.num_tests if verdict.num_tests else 0.0
        facts = {kind.replace(" ", "_"): float(kind == verdict.kind) for kind in KINDS if kind != "error"}
        return Grade(
            value=share if self.credit == "share" else float(verdict.kind == "passed"),
            status="invalid" if verdict.kind == "no program" else "scored",
            message="" if verdict.kind == "passed" else f"{verdict.kind}: {verdict.message}".rstrip(": "),
            facts=facts | ({"tests": share} if self.credit == "share" else {}),
        )


@register("metric", "code")
class CodeMetric(Metric):
    """Right if all tests of the problem pass, also those that a reward with `max_tests` leaves out.

    Jail and limits are those of the reward. Votes: the program as written.
    """

    reads_gold = False
    _part: Code = PrivateAttr(Code(max_tests=None))

    def bound(self, verifier: Verifier) -> Self:
        bound = self.model_copy()
        for part in getattr(verifier, "parts", {}).values():
            if isinstance(part, Code):
                bound._part = part.model_copy(update={"max_tests": None, "credit": "all"})
        return bound

    async def grade(self, attempt: Attempt) -> GradedAnswer:
        grade = await PartRunner("code", self._part).grade(attempt)
        if grade.bad_data:
            raise UserError(f"{grade.message}: choose another metric.")
        if grade.status == "error":
            return GradedAnswer(answer=None, correct=False, failure=grade.message)
        return GradedAnswer(answer=program_in(attempt.said), correct=grade.value >= 1.0)


def program_in(text: str) -> str | None:
    """The last fenced block that is Python or says no language; None if no fence is closed.

    "First:\\n```python\\nx = 1\\n```\\nBetter:\\n```\\nx = 2\\n```\\n```sh\\nls\\n```"  ->  "x = 2"
    """
    program, mark, language, block = None, "", "", list[str]()
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line.rstrip())
        if not mark:
            if fence is not None:
                mark, language, block = fence[1], fence[2].lower(), []
        elif fence is not None and fence[1].startswith(mark) and not fence[2]:
            program = "\n".join(block) if language in _PYTHON else program
            mark = ""
        else:
            block.append(line)
    return program
