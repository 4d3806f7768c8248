"""Every block of docs/components.md and own_files.md is a file or a command that works, or runs in another test."""

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

from rlvr.cli.main import main
from rlvr.config.compose import load_config
from rlvr.errors import ConfigError
from tests.system.harness import ENVIRONMENT, metrics
from tests.system.test_own_components import OWN
from tests.system.test_own_components import commands as commands_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "components.md"
PAGES = (PAGE, ROOT / "docs" / "own_files.md")

REPORTED = {
    "A folder of your own": ["eval/jsonl/accuracy", "reward/correct"],
    "Data in the layouts of other libraries": ["eval/jsonl/accuracy", "reward/custom"],
    "A task from a function": ["eval/generator/accuracy", "reward/correct"],
    "A reward from a function": ["eval/jsonl/accuracy", "reward/correct", "reward/brief", "reward/close"],
    "A prompt and its markers": ["eval/jsonl/accuracy", "reward/correct", "reward/format", "reward/markers"],
    "One more set to evaluate": ["eval/jsonl/accuracy", "eval/harder/accuracy"],
}
"""What the last run of each section must have measured."""

CLASSES = {
    "A task": "my_shop.py",
    "A part of a reward": "my_reward.py",
    "An algorithm": "my_algorithm.py",
    "A sampler": "my_sampler.py",
    "A tracker": "my_tracker.py",
    "A retriever": "my_retriever.py",
    "An engine": "my_engine.py",
    "A model": "my_model.py",
}
"""Sections that link a file of examples/own; test_own_components.py runs the commands in its docstring."""
COMMON = "What all have in common"
SETTINGS = "my_settings.py"  # of examples/own, linked from that section
LEAD = ""
"""The block before the first section: a command of one of the sections."""


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


BLOCKS = [block for page in PAGES for block in blocks(page.read_text())]


@pytest.fixture
def folder(here: Path) -> Iterator[Path]:
    """All files of the pages and of examples/own, in the current folder. The modules are forgotten again."""
    for file in (SETTINGS, *CLASSES.values()):
        shutil.copy(OWN / file, here)
    for block in BLOCKS:
        if block.file:
            path = here / block.file
            assert not path.exists(), f"{block.file} exists already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
    yield here
    for file in (SETTINGS, *CLASSES.values(), *(block.file for block in BLOCKS)):
        sys.modules.pop(file.removesuffix(".py"), None)


def run(command: str, folder: Path) -> str:
    """A command of rlvr in this process, any other one in its own; what a program prints."""
    program, *words = shlex.split(command, comments=True)
    if program == "rlvr":
        more = ["tracker.console=none"] if words[0] == "train" and not {"--cfg", "--help-config"} & set(words) else []
        assert main([*words, *more]) == 0, command
        return ""
    assert program == "python"
    environment = os.environ | ENVIRONMENT
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


def commands(section: str) -> list[str]:
    own = [block for block in BLOCKS if block.section == section]
    return [line for block in own if block.language == "bash" for line in block.text.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("section", REPORTED)
def test_the_commands_of_the_section_work(section: str, folder: Path) -> None:
    assert commands(section)
    for command in commands(section):
        run(command, folder)
    rows = metrics(folder / "runs" / "latest")
    assert [name for name in REPORTED[section] if not any(name in row for row in rows)] == []


def test_what_all_components_have_in_common(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *composed, tried = commands(COMMON)
    assert f"](../examples/own/{SETTINGS})" in PAGE.read_text()
    for command in composed:
        run(command, folder)
    out = capsys.readouterr().out
    assert "reward.parts.<name>.falloff   number >= 0, <= 1   default: 0.5" in out
    assert "type: my_settings:Length" in out
    printed = PAGE.read_text().partition(f"```bash\n{tried}\n```\n\n```\n")[2].partition("```")[0]
    assert run(tried, folder) == printed


def test_the_settings_of_the_page_are_checked(folder: Path) -> None:
    length = "reward.parts.length.type=my_settings:Length"
    for setting, sentence in (
        ("least=30", r"reward\.parts\.length\.least=30: is more than most=20; lower it\."),
        ("falloff=0.1", r"reward\.parts\.length\.falloff=0\.1: has no effect; it needs"),
        ("most=99", "most is above"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            load_config([length, f"reward.parts.length.{setting}"], config_name="rpn_test")


@pytest.mark.parametrize(("section", "file"), CLASSES.items())
def test_a_class_is_linked_and_started_as_its_file_says(section: str, file: str) -> None:
    assert f"](../examples/own/{file})" in PAGE.read_text()
    on_the_page = [shlex.split(line)[1:] for line in commands(section)]
    assert on_the_page == commands_of(file.removesuffix(".py"))


def test_every_block_is_run_or_used() -> None:
    assert {block.section for block in BLOCKS} == {LEAD, COMMON, *CLASSES, *REPORTED}
    for block in BLOCKS:
        assert bool(block.file) != (block.language == "bash"), block.text
    later = {line for section in (COMMON, *CLASSES, *REPORTED) for line in commands(section)}
    assert set(commands(LEAD)) <= later
