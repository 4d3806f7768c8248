"""The Python of docs/evaluation.md runs, in its order, beside the commands that its files come from."""

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, commands
from tests.system.harness import Cli

PAGE = ROOT / "docs" / "evaluation.md"


def test_the_python_of_the_page_runs(first_run: Path, here: Path, cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "runs").mkdir()
    (here / "runs" / "latest").symlink_to(first_run)
    (writes,) = [command for command in commands(PAGE) if "few.jsonl" in command.words]
    cli.ok(*writes.words[1:])
    code = [block.text for block in blocks(PAGE.read_text()) if block.language == "python"]
    assert len(code) == 3
    small = code[2].replace('"[3,3]"', '"[2,2]"')  # the run's sums have two operators at most
    for text in (*code[:2], small):
        capsys.readouterr()
        exec(compile(text, str(PAGE), "exec"), {})
        assert capsys.readouterr().out.strip()
    made = {"few.jsonl", "kept.jsonl", "operators_1.jsonl", "operators_2.jsonl"}
    assert {path.name for path in here.iterdir()} == {"runs", *made}
