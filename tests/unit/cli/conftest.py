"""Commands in this process, and a stand-in for training."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlvr.cli.main import main
from rlvr.config import Config


@dataclass(frozen=True)
class Ran:
    """Exit status and output of a command."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of a command that fails before it prints anything."""
        assert self.code != 0
        assert self.out == ""
        assert self.err.startswith("rlvr: error: ")
        assert self.err.count("\n") == 1
        return self.err

    @property
    def lines(self) -> list[Any]:
        """The JSON lines of a command that succeeds."""
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]


Rlvr = Callable[..., Ran]


@pytest.fixture
def rlvr(capsys: pytest.CaptureFixture[str]) -> Rlvr:
    """`rlvr("train", "seed=3")` runs the command."""

    def run(*words: object) -> Ran:
        return Ran(main([*map(str, words)]), *capsys.readouterr())

    return run


@dataclass
class FakeResult:
    folder: Path = Path("run")
    num_steps: int = 40
    finished: bool = True
    before: dict[str, float] = field(default_factory=lambda: {"eval/rpn/accuracy": 0.25})
    metrics: dict[str, float] = field(
        default_factory=lambda: {
            "step": 40,
            "eval/rpn/accuracy": 0.75,
            "eval/rpn/accuracy_low": 0.7,
            "eval/rpn/accuracy_high": 0.8,
        }
    )
    is_first: bool = True


@dataclass
class FakeTraining:
    """Records the configurations it is called with; `act` may raise or send signals."""

    configs: list[Config] = field(default_factory=list)
    result: FakeResult = field(default_factory=FakeResult)
    act: Callable[[Config], None] = lambda config: None

    def train(self, config: Config, stopped: Callable[[], bool]) -> FakeResult:
        self.configs.append(config)
        self.act(config)
        return replace(self.result, finished=not stopped())


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeTraining:
    monkeypatch.chdir(tmp_path)
    fake = FakeTraining()
    module = ModuleType("rlvr.commands.train.body")
    module.train = fake.train  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rlvr.commands.train.body", module)
    return fake
