"""Every block of docs/components.md is a file, a change or a command, and all of them work as they stand."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import rlvr
from rlvr.cli.main import main
from tests.system.harness import ENVIRONMENT, metrics

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "components.md"

REPORTED = {
    "A folder of your own": ["eval/jsonl/accuracy", "reward/correct"],
    "A task from a function": ["eval/generator/accuracy", "reward/correct"],
    "A reward of your own": ["eval/jsonl/accuracy", "reward/correct", "reward/brief", "reward/close"],
    "A prompt and its markers": ["eval/jsonl/accuracy", "reward/correct", "reward/format", "reward/markers"],
    "One more set to evaluate": ["eval/jsonl/accuracy", "eval/harder/accuracy"],
    "From Python": ["eval/jsonl/accuracy", "reward/custom"],
    "An algorithm": ["eval/jsonl/accuracy", "loss/policy"],
    "A part of a reward": ["eval/jsonl/accuracy", "reward/quiet"],
}
"""What the last run of each section must have measured."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: `Block(section="A prompt", language="yaml", file="mine/prompt/tutor.yaml", text="...")`."""

    section: str
    language: str
    file: str
    text: str


def blocks(page: str) -> list[Block]:
    found, section = [], ""
    for match in re.finditer(r"^## ([^\n]+)$|^```(\w+) ?(\S*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        title, language, file, text = match.groups()
        section = title or section
        if language:
            found.append(Block(section=section, language=language, file=file, text=text))
    return found


BLOCKS = blocks(PAGE.read_text())


def apply(patch: str, root: Path) -> None:
    """A change as `git diff` shows it, without line numbers: the lines before must occur exactly once."""
    for piece in re.split(r"^--- a/.*\n(?=\+\+\+ b/)", patch, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(r"^@@.*\n", piece, flags=re.MULTILINE)
        path = root / head.removeprefix("+++ b/").strip()
        text = path.read_text()
        for hunk in hunks:
            lines = hunk.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] in " -")
            after = "".join(line[1:] for line in lines if line[0] in " +")
            assert text.count(before) == 1, f"{path.name} does not have once:\n{before}"
            text = text.replace(before, after)
        path.write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """All files of the page; `src/rlvr` is a copy with all of its changes. Modules of the page are forgotten again."""
    shutil.copytree(Path(rlvr.__file__).parent, tmp_path / "src" / "rlvr", ignore=shutil.ignore_patterns("__pycache__"))
    for block in BLOCKS:
        if block.file:
            path = tmp_path / block.file
            assert not path.exists(), f"{block.file} exists already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "diff":
            apply(block.text, tmp_path)
    yield tmp_path
    for block in BLOCKS:
        sys.modules.pop(block.file.removesuffix(".py"), None)


def run(command: str, folder: Path, *, changed: bool) -> None:
    """In a process of its own if rlvr is the changed copy, or if the command is no command of rlvr."""
    program, *words = shlex.split(command, comments=True)
    if words[0] == "train" and "--cfg" not in words:
        words.append("tracker.console=none")
    if program == "rlvr" and not changed:
        assert main(words) == 0, command
        return
    start = {"rlvr": [sys.executable, "-m", "rlvr"], "python": [sys.executable]}[program]
    environment = os.environ | ENVIRONMENT | ({"PYTHONPATH": str(folder / "src")} if changed else {})
    done = subprocess.run([*start, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("section", REPORTED)
def test_the_commands_of_the_section_work(section: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    own = [block for block in BLOCKS if block.section == section]
    commands = [line for block in own if block.language == "bash" for line in block.text.splitlines()]
    assert commands
    for command in commands:
        run(command, folder, changed=any(block.language == "diff" for block in own))
    rows = metrics(folder / "runs" / "latest")
    assert [name for name in REPORTED[section] if not any(name in row for row in rows)] == []


def test_every_block_is_run_or_used() -> None:
    assert {block.section for block in BLOCKS} == set(REPORTED)
    for block in BLOCKS:
        assert bool(block.file) != (block.language in ("bash", "diff")), block.text


def test_a_change_that_fits_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\n")
    patch = "--- a/a.py\n+++ b/a.py\n@@\n one\n-two\n+three\n"
    apply(patch, tmp_path)
    assert (tmp_path / "a.py").read_text() == "one\nthree\n"
    with pytest.raises(AssertionError, match="does not have once"):
        apply(patch, tmp_path)
