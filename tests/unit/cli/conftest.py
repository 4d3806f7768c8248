"""A stand-in for training, so that the command line is tested by itself."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import pytest

from rlvr.config import Config


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
    module = ModuleType("rlvr.app.train")
    module.train = fake.train  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rlvr.app.train", module)
    return fake
