"""The Python of docs/evaluation.md runs, in its order, beside the commands that its files come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.cli.main import main
from tests.docs.pages import ROOT, blocks, commands

PAGE = ROOT / "docs" / "evaluation.md"


def test_the_python_of_the_page_runs(
    first_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "latest").symlink_to(first_run)
    (writes,) = [command for command in commands(PAGE) if "few.jsonl" in command.words]
    assert main(list(writes.words[1:])) == 0
    code = [block.text for block in blocks(PAGE.read_text()) if block.language == "python"]
    assert len(code) == 3
    small = code[2].replace('"[3,3]"', '"[2,2]"')  # the run's sums have two operators at most
    for text in (*code[:2], small):
        capsys.readouterr()
        exec(compile(text, str(PAGE), "exec"), {})
        assert capsys.readouterr().out.strip()
    assert {path.name for path in tmp_path.iterdir()} == {
        *("runs", "few.jsonl", "kept.jsonl", "operators_1.jsonl", "operators_2.jsonl")
    }
