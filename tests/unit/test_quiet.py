"""Warnings of libraries: no failure in a test, no line of a command."""

import asyncio
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlvr
from rlvr import quiet
from rlvr.rewards.sandbox import Sandbox

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLANTED = """
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
"""


def test_our_warnings_fail_a_test_and_those_of_libraries_are_listed(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(PLANTED)
    ours = ["-c", str(ROOT / "pyproject.toml"), "-n", "1", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *ours, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path).stdout
    assert "7 failed, 3 passed" in told, told
    failed = set(re.findall(r"^FAILED \S+::(\w+)", told, re.MULTILINE))
    assert failed == {"test_ours", "test_resource", "test_unclosed_file", "test_thread", "test_finalizer"}
    for category in ("UserWarning", "FutureWarning", "DeprecationWarning"):
        assert f"transformers.models.py:1: {category}: planted" in told


LIBRARY = """
import threading
import warnings

warnings.simplefilter("always")  # as libraries do
warnings.warn("planted in a library", FutureWarning)
thread = threading.Thread(target=lambda: warnings.warn("planted in its thread", DeprecationWarning))
thread.start()
thread.join()
"""
OF_USER = """
import warnings

import planted

warnings.warn("planted by the user")
warnings.warn_explicit("planted in rlvr", UserWarning, {loop!r}, 1)
"""
SHOWN, HIDDEN = {"planted by the user", "planted in rlvr"}, {"planted in a library", "planted in its thread"}


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where Python finds a module of the user and the library that it imports; both warn."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "planted.py").write_text(LIBRARY)
    (tmp_path / "of_user.py").write_text(OF_USER.format(loop=str(Path(rlvr.__file__).parent / "core" / "loop.py")))
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    return [str(tmp_path), str(library)]


def seen(told: str) -> set[str]:
    return {text for text in SHOWN | HIDDEN if text in told}


@pytest.mark.parametrize(
    ("options", "variables", "expected"),
    [
        ((), {}, SHOWN),
        (("-W", "default"), {}, SHOWN | HIDDEN),
        ((), {"PYTHONWARNINGS": "default"}, SHOWN | HIDDEN),
    ],
)
def test_a_command_shows_warnings_of_libraries_only_on_demand(
    options: tuple[str, ...], variables: dict[str, str], expected: set[str], paths: list[str], tmp_path: Path
) -> None:
    words = ["train", "reward.parts={x:{type:'of_user:Missing'}}", "run_dir=run"]
    done = subprocess.run(
        [sys.executable, *options, "-m", "rlvr", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | variables,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "module of_user has no Part Missing" in done.stderr
    assert seen(done.stderr) == expected


@pytest.mark.parametrize("expected", [SHOWN, SHOWN | HIDDEN])
def test_processes_of_the_sandbox_show_the_same(
    expected: set[str], paths: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*paths, *sys.path])
    monkeypatch.setattr(sys, "warnoptions", ["default"] if expected > SHOWN else [])
    with Sandbox(num_workers=1, timeout_s=10.0, max_memory_mb=768) as sandbox:
        asyncio.run(sandbox.call(importlib.import_module, "of_user"))
    assert seen(capfd.readouterr().err) == expected


@pytest.mark.parametrize(
    ("filename", "is_library"),
    [
        (os.__file__, True),
        ("<frozen importlib._bootstrap>", True),
        ("/venv/lib/python3.11/site-packages/peft/config.py", True),
        (f"{Path(rlvr.__file__).parent}/errors.py", False),  # an installed wheel's lies in site-packages
        ("/home/me/my_rewards.py", False),
    ],
)
def test_whose_a_warning_is(filename: str, is_library: bool) -> None:
    assert quiet._is_library(filename) is is_library


def test_our_warnings_are_shown_where_we_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "_PACKAGE", "/venv/site-packages/rlvr/")
    assert not quiet._is_library("/venv/site-packages/rlvr/errors.py")
    assert quiet._is_library("/venv/site-packages/rlvr_friend/errors.py")
