"""What docs/tools.md shows works: files, commands and what they print."""

import importlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.records.rollouts import read_rollouts
from tests.system.harness import ENVIRONMENT, Cli, metrics
from tests.system.test_components_doc import ROOT, blocks
from tests.system.test_own_components import commands

PAGE = (ROOT / "docs" / "tools.md").read_text()
BLOCKS = blocks(PAGE)
FIRST, SHOP, MUSIQUE = (block.text.strip() for block in BLOCKS if block.language == "bash")
SHORT: dict[str, Any] = {
    **{"prompt.system": "Answer with tools.", "task.max_turns": 3, "model.lora.enabled": False},
    **{"rollout.prompts_per_step": 2, "rollout.group_size": 4, "rollout.max_completion_tokens": 32},
    **{"trainer.max_steps": 1, "trainer.warmup_steps": 0, "trainer.checkpoint_every": None},
    **{"evaluation.num_examples": 4, "tracker.console": "none", "tracker.rollouts_every": 1, "run_dir": "run"},
}
NAMED = '"name": "difference", "description": "Subtract one number from another."'


@pytest.fixture
def folder(here: Path, cli: Cli) -> Path:
    """The files of the page, in the current folder."""
    for block in BLOCKS:
        if block.file:
            (here / block.file).write_text(block.text)
            sys.modules.pop(block.file.removesuffix(".py"), None)
    return here


def test_the_first_tools_print_what_the_page_says(folder: Path) -> None:
    printed = PAGE.partition(f"{FIRST}\n```\n\n```\n")[2].partition("```")[0]
    command = [sys.executable, *shlex.split(FIRST)[1:]]
    environment = os.environ | ENVIRONMENT
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_the_task_with_a_tool_is_started_as_its_file_says() -> None:
    assert shlex.split(SHOP)[1:] == commands("my_shop")[0]


def check_episodes(part: str, most: int) -> None:
    """The model was shown the tool, and the reward's function has seen the calls of the episodes."""
    episodes = [one for file in sorted(Path("run/rollouts").iterdir()) for one in read_rollouts(file)]
    assert all(NAMED in one.turns[0].prompt for one in episodes)
    few = [float(one.diagnostics["tool_calls"] or 0) <= most for one in episodes]
    assert [(one.reward_parts[part] or 0) >= 0.5 for one in episodes] == few
    assert len(set(few)) == (2 if most == 1 else 1)


def test_a_tool_and_a_reward_of_ones_own_in_musique(folder: Path, tool_qwen: Path, cli: Cli) -> None:
    words = [f"{key}={'null' if value is None else value}" for key, value in SHORT.items()]
    cli.ok(*shlex.split(MUSIQUE)[1:], *words, f"model.name_or_path={tool_qwen}")
    assert "reward/effort" in metrics(Path("run"))[-1]
    check_episodes("effort", most=1)


def test_the_same_from_python(folder: Path, tool_qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    own: Any = importlib.import_module("my_tools")
    rlvr.train(config_name="musique", model=tool_qwen, tools=[own.difference], reward=own.effort, **SHORT)
    check_episodes("custom", most=6)


def test_every_block_is_used() -> None:
    kinds = [(block.language, bool(block.file)) for block in BLOCKS]
    assert kinds.count(("bash", False)) == 3
    assert {kind for kind in kinds if kind[1] is False} == {("bash", False), ("python", False)}
