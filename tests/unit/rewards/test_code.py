"""The reward and the metric of programs: what is read, what is paid, what is an error."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from rlvr.errors import ConfigError
from rlvr.jail.jail import Jail, JailError, chosen_way
from rlvr.jail.pool import Jails
from rlvr.rewards import code as code_module
from rlvr.rewards.base import Grade
from rlvr.rewards.code import Code, CodeMetric, program_in
from rlvr.rewards.code_judge import CodeTests, TestCase, is_expected, judge, same_output
from rlvr.rewards.parts import PartRunner, PartsVerifier
from rlvr.types import Attempt, Example, Message, StopReason
from tests.unit.rewards import attempts

DOUBLE = CodeTests(cases=tuple(TestCase(item={"call": f"double({x})"}, expected=2 * x) for x in range(1, 21)))
RIGHT = "```python\ndef double(x):\n    return x * 2\n```"
SQUARE = "```python\ndef double(x):\n    return x * x\n```"  # right for 2 alone


def attempt(text: str, tests: Any = DOUBLE, stop: StopReason = StopReason.STOP) -> Attempt:
    example = Example(id="double", messages=(Message(role="user", content="?"),), answer="", metadata={"tests": tests})
    return Attempt(example=example, completion=text, text=text, stop_reason=stop, num_tokens=9)


def grade(text: str, part: Code | None = None, **more: Any) -> Grade:
    return asyncio.run(PartRunner("code", part or Code(num_jails=1)).grade(attempt(text, **more)))


FENCES = {
    "no block": None,
    "```python\nx = 1": None,
    "```python\nx = 1\n```": "x = 1",
    "```\nx = 1\n```\nnow better:\n~~~py\nx = 2\n~~~\n": "x = 2",
    "```python\nx = 1\n```\n```sh\nls\n```": "x = 1",
    "````python\nx = '''\n```\n'''\n````": "x = '''\n```\n'''",
    "  ```Python title=a.py  \nif x:\n\ty\n  ```  ": "if x:\n\ty",
    "```sh\nls\n```": None,
    "say ```x = 1``` here": None,
    "```python\n```": "",
}


@pytest.mark.parametrize("text", FENCES)
def test_the_program_is_the_last_block_of_python(text: str) -> None:
    assert program_in(text) == FENCES[text]


def test_a_long_completion_is_read_in_linear_time() -> None:
    assert program_in("```\n" * 200_001) == ""
    assert program_in("`" * 1_000_000) is None


def test_what_is_paid() -> None:
    assert grade(RIGHT).value == 1.0
    wrong = grade(SQUARE)
    assert (wrong.value, wrong.status) == (0.0, "scored")
    assert wrong.message.startswith("wrong: on 'double(")
    assert wrong.facts["wrong"] == 1.0
    assert wrong.facts["passed"] == 0.0


def test_a_share_is_paid_on_request() -> None:
    part = Code(credit="share", max_tests=None, num_jails=1)
    assert grade(SQUARE, part).value == grade(SQUARE, part).facts["tests"] == 1 / 20
    assert grade(RIGHT, part).value == 1.0
    half = "```python\nimport os\ndef double(x):\n    return x * 2 if x < 11 else os._exit(0)\n```"
    assert grade(half, part).value == 0.5


def test_without_a_program_a_completion_is_invalid() -> None:
    for text, more in (("x * 2", {}), (RIGHT, {"stop": StopReason.LENGTH}), (f"<think>{RIGHT}</think> ok", {})):
        result = grade(text, **more)
        assert (result.value, result.status, result.message) == (0.0, "invalid", "no program")
    assert grade(f"<think>{SQUARE}</think>{RIGHT}").value == 1.0


def test_why_a_program_fails_is_said() -> None:
    def kind(program: str) -> str:
        return grade(f"```\n{program}\n```", Code(num_jails=1, timeout_s=0.5)).message.partition(":")[0]

    assert kind("def double(x): return 1 / 0") == "raised"
    assert kind("def double(x):\n    while True: pass") == "timed out"
    assert kind("def double(x): return bytearray(1 << 40)") == "out of memory"
    assert kind("def double(x) return") == "raised"


def test_a_program_has_so_much_memory() -> None:
    program = "```\ndef double(x):\n    return len(bytearray(100 << 20)) and x * 2\n```"
    assert grade(program, Code(num_jails=1, memory_mb=64, max_tests=1)).message.startswith("out of memory")
    assert grade(program, Code(num_jails=1, memory_mb=256, max_tests=1)).value == 1.0


def test_so_many_programs_run_at_once() -> None:
    both = threading.Barrier(2, timeout=20)
    pool = Jails(chosen_way("auto"), 2)
    for future in [pool.submit(lambda jail: both.wait()) for _ in range(4)]:
        future.result()
    pool.close()


def test_isolation_is_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = []

    class Noted(Jails):
        def __init__(self, way: Any, num: int) -> None:
            ways.append((way, num))
            super().__init__(way, num)

    monkeypatch.setattr(code_module, "jails", Noted)
    for isolation in ("none", "landlock"):
        assert grade(RIGHT, Code(isolation=isolation, num_jails=1)).value == 1.0
    assert ways == [("none", 1), ("landlock", 1)]


def test_tests_are_drawn_once_for_an_example() -> None:
    part = Code(max_tests=5)
    assert part.chosen("a", DOUBLE) == part.chosen("a", DOUBLE)
    assert len(part.chosen("a", DOUBLE).cases) == 5
    assert part.chosen("a", DOUBLE) != part.chosen("b", DOUBLE)
    assert Code(max_tests=20).chosen("a", DOUBLE) is DOUBLE


def test_a_jail_that_fails_is_an_error_and_not_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Jails):
        def submit(self, function: Any) -> Any:
            def raising(jail: Jail) -> None:
                raise JailError("it did not start")

            return super().submit(raising)

    monkeypatch.setattr(code_module, "jails", Broken)
    result = grade(RIGHT)
    assert result.status == "error"
    assert result.message.startswith("JailError: it did not start")


def test_an_example_without_tests_is_at_fault() -> None:
    assert grade(RIGHT, tests=None).bad_data


def test_it_is_for_tasks_with_tests() -> None:
    Code().check_run(attempts.run(has_tests=True))
    with pytest.raises(ConfigError, match="scores task=code"):
        Code().check_run(attempts.run(has_tests=False))


def test_verdicts_are_facts_of_an_episode() -> None:
    score = asyncio.run(PartsVerifier({"code": Code(num_jails=1)}).verify(attempt(SQUARE)))
    assert score.diagnostics["wrong"] == 1.0
    assert "code" in score.diagnostics


def test_the_metric_runs_all_tests() -> None:
    hidden = replace(DOUBLE, cases=(*DOUBLE.cases, TestCase(item={"call": "double(100)"}, expected=200)))
    almost = "```\ndef double(x):\n    return x * 2 if x < 100 else 0\n```"

    def correct(text: str) -> bool:
        return asyncio.run(CodeMetric().grade(attempt(text, tests=hidden))).correct

    assert correct(RIGHT)
    assert not correct(almost)
    assert not correct("no program")


def test_the_metric_uses_the_jail_of_the_reward() -> None:
    part = Code(isolation="none", timeout_s=2.0, max_tests=3, credit="share")
    bound = CodeMetric().bound(PartsVerifier({"code": part}))
    assert bound._part == Code(isolation="none", timeout_s=2.0, max_tests=None)


def test_outputs_are_compared_as_livecodebench_does() -> None:
    assert same_output(" 1 2\n3\n\n", "1 2\n3")
    assert same_output("1.0 2", "1 2.00")
    assert same_output("NO", "NO ")
    for written in ("1 2 3", "1\n2 3", "", "1 2\n4", "no", "1 2\n\n3"):
        assert not same_output(written, "1 2\n3")
    assert not same_output("nan", "1")


@pytest.mark.parametrize(
    ("value", "case", "expected"),
    [
        ((1, 2), TestCase(item={}, expected=[1, 2]), False),
        ((1, 2), TestCase(item={}, expected=[1, 2], by="json"), True),
        ({1: (2,)}, TestCase(item={}, expected={"1": [2]}, by="json"), True),
        (6, TestCase(item={}, expected=[6], by="json"), True),
        (6, TestCase(item={}, expected=[6, 7], by="json"), False),
        (6.0, TestCase(item={}, expected=6), True),
        (0.1 + 0.2, TestCase(item={}, expected=0.3), False),
        (0.1 + 0.2, TestCase(item={}, expected=0.3, by="close", tolerance=1e-9), True),
        ("x", TestCase(item={}, expected=0.3, by="close", tolerance=1e-9), False),
        (float("nan"), TestCase(item={}, expected=0.3, by="close", tolerance=1e-9), False),
        ([], TestCase(item={}, expected=False, by="truth"), True),
        (5, TestCase(item={}, expected="5", by="lines"), False),
    ],
)
def test_values_are_compared(value: Any, case: TestCase, expected: bool) -> None:
    assert is_expected(value, case) is expected


def test_a_program_that_reads_by_file_numbers_is_run_alone() -> None:
    cases = tuple(TestCase(item={"stdin": f"{x}"}, expected=f"{2 * x}", by="lines") for x in (1, 2, 3))
    program = "import os\nos.write(1, str(2 * int(os.read(0, 99))).encode())\nos._exit(0)"
    with Jail(chosen_way("auto")) as jail:
        assert judge(jail, program, CodeTests(cases=cases), timeout_s=10.0).kind == "passed"
        assert judge(jail, "print(3)", CodeTests(cases=cases), timeout_s=10.0).kind == "wrong"
        assert judge(jail, "print(2)", CodeTests(cases=cases), timeout_s=10.0, every=True).num_passed == 1
