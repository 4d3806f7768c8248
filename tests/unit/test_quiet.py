"""Warnings of libraries: no failure in a test, no line of a command."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLANTED = '''
import threading
import warnings

import pytest


def warn_as(module, category=UserWarning):
    warnings.warn_explicit("planted", category, f"{module}.py", 1, module)


@pytest.mark.parametrize("module", ["rlvr.core.loop", "tests.unit.core.tiny", "__main__"])
def test_ours(module):
    warn_as(module)


@pytest.mark.parametrize("category", [UserWarning, FutureWarning, DeprecationWarning])
def test_library(category):
    warn_as("transformers.models", category)


def test_resource():
    warn_as("transformers.models", ResourceWarning)


def test_unclosed_file():
    open(__file__)


def test_thread():
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()


def test_finalizer():
    class Planted:
        def __del__(self):
            1 / 0

    Planted()
'''


@pytest.mark.parametrize("workers", ["0", "1"])
def test_our_warnings_fail_a_test_and_those_of_libraries_are_listed(workers: str, tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(PLANTED)
    ours = ["-c", str(ROOT / "pyproject.toml"), "-n", workers, "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *ours, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path).stdout
    assert "8 failed, 3 passed" not in told  # 7 failures: three of ours, resource, file, thread, finalizer
    assert "7 failed, 3 passed" in told, told
    failed = {line.split("::")[1].split(" ")[0].split("[")[0] for line in told.splitlines() if line.startswith("FAILED")}
    assert failed == {"test_ours", "test_resource", "test_unclosed_file", "test_thread", "test_finalizer"}
    for category in ("UserWarning", "FutureWarning", "DeprecationWarning"):
        assert f"transformers.models.py:1: {category}: planted" in told


LIBRARY = """
import threading
import warnings

warnings.simplefilter("always")  # as libraries do
warnings.warn("planted at import", FutureWarning)


def call():
    warnings.warn("planted in a call", UserWarning)
    thread = threading.Thread(target=warnings.warn, args=("planted in a thread", DeprecationWarning))
    thread.start()
    thread.join()
"""
REWARD = """
import warnings

import planted


def reward(completion, **about):
    planted.call()
    warnings.warn("of the user")
    return 1.0


warnings.warn_explicit("of rlvr", UserWarning, PACKAGE + "/core/loop.py", 1)
"""


def audit(folder: Path, *options: str, **variables: str) -> str:
    """What `rlvr audit` of a reward says on stderr; the reward imports a library that warns."""
    import os

    import rlvr

    library = folder / "site-packages"
    library.mkdir(exist_ok=True)
    (library / "planted.py").write_text(LIBRARY)
    (folder / "mine.py").write_text(f"PACKAGE = {str(Path(rlvr.__file__).parent)!r}\n{REWARD}")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    environment |= {"PYTHONPATH": str(library)} | variables
    command = [sys.executable, *options, "-m", "rlvr", "audit", "mine:reward", "--task", "rpn"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    return done.stdout + done.stderr


def test_x(tmp_path):
    print(audit(tmp_path))
    print("=====")
    print(audit(tmp_path, "-Wdefault"))
    print("=====")
    print(audit(tmp_path, PYTHONWARNINGS="default"))
    assert 0
