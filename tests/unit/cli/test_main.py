"""Exit statuses, one-line errors, help."""

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from rlvr.cli import main as cli_main
from rlvr.cli.main import command_modules, main
from rlvr.errors import UserError
from tests.unit.cli.conftest import FakeTraining, Rlvr

COMMANDS = list(command_modules())


def raiser(error: BaseException) -> Callable[[object], None]:
    def act(config: object) -> None:
        raise error

    return act


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(command: str, rlvr: Rlvr) -> None:
    shown = rlvr(command, "--help")
    assert shown.code == 0
    assert f"rlvr {command}" in shown.out.partition("example")[2]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("trian", ["trian", "did you mean train?"]),
        ("train --trainer.max_steps=4", ["no dashes: trainer.max_steps=4"]),
        ("train --learning-rate 1e-5", ["--learning-rate", "trainer.learning_rate"]),
        ("eval x --output-file y", ["did you mean --output?"]),
        ("train run_dir=absent resume=true", ["run_dir=absent: holds no run to resume"]),
    ],
)
def test_wrong_usage_is_one_line_and_exit_status_2(argv: str, words: list[str], rlvr: Rlvr) -> None:
    ran = rlvr(*argv.split())
    assert ran.code == 2
    assert [word for word in words if word not in ran.error] == []


@pytest.mark.parametrize("argv", ["trian", "train trainer.max_step=1"])
def test_the_report_of_torchrun_ends_with_the_reason(
    argv: str, rlvr: Rlvr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    error = rlvr(*argv.split()).error.rstrip()
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=str(tmp_path / "error.json"))
    assert str(ChildFailedError("rlvr", {0: failure})).splitlines()[-2].endswith(error)


def test_help_goes_to_stdout_and_succeeds(rlvr: Rlvr) -> None:
    shown = rlvr("--help")
    assert (shown.code, shown.err) == (0, "")
    assert "train" in shown.out


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UserError("the run is\nbroken; mend it."), "the run is broken; mend it."),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x"), "runs/x: no space left"),
        (PermissionError(errno.EACCES, "Permission denied", "runs"), "runs: permission denied"),
        (ConnectionResetError("peer went away"), "peer went away"),
    ],
)
def test_a_failure_is_one_sentence(error: Exception, said: str, training: FakeTraining, rlvr: Rlvr) -> None:
    training.act = raiser(error)
    ran = rlvr("train")
    assert ran.code == 1
    assert said in ran.error


def test_a_bug_is_not_hidden(training: FakeTraining) -> None:
    training.act = raiser(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["train"])


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "import sys, os; from rlvr.cli.main import main; os.close(1); r, w = os.pipe(); os.close(r); os.dup2(w, 1); "
    code += "sys.exit(main(['train', '--cfg', 'job']))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (141, "")


def test_code_that_ends_the_program_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rlvr: Rlvr) -> None:
    (tmp_path / "leaves.py").write_text(
        "import sys\nfrom rlvr.tasks.generator import ExamplesTask\n\n"
        "class Leaves(ExamplesTask):\n    def examples(self):\n        sys.exit(0)\n"
    )
    monkeypatch.chdir(tmp_path)
    ran = rlvr("train", "task=leaves:Leaves", "model=scratch_bpe")
    assert ran.code == 1
    assert "ended the program by sys.exit" in ran.err


DIARY = """
HELP, DESCRIPTION, EXAMPLE = "writes", "Writes a line.", "example:\\n  rlvr diary hello"

def add_arguments(parser):
    parser.add_argument("run")

def run(args):
    print(args.run)
    return 3
"""


def test_an_installed_package_brings_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rlvr: Rlvr) -> None:
    (tmp_path / "my_diary.py").write_text(DIARY)
    info = tmp_path / "diary-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: diary\nVersion: 1.0\n")
    (tmp_path / "no_help.py").write_text("")
    (tmp_path / "leaves.py").write_text("raise SystemExit(7)")
    points = (
        "[rlvr.commands]\ndiary = my_diary\ntrain = my_diary\nbroken = gone_from_here\nbare = no_help\ngone = leaves\n"
    )
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = rlvr("diary", "hello")
    assert (done.code, done.out) == (3, "hello\n")
    assert "--config-name" in rlvr("train", "--help").out  # ours
    broken = rlvr("broken")
    assert broken.code == 2
    assert "the command broken: its module gone_from_here raised ModuleNotFoundError" in broken.err
    for name in ("bare", "gone"):
        done = rlvr(name)
        assert (done.code, done.err.count(f"rlvr: error: the command {name}: ")) == (2, 1)
    whole = rlvr("--help")
    assert whole.code == 0
    assert "the command broken: its module" in " ".join(whole.out.split())
    assert "did you mean train?" in rlvr("trian").err


def test_a_program_tells_of_untested_versions_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def ended() -> int:
        raise KeyboardInterrupt  # before `program` looks for threads, of which this process has its own

    monkeypatch.setattr(cli_main, "hide_library_warnings", lambda: said.append("quiet"))
    monkeypatch.setattr(cli_main, "note_untested_versions", lambda: said.append("note"))
    monkeypatch.setattr(cli_main, "main", ended)
    with pytest.raises(KeyboardInterrupt):
        cli_main.program()
    assert said == ["quiet", "note"]
