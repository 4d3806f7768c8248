"""Models and runs that the system tests share: made once, by the first worker that needs them."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.conftest import CACHE
from tests.system.harness import DATA, SCRATCH, SMALL, Cli, Finished, python_rlvr, run_train
from tests.system.qwen import save_qwen
from tests.system.small_qwen import save_questions, save_small_qwen
from tests.system.tool_qwen import save_tool_qwen
from tests.unit.models.test_hub import online  # noqa: F401

ROOT = Path(__file__).parents[2]


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` fills, once for all workers; the others wait for it."""
    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, done = root / name, root / f"{name}.done"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that users install, built from this tree without a network."""
    pytest.importorskip("hatchling", reason="the extra `test` has it")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]

    def build(folder: Path) -> None:
        subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT], check=True)

    (found,) = shared(tmp_path_factory, "wheel", build).glob("rlvr-*.whl")
    return found


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run from scratch: warm start, two steps of GRPO."""
    return shared(tmp_path_factory, "first", lambda folder: run_train(folder / "run", *SMALL, *SCRATCH)) / "run"


@pytest.fixture(scope="session")
def model(first_run: Path) -> Path:
    """A warm-started model in Hub format."""
    return first_run / "warm_start"


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Qwen2 checkpoint with a chat template that answers GSM8K and FinQA questions in the asked-for format."""
    return shared(tmp_path_factory, "qwen", lambda folder: save_qwen(folder / "model")) / "model"


@pytest.fixture(scope="session")
def tool_qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint that calls the tools of MuSiQue."""
    return shared(tmp_path_factory, "tool_qwen", lambda folder: save_tool_qwen(folder / "model")) / "model"


@pytest.fixture(scope="session")
def two_hop_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run of two_hop from scratch, in which a model learns to search twice."""

    def make(folder: Path) -> None:
        from tests.system.test_two_hop import LEARN  # which the other tests do not need

        run_train(folder / "run", *LEARN, name="two_hop")

    return shared(tmp_path_factory, "two_hop", make) / "run"


@pytest.fixture(scope="session")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with LoRA on a bfloat16 base, and the base."""

    def make(folder: Path) -> None:
        base, questions = save_small_qwen(folder / "qwen"), save_questions(folder / "sums.jsonl")
        from tests.system.test_adapters import SHORT  # which the other tests do not need

        words = (*SHORT, f"model.name_or_path={base}", f"task.path={questions}", "trainer.checkpoint_every=2")
        run_train(folder / "run", *words, "model.dtype=bfloat16", "tracker.rollouts_every=1", name="gsm8k")

    folder = shared(tmp_path_factory, "adapted", make)
    return folder / "run", folder / "qwen"


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
    done = python_rlvr("train", "--config-name", "rpn_test", *words, cwd=parent)
    assert done.code == 0, done.err
    return parent / "mine", done


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands in this process, with the rows of the tests as data."""
    monkeypatch.setenv("RLVR_DATA", str(DATA))
    return Cli(capsys=capsys)


@pytest.fixture
def warm_starts(own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm starts that fixtures of a module or session have computed are not computed again."""
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE.name)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def beside_store(tracked: tuple[Path, Finished], tmp_path: Path) -> Path:
    """A folder for runs with an MLflow store that exists: making one takes ten seconds."""
    shutil.copy(tracked[0].parent / "mlflow.db", tmp_path)
    return tmp_path
