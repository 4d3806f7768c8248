import asyncio
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr import imports
from rlvr.rewards.base import RewardError
from rlvr.rewards.parts import make_verifier
from rlvr.rewards.sandbox import Sandbox
from rlvr.rewards.settings import RewardSettings
from rlvr.settings import dumped, validated
from rlvr.types import Score, StopReason
from tests.unit.rewards.attempts import WHOLE, attempt, failed, wrong_settings

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "own"
CODE = """
import asyncio, json, os
from rlvr.rewards.base import Grade, Part

class Acts(Part):
    def grade(self, attempt):
        assert attempt.state is None and attempt.sandbox is None
        match attempt.answer:
            case "process":
                return os.getpid()
            case "grade":
                return Grade(value=0.5, message="half")
            case "hang":
                while True: pass
            case "leave":
                raise SystemExit(3)
            case "json":
                return json.loads("{")
            case "list":
                return [1.0]
            case "huge":
                return 10**400
        return attempt.example.metadata["level"]

class Great(Part):
    def grade(self, attempt):
        return Grade(value=1.0, status="great")

class Waits(Part):
    async def grade(self, attempt):
        await asyncio.sleep(0.001)
        return True

"""
LINE = 1 + CODE.splitlines().index('                return json.loads("{")')


@pytest.fixture(scope="module")
def pool() -> Iterator[Sandbox]:
    with Sandbox(num_workers=1, timeout_s=1.0, max_memory_mb=1024) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the current folder: the processes must learn of it."""
    folder = tmp_path_factory.getbasetemp() / "own"
    folder.mkdir(exist_ok=True)
    (folder / "own_rewards.py").write_text(CODE)
    monkeypatch.setattr(imports, "folders", [str(folder), str(EXAMPLES)])


def scored(pool: Sandbox, said: str, kind: str = "own_rewards:Acts", **metadata: object) -> Score:
    reward = validated(RewardSettings, {"parts": {"own": {"type": kind}}})
    assert reward.uses_sandbox
    verifier = make_verifier(reward, WHOLE, pool)
    return asyncio.run(verifier.verify(attempt(said, **metadata)))


def test_a_part_runs_in_another_process(pool: Sandbox) -> None:
    found = scored(pool, "process")
    assert found.value > 1
    assert found == scored(pool, "process")  # the same worker, and not this process
    assert scored(pool, "else", level=7).value == 7.0
    assert scored(pool, "grade") == Score(value=0.5, parts={"own": 0.5}, diagnostics={"own": "half"})
    assert scored(pool, "", "own_rewards:Waits").value == 1.0


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("hang", "own: timed out after 1 s"),
        ("json", f"/own_rewards.py, line {LINE})"),
        ("leave", "own: SystemExit: 3 ("),
        ("else", "own: KeyError: 'level' ("),
    ],
)
def test_pitfall_26_a_failed_part_is_an_error_with_its_line(pool: Sandbox, said: str, message: str) -> None:
    assert failed(scored(pool, said), message)


def test_pitfall_29_a_part_that_returns_no_number_is_named(pool: Sandbox) -> None:
    for said, returned in (("list", r"list \[1\.0\]"), ("huge", "int 10{79,}"), ("else", "float nan")):
        with pytest.raises(RewardError, match=rf"reward\.parts\.own returned {returned} for example 'e1': it must re"):
            scored(pool, said, level=math.nan)
    with pytest.raises(RewardError, match=r"reward\.parts\.own returned status 'great' for .* scored, invalid, error"):
        scored(pool, "", "own_rewards:Great")


def test_the_example_of_a_part_works(pool: Sandbox) -> None:
    reward = validated(RewardSettings, {"parts": {"brief": {"type": "my_reward:Brief", "free_tokens": 3}}})
    assert dumped(reward)["parts"] == {"brief": {"type": "my_reward:Brief", "weight": 1.0, "free_tokens": 3}}
    verifier = make_verifier(reward, WHOLE, pool)
    cut_off = replace(attempt("18", num_tokens=3), stop_reason=StopReason.LENGTH)
    said = (attempt("18", num_tokens=3), attempt("18", num_tokens=12), cut_off)
    found = [asyncio.run(verifier.verify(one)) for one in said]
    assert [(score.value, score.status) for score in found] == [(1.0, "scored"), (0.25, "scored"), (0.0, "invalid")]
    assert [key for key, _ in wrong_settings(type(reward.parts["brief"]), {"free_tokens": 0})] == ["free_tokens"]
