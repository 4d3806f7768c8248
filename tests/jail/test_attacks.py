"""Programs that try to be paid without a solution, to reach the host, or to stall: in each way of isolation."""

import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.jail.jail import Jail
from rlvr.jail.outcome import Limits
from rlvr.jail.ways import WAYS
from rlvr.rewards.code_judge import TIMES_ALL, CodeTests, TestCase, judge
from tests.jail.host import Host
from tests.jail.ways import opened

ATTACKS = tomllib.loads((Path(__file__).parent / "attacks" / "attacks.toml").read_text())["attack"]
CALLED = CodeTests(cases=tuple(TestCase(item={"call": f"double({x!r})"}, expected=x * 2) for x in (3, -1, "ab")))
FED = CodeTests(cases=tuple(TestCase(item={"stdin": f"{x}"}, expected=f"{x * 2}", by="lines") for x in (3, -1, 20)))
RIGHT = "def double(x):\n    return x * 2\nif __name__ == '__main__':\n    print(double(int(input())))"
TIMEOUT_S = 0.4
LATE_S = 6.0  # a slow machine


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with Host(tmp_path_factory.mktemp("host")) as host:
        yield host


@pytest.fixture(scope="module", params=WAYS)
def jail(request: pytest.FixtureRequest) -> Iterator[Jail]:
    with opened(request.param) as jail:
        yield jail


def test_the_right_program_is_paid(jail: Jail) -> None:
    for tests in (CALLED, FED):
        assert judge(jail, RIGHT, tests, timeout_s=10.0).kind == "passed"


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack["name"])
def test_an_attack_earns_nothing_reaches_nothing_and_ends(jail: Jail, host: Host, attack: dict[str, Any]) -> None:
    program = host.filled(attack["program"])
    for tests in (CALLED, FED):
        began = time.monotonic()
        verdict = judge(jail, program, tests, timeout_s=TIMEOUT_S)
        assert verdict.kind not in ("passed", "error"), verdict
        assert time.monotonic() - began < (TIMES_ALL + 1) * TIMEOUT_S + LATE_S
    outcome = jail.run(program, limits=Limits(wall_s=TIMEOUT_S, cpu_s=1))
    assert outcome.status != "error"
    assert "SECRET" not in outcome.output, outcome
    host.assert_untouched()
    assert judge(jail, RIGHT, CALLED, timeout_s=10.0).kind == "passed"
