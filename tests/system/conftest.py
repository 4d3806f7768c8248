"""A warm-started model that the system tests share."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.system.harness import SCRATCH, SMALL, Finished, rlvr, run_train
from tests.system.qwen import save_qwen
from tests.system.small_qwen import save_questions, save_small_qwen
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


@pytest.fixture(scope="session")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with LoRA on a bfloat16 base, and the base."""
    folder = tmp_path_factory.mktemp("adapted")
    base, questions = save_small_qwen(folder / "qwen"), save_questions(folder / "sums.jsonl")
    from tests.system.test_adapters import SHORT  # which the other tests do not need

    words = (*SHORT, f"model.name_or_path={base}", f"task.path={questions}", "trainer.checkpoint_every=2")
    run = run_train(folder / "run", *words, "model.dtype=bfloat16", "tracker.rollouts_every=1", name="gsm8k").folder
    return run, base


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """A run sets the number of threads of its process: put it back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """The folder of `rlvr train` with three trackers, as a user starts it, and what the command said."""
    parent = tmp_path_factory.mktemp("tracked")
    words = ["tracker.report_to=[mlflow,wandb,tensorboard]", "tracker.wandb.mode=offline", "tracker.rollouts_every=2"]
    words += ["tracker.tags=[paper,team:nlp]", "tracker.group=ours", "trainer.max_steps=3", "run_dir=mine"]
    environment = {"PYTHONWARNINGS": ""}  # the libraries' are not ours
    done = rlvr("train", "--config-name", "rpn_test", *words, cwd=parent, environment=environment)
    assert done.code == 0, done.err
    return parent / "mine", done


@pytest.fixture
def beside_store(tracked: tuple[Path, Finished], tmp_path: Path) -> Path:
    """A folder for runs with an MLflow store that exists: making one takes ten seconds."""
    shutil.copy(tracked[0].parent / "mlflow.db", tmp_path)
    return tmp_path
