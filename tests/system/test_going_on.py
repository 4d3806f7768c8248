"""What people do with runs afterwards: start from them, go on with them, and get it slightly wrong."""

import os
import shutil
from pathlib import Path

import pytest

from rlvr.cli.main import main
from tests.system.harness import SMALL, TASK, metrics, once, pretrained, run_train

Capture = pytest.CaptureFixture[str]


def refused(words: list[str], code: int, part: str, capsys: Capture) -> None:
    capsys.readouterr()
    assert main(words) == code
    err = capsys.readouterr().err
    assert part in err, err
    assert err.count("\n") == 1, err


def test_a_run_starts_from_the_latest_one_though_latest_moves(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    starts = (model, "runs/latest", "runs/latest/final", "runs/latest/checkpoints/step_000001")
    for start in starts:
        assert main(once("train", *SMALL, *pretrained(start), "trainer.max_steps=1")) == 0
    assert len([path for path in Path("runs").iterdir() if not path.is_symlink()]) == len(starts)


def test_a_start_that_fails_moves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(once("train", *SMALL, *pretrained(model), "trainer.max_steps=1")) == 0
    before = os.readlink("runs/latest")
    (tmp_path / "empty").mkdir()
    refused(["train", "model=hf", "model.name_or_path=empty", "tracker.console=none"], 1, "no config.json", capsys)
    assert os.readlink("runs/latest") == before
    assert len(list(Path("runs").iterdir())) == 2


def test_fewer_steps_than_made_are_refused(model: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "run"
    run_train(folder, *SMALL, *pretrained(model), "trainer.max_steps=3")
    config = (folder / "config.yaml").read_text()
    words = ["train", f"run_dir={folder}", "resume=true", "trainer.max_steps=2"]
    refused(words, 2, "has made 3 steps already", capsys)
    assert (folder / "config.yaml").read_text() == config


def test_a_finished_run_without_checkpoints_is_not_trained_anew(model: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "run"
    run_train(folder, *SMALL, *pretrained(model), "trainer.max_steps=2")
    shutil.rmtree(folder / "checkpoints")
    lines = metrics(folder)
    assert main(["train", f"run_dir={folder}", "resume=true"]) == 1
    assert "no checkpoint to go on from" in capsys.readouterr().err
    assert metrics(folder) == lines


def test_a_resumed_run_that_is_stopped_has_no_final_model(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_train(folder, *SMALL, *pretrained(model), "trainer.max_steps=2")
    assert (folder / "final").is_dir()
    answers = iter([False, True])
    more = [*SMALL, *pretrained(model), "trainer.max_steps=6", "resume=true"]
    run_train(folder, *more, stopped=lambda: next(answers, True))
    assert not (folder / "final").exists()


def test_a_sweep_goes_on_with_what_was_not_started(model: Path, tmp_path: Path) -> None:
    words = once("train", "--multirun", "seed=1,2", *SMALL, *pretrained(model), "trainer.max_steps=1")
    words += [f"run_dir={tmp_path / 'sweep'}"]
    assert main(words) == 0
    shutil.rmtree(tmp_path / "sweep" / "seed-2")
    assert main([*words, "resume=true"]) == 0
    assert (tmp_path / "sweep" / "seed-2" / "final").is_dir()


def test_an_output_replaces_the_file_behind_a_link_and_no_device(model: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    task = [word for setting in TASK for word in ("--set", setting)]
    words = ["predict", str(model), "--task", "rpn", *task, "--num-examples", "1"]
    assert main([*words, "--output", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text().startswith('{"model"')
    (tmp_path / "file").write_text("old")
    refused([*words, "--output", str(tmp_path / "link")], 1, "holds no records of an evaluation", capsys)
    assert (tmp_path / "file").read_text() == "old"
    os.mkfifo(tmp_path / "pipe")
    refused([*words, "--output", str(tmp_path / "pipe")], 1, "no ordinary file", capsys)


def test_a_configuration_that_includes_itself(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "rpn.yaml").write_text("defaults:\n  - rpn\n  - _self_\n")
    refused(["train", "--config-dir", str(tmp_path)], 2, "includes itself", capsys)
