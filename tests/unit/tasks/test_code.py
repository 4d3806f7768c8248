"""The layouts of public data of programs: rows as they are written, made up here."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from rlvr.data.problems import Problem
from rlvr.data.rows import DataError, Row
from rlvr.jail.jail import Jail, chosen_way
from rlvr.rewards.code import program_in
from rlvr.rewards.code_judge import TestCase, judge
from rlvr.tasks.code import CodeTask, parsed
from rlvr.tasks.code_asserts import split_asserts
from rlvr.tasks.code_layouts import NoTestsError, places_in, read_tests

FUNCTION = "def double(x):\n    return x * 2\n"
READER = "print(int(input()) * 2)"
METHOD = "class Solution:\n    def double(self, x):\n        return x * 2\n"
STDIN = {"inputs": ["1\n", "5"], "outputs": ["2\n", "10"]}
CALLS = {"fn_name": "double", "inputs": [[1], [5]], "outputs": [[2], 10]}
LISTED = [{"input": "1", "output": "2", "testtype": "stdin"}, {"input": "5", "output": "10", "testtype": "stdin"}]
CALLED = [
    {"input": "1", "output": "2", "testtype": "functional"},
    {"input": "5", "output": "10", "testtype": "functional"},
]
ASSERTS = ["assert double(1) == 2", "assert double(5) == 10"]
CHECK = "METADATA = {}\ndef check(candidate):\n    assert candidate(1) == 2, 'one'\n    assert candidate(5) == 10\n"
EVALPLUS = (
    "import numpy as np\ndef assertion(out, exp, atol):\n    assert out == exp\n"
    "def check(candidate):\n    inputs = [[1], [5]]\n    results = [2, 10]\n"
    "    for i, (inp, exp) in enumerate(zip(inputs, results)):\n        assertion(candidate(*inp), exp, 0)\n"
)
PYTEST = (
    "from solution import double\n\ndef test_one():\n    result = double(1)\n    assert result == 2\n\n"
    "def test_five():\n    assert double(5) == 10\n"
)
PACKED = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(LISTED[1:])))).decode()
CHAT = [{"role": "user", "content": "Double a number."}]

LAYOUTS: dict[str, tuple[dict[str, Any], str]] = {
    "MBPP": ({"text": "Double.", "code": FUNCTION, "test_list": ASSERTS, "test_setup_code": "import math"}, FUNCTION),
    "MBPP sanitized": ({"prompt": "Double.", "test_list": ASSERTS, "test_imports": ["import math"]}, FUNCTION),
    "HumanEval": (
        {"prompt": 'def double(x):\n    """2 x"""\n', "test": CHECK, "entry_point": "double", "task_id": "HumanEval/0"},
        FUNCTION,
    ),
    "EvalPlus": ({"prompt": "def double(x):\n    'd'\n", "test": EVALPLUS, "entry_point": "double"}, FUNCTION),
    "APPS": ({"question": "Double.", "input_output": json.dumps(STDIN), "solutions": json.dumps([READER])}, READER),
    "APPS called": (
        {"question": "Double.", "input_output": json.dumps(CALLS), "starter_code": "def double(x):"},
        FUNCTION,
    ),
    "TACO": ({"question": "Double.", "input_output": STDIN, "starter_code": ""}, READER),
    "verl PRIME": ({"prompt": CHAT, "reward_model": {"ground_truth": json.dumps(STDIN)}}, READER),
    "verl PRIME called": ({"prompt": CHAT, "reward_model": {"ground_truth": json.dumps(CALLS)}}, FUNCTION),
    "verl Sandbox Fusion": (
        {"prompt": CHAT, "reward_model": {"ground_truth": json.dumps({"assert_case": ASSERTS})}},
        FUNCTION,
    ),
    "functional": (
        {"prompt": CHAT, "reward_model": {"ground_truth": json.dumps({"functional": CHECK + "check(double)"})}},
        FUNCTION,
    ),
    "LiveCodeBench": (
        {"question_content": "Double.", "public_test_cases": json.dumps(LISTED[:1]), "private_test_cases": PACKED},
        READER,
    ),
    "LiveCodeBench called": (
        {
            "question_content": "Double.",
            "starter_code": "class Solution:\n    def double(self, x):\n        ",
            "public_test_cases": json.dumps(CALLED),
            "metadata": json.dumps({"func_name": "double"}),
        },
        METHOD,
    ),
    "DeepCoder": ({"problem": "Double.", "tests": json.dumps(LISTED)}, READER),
    "DeepCoder called": (
        {"problem": "Double.", "tests": [{**test, "metadata": {"func_name": "double"}} for test in CALLED]},
        FUNCTION,
    ),
    "DeepCoder as TACO": ({"problem": "Double.", "tests": json.dumps(STDIN)}, READER),
    "PrimeIntellect": (
        {
            "prompt": "Double.",
            "verification_info": json.dumps(
                {"language": "python", "test_cases": [{"type": "stdin_stdout", "input": "1", "output": "2"}]}
            ),
        },
        READER,
    ),
    "PrimeIntellect called": (
        {
            "prompt": "Double.",
            "verification_info": {
                "test_cases": [{"type": "function_call", "fn_name": "double", "input": [5], "output": 10}]
            },
        },
        FUNCTION,
    ),
    "AceCode": ({"question": "Double.", "test_cases": ASSERTS}, FUNCTION),
    "open-instruct": ({"messages": CHAT, "ground_truth": ASSERTS}, FUNCTION),
    "KodCode": ({"question": "Double.", "test": PYTEST, "solution": FUNCTION}, FUNCTION),
    "CodeContests": (
        {
            "description": "Double.",
            "public_tests": {"input": ["1"], "output": ["2"]},
            "private_tests": {"input": [], "output": []},
            "generated_tests": {"input": ["5"], "output": ["10"]},
            "solutions": {"language": [2, 3], "solution": ["c++", READER]},
        },
        READER,
    ),
}


def problem_of(fields: dict[str, Any]) -> Problem:
    row = Row("data.jsonl, line 1", fields, name="1")
    problem = parsed(row, columns=places_in([row]) or (), name="code")
    assert isinstance(problem, Problem), problem
    return problem


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_recognized_and_judges(layout: str) -> None:
    fields, right = LAYOUTS[layout]
    problem = problem_of(fields)
    tests = problem.metadata["tests"]
    assert len(tests.cases) in (1, 2)
    assert problem.metadata["num_left_out"] == 0
    assert "ouble" in problem.question
    with Jail(chosen_way("auto")) as jail:
        assert judge(jail, right, tests, timeout_s=10.0).kind == "passed"
        assert judge(jail, right.replace("2", "3"), tests, timeout_s=10.0).kind == "wrong"
    if problem.answer:
        assert program_in(problem.answer) == right.strip("\n")


def test_of_asserts_one_is_shown() -> None:
    """What is shown can be memorized instead of solved."""
    question = problem_of(LAYOUTS["MBPP"][0]).question
    assert "double(1)" in question
    assert "double(5)" not in question
    assert "== 2" not in question


SPLIT = {
    "assert f(1) == 2": [({"call": "f(1)"}, 2, "equal")],
    "assert 2 == f(1), 'why'": [({"call": "f(1)"}, 2, "equal")],
    "assert f(1) is None": [({"call": "f(1)"}, None, "equal")],
    "assert f([1]) == [0] * 3 + [2 ** 4, -1]": [({"call": "f([1])"}, [0, 0, 0, 16, -1], "equal")],
    "assert f(1) == set()": [({"call": "f(1)"}, set(), "equal")],
    "assert f(1) == float('inf')": [({"call": "f(1)"}, float("inf"), "equal")],
    "assert sorted(f(1)) == [1]": [({"call": "sorted(f(1))"}, [1], "equal")],
    "assert f(1)": [({"call": "f(1)"}, True, "truth")],
    "assert not f(1)": [({"call": "f(1)"}, False, "truth")],
    "assert abs(f(1) - 0.5) < 1e-3": [({"call": "f(1)"}, 0.5, "close")],
    "assert math.isclose(f(1), 0.5, abs_tol=1e-3)": [({"call": "f(1)"}, 0.5, "close")],
    "def test_a():\n    x = [1]\n    y = f(x)\n    assert y == 2": [({"call": "f([1])"}, 2, "equal")],
    "assert True": [],
}


@pytest.mark.parametrize("source", SPLIT)
def test_asserts_are_split(source: str) -> None:
    split = split_asserts(source)
    assert [(case.item, case.expected, case.by) for case in split.cases] == SPLIT[source]
    assert split.num_left_out == 0


@pytest.mark.parametrize(
    "source",
    [
        "assert f(1) == g(1)",
        "assert f(1) == x",
        "assert isinstance(f(1), int)",
        "assert f(1) != 2",
        "assert f(1) in [1, 2]",
        "assert f(1) == 2 and f(2) == 3",
        "for i in range(3):\n    assert f(i) == i",
        "assert abs(f(1) - g(1)) < 1",
        "assert f(1) == 9 ** 9 ** 9",
        "assert f(1) == [0] * 10 ** 9",
        "assert f(1) == 1 / 0",
        "assert f(1) == open('x')",
        "assert all(f(1))",
    ],
)
def test_what_cannot_be_split_is_left_out_and_counted(source: str) -> None:
    split = split_asserts(source)
    assert split.cases == ()
    assert split.num_left_out == 1


def test_nothing_expected_is_among_what_goes_in() -> None:
    tests = problem_of(LAYOUTS["EvalPlus"][0]).metadata["tests"]
    assert [case.item for case in tests.cases] == [{"call": "double(*[1])"}, {"call": "double(*[5])"}]
    assert tests.cases[1] == TestCase(item={"call": "double(*[5])"}, expected=10)
    assert "results" not in tests.setup


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("/tmp/rlvr-evil"),))


BROKEN = {
    "have no tests": {"text": "?", "test_list": []},
    "have tests that cannot be read": {"text": "?", "test_list": ["assert double(1 == 2"]},
    "have tests, none of which is a call and a literal": {"text": "?", "test_list": ["assert double(1) == f(2)"]},
}


@pytest.mark.parametrize("reason", BROKEN)
def test_rows_without_tests_are_left_out_with_a_reason(reason: str) -> None:
    row = Row("x", BROKEN[reason])
    assert parsed(row, columns=("test_list",), name="code") == reason


@pytest.mark.parametrize(
    "value",
    [
        {"inputs": ["1"], "outputs": []},
        {"inputs": ["1"]},
        "{",
        "[1, 2]",
        5,
        [{"input": "1"}],
        [{"input": "1", "output": "2", "testtype": "functional"}],
        base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode(),
        base64.b64encode(zlib.compress(pickle.dumps([1]))).decode(),
        base64.b64encode(b"no archive, but long enough").decode(),
    ],
)
def test_broken_tests_are_named_and_run_nothing(value: Any) -> None:
    with pytest.raises(NoTestsError, match="cannot be read"):
        read_tests(Row("x", {"tests": value}), ("tests",))
    assert not Path("/tmp/rlvr-evil").exists()


def test_a_file_without_a_known_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "?", "checks": []}\n')
    with pytest.raises(DataError, match=r"no column is known to hold tests \(there are question, checks"):
        CodeTask(path=str(path)).parser("train_split", 0)
