"""Every block of docs/tools.md is a file, a change, a command or what it prints, and all of them work as they stand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rlvr
from tests.system.harness import ENVIRONMENT, metrics
from tests.system.test_components_doc import ROOT, apply, blocks, run

BLOCKS = blocks((ROOT / "docs" / "tools.md").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All files of the page; `src/rlvr` is a copy with all of its changes."""
    shutil.copytree(Path(rlvr.__file__).parent, tmp_path / "src" / "rlvr", ignore=shutil.ignore_patterns("__pycache__"))
    for block in BLOCKS:
        if block.file:
            path = tmp_path / block.file
            assert not path.exists(), f"{block.file} exists already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "diff":
            apply(block.text, tmp_path)
    return tmp_path


def test_the_first_tools_print_what_the_page_says(folder: Path) -> None:
    page = (ROOT / "docs" / "tools.md").read_text()
    printed = page.partition("python first_tools.py\n```\n\n```\n")[2].partition("```")[0]
    command = [sys.executable, "first_tools.py"]
    environment = os.environ | ENVIRONMENT
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_a_task_with_a_tool_is_trained(folder: Path) -> None:
    (command,) = [block.text for block in BLOCKS if block.language == "bash" and "rlvr" in block.text]
    run(command, folder, changed=True)
    first, *_, last = metrics(folder / "runs" / "latest")
    assert "eval/shop/accuracy" in first
    assert "reward/correct" in last


def test_every_block_is_used() -> None:
    kinds = [(block.language, bool(block.file)) for block in BLOCKS]
    assert kinds.count(("bash", False)) == 2
    assert {kind for kind in kinds if kind[1] is False} == {("bash", False), ("diff", False)}
