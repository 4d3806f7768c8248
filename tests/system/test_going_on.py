"""What people do with runs afterwards: start from them, go on with them, and get it slightly wrong."""

import os
import shutil
from pathlib import Path

import pytest

from tests.system.harness import SMALL, TASK, Cli, metrics, once, pretrained, run_train


@pytest.fixture
def words(model: Path) -> tuple[str, ...]:
    return (*SMALL, *pretrained(model))


def test_a_run_starts_from_the_latest_one_though_latest_moves(model: Path, here: Path, cli: Cli) -> None:
    starts = (model, "runs/latest", "runs/latest/final", "runs/latest/checkpoints/step_000001")
    for start in starts:
        cli.ok(*once("train", *SMALL, *pretrained(start), "trainer.max_steps=1"))
    assert len([path for path in Path("runs").iterdir() if not path.is_symlink()]) == len(starts)


def test_a_start_that_fails_moves_nothing(words: tuple[str, ...], here: Path, cli: Cli) -> None:
    cli.ok(*once("train", *words, "trainer.max_steps=1"))
    before = os.readlink("runs/latest")
    Path("empty").mkdir()
    cli.refuses(1, ["train", "model=hf", "model.name_or_path=empty", "tracker.console=none"], "no config.json")
    assert os.readlink("runs/latest") == before
    assert len(list(Path("runs").iterdir())) == 2


def test_what_a_finished_run_refuses(words: tuple[str, ...], tmp_path: Path, cli: Cli) -> None:
    """Fewer steps than it has made, and training anew where its checkpoints are gone."""
    folder = tmp_path / "run"
    run_train(folder, *words, "trainer.max_steps=3")
    config, lines = (folder / "config.yaml").read_text(), metrics(folder)
    resume = ["train", f"run_dir={folder}", "resume=true"]
    cli.refuses(2, [*resume, "trainer.max_steps=2"], "has made 3 steps already")
    assert (folder / "config.yaml").read_text() == config
    shutil.rmtree(folder / "checkpoints")
    done = cli(*resume)
    assert (done.code, "no checkpoint to go on from" in done.err) == (1, True)
    assert metrics(folder) == lines


def test_a_resumed_run_that_is_stopped_has_no_final_model(words: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_train(folder, *words, "trainer.max_steps=2")
    assert (folder / "final").is_dir()
    answers = iter([False, True])
    run_train(folder, *words, "trainer.max_steps=6", "resume=true", stopped=lambda: next(answers, True))
    assert not (folder / "final").exists()


def test_a_sweep_goes_on_with_what_was_not_started(words: tuple[str, ...], tmp_path: Path, cli: Cli) -> None:
    sweep = once("train", "--multirun", "seed=1,2", *words, "trainer.max_steps=1", f"run_dir={tmp_path / 'sweep'}")
    cli.ok(*sweep)
    shutil.rmtree(tmp_path / "sweep" / "seed-2")
    cli.ok(*sweep, "resume=true")
    assert (tmp_path / "sweep" / "seed-2" / "final").is_dir()


def test_an_output_replaces_the_file_behind_a_link_and_no_device(model: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    task = [word for setting in TASK for word in ("--set", setting)]
    predict = ["predict", model, "--task", "rpn", *task, "--num-examples", "1", "--output"]
    cli.ok(*predict, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text().startswith('{"model"')
    (tmp_path / "file").write_text("old")
    cli.refuses(1, [*predict, tmp_path / "link"], "holds no records of an evaluation")
    assert (tmp_path / "file").read_text() == "old"
    os.mkfifo(tmp_path / "pipe")
    cli.refuses(1, [*predict, tmp_path / "pipe"], "no ordinary file")


def test_a_configuration_that_includes_itself(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "rpn.yaml").write_text("defaults:\n  - rpn\n  - _self_\n")
    cli.refuses(2, ["train", "--config-dir", tmp_path], "includes itself")
