"""Many inputs for one program, and what came out, in each way of isolation."""

from collections.abc import Iterator

import pytest

from rlvr.jail.jail import Jail
from rlvr.jail.outcome import Limits
from rlvr.jail.ways import WAYS
from rlvr.rewards.code_results import Other, Result, run_items
from tests.jail.ways import opened


@pytest.fixture(scope="module", params=(*WAYS, "none"))
def jail(request: pytest.FixtureRequest) -> Iterator[Jail]:
    with opened(request.param) as jail:
        yield jail


def test_values_come_out_as_they_are(jail: Jail) -> None:
    program = "def f(x): return x\nclass Solution:\n    def g(self, a, b): return a, b"
    texts = ("[1, (2, 3.5), 'é']", "{1: {2, 3}}", "b'x'", "1+2j", "10**400", "None", "True", "object()", "1/0")
    items = [{"call": f"f({text})"} for text in texts] + [{"entry": "g", "args": [1, [2]]}]
    results = run_items(jail, program, items, limits=Limits(), alarm_s=5.0)
    assert [result.value for result in results[:7]] == [eval(text) for text in texts[:7]]
    assert isinstance(results[7].value, Other)
    assert results[7].value != results[7].value
    assert results[8] == Result(status="raised", message="ZeroDivisionError: division by zero")
    assert results[9].value == (1, [2])


def test_results_end_where_the_program_ends(jail: Jail) -> None:
    def statuses(program: str) -> list[str]:
        items = [{"call": f"f({number})"} for number in range(3)]
        return [result.status for result in run_items(jail, program, items, limits=Limits(), alarm_s=0.3)]

    assert statuses("def f(x):\n    while x == 1: pass") == ["ended", "timed out"]
    assert statuses("import os\ndef f(x):\n    if x: os._exit(0)") == ["ended", "raised"]
    assert statuses("f = 1 / 0") == ["raised"]
    assert statuses("def f(x): return bytearray(1 << 40)") == ["out of memory"] * 3


def test_each_input_is_read_by_an_empty_program(jail: Jail) -> None:
    program = "n = globals().get('n', 0) + 1\nimport sys\nprint(n, sys.stdin.readline().strip(), end='')"
    items = [{"stdin": "a\n"}, {"stdin": "b"}]
    results = run_items(jail, program, items, limits=Limits(), alarm_s=5.0)
    assert [result.value for result in results] == ["1 a", "1 b"]
