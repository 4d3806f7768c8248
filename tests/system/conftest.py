"""A warm-started model that the system tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.system.harness import SCRATCH, SMALL, run_train
from tests.system.qwen import save_qwen
from tests.unit.models.test_hub import online  # noqa: F401


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run from scratch: warm start, two steps of GRPO."""
    return run_train(tmp_path_factory.mktemp("first") / "run", *SMALL, *SCRATCH).folder


@pytest.fixture(scope="session")
def model(first_run: Path) -> Path:
    """A warm-started model in Hub format."""
    return first_run / "warm_start"


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Qwen2 checkpoint with a chat template that answers GSM8K and FinQA questions in the asked-for format."""
    return save_qwen(tmp_path_factory.mktemp("qwen") / "model")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """A run sets the number of threads of its process: put it back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
