"""`rlvr train --multirun`: expansion, folders, the table, exit statuses."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.train.multirun import Job, _placed, expand, folder_names
from rlvr.config import Config
from rlvr.config.compose import load_config, to_run_yaml
from rlvr.errors import ConfigError, UserError
from tests.unit.cli.conftest import FakeTraining, Rlvr


def test_all_combinations_the_last_key_fastest() -> None:
    jobs = expand(["seed=1,2", "trainer.max_steps=5", "algorithm=grpo,ppo"])
    assert [job.swept for job in jobs] == [
        ("seed=1", "algorithm=grpo"),
        ("seed=1", "algorithm=ppo"),
        ("seed=2", "algorithm=grpo"),
        ("seed=2", "algorithm=ppo"),
    ]
    assert jobs[0].overrides == ("seed=1", "trainer.max_steps=5", "algorithm=grpo")


@pytest.mark.parametrize("values", ["1,2,3", "choice(1,2,3)", "range(1,4)", "1..3"])
def test_every_way_to_write_a_sweep(values: str) -> None:
    assert [job.overrides for job in expand([f"seed={values}"])] == [("seed=1",), ("seed=2",), ("seed=3",)]


@pytest.mark.parametrize("override", ["run_dir=a,b", "seed=interval(1,2)", "algorithm=glob(*)"])
def test_settings_that_cannot_be_swept_are_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        expand([override])


def test_a_user_class_is_swept_like_a_name() -> None:
    jobs = expand(["algorithm=grpo,my_algo:Reinforce", "task.path='a:b','c'"])
    assert [job.swept[0] for job in jobs[::2]] == ["algorithm=grpo", "algorithm=my_algo:Reinforce"]
    assert jobs[0].swept[1] == "task.path='a:b'"


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (["seed=1,2"], ["seed-1", "seed-2"]),
        (["model.name_or_path=a/b,c/d"], ["0", "1"]),
        (["seed=1,1"], ["0", "1"]),
        ([], ["0"]),
    ],
)
def test_folders_are_named_after_the_swept_values(overrides: list[str], names: list[str]) -> None:
    assert folder_names(expand(overrides)) == names


def test_runs_go_one_after_another_into_their_own_folders(training: FakeTraining, rlvr: Rlvr) -> None:
    ran = rlvr("train", "-m", "seed=1..3", "run_dir=out")
    assert [(c.seed, c.run_dir) for c in training.configs] == [(n, f"out/seed-{n}") for n in (1, 2, 3)]
    lines = ran.out.splitlines()
    assert (ran.code, len(lines)) == (0, 4)
    assert [word for word in ("seed=2", "0.750", "done") if word not in lines[2]] == []


def test_the_table_has_the_metric_that_runs_are_judged_by(training: FakeTraining, rlvr: Rlvr) -> None:
    training.result = replace(training.result, metrics={"eval/rpn/accuracy": 0.5, "eval/rpn/sampled_accuracy": 0.25})
    words, judged = ("train", "-m", "evaluation.samples_per_example=2"), "evaluation.headline=sampled_accuracy"
    head, one, _ = rlvr(*words, "seed=1,2", judged, "run_dir=out").out.splitlines()
    assert head.startswith("run     sampled accuracy  folder")
    assert one.startswith("seed=1  0.250             out/seed-1")
    head, one, two = rlvr(*words, f"{judged},accuracy", "run_dir=both").out.splitlines()
    assert [line.split()[1] for line in (head, one, two)] == ["score", "0.250", "0.500"]


def test_one_failed_run_fails_the_sweep_but_not_the_others(training: FakeTraining, rlvr: Rlvr) -> None:
    def act(config: Config) -> None:
        if config.seed == 1:
            raise UserError("loss is not finite.")

    training.act = act
    ran = rlvr("train", "-m", "seed=1,2", "run_dir=out")
    assert (ran.code, len(training.configs)) == (1, 2)
    assert "failed: loss is not finite." in ran.out


def test_a_wrong_value_anywhere_stops_the_sweep_before_it_starts(training: FakeTraining, rlvr: Rlvr) -> None:
    ran = rlvr("train", "-m", "rollout.group_size=8,1")
    assert (ran.code, training.configs) == (2, [])
    assert "rollout.group_size=1" in ran.err


def test_a_signal_ends_the_sweep(training: FakeTraining, rlvr: Rlvr) -> None:
    training.act = lambda config: signal.raise_signal(signal.SIGTERM)
    ran = rlvr("train", "-m", "seed=1,2,3", "run_dir=out")
    assert (ran.code, len(training.configs)) == (143, 1)
    assert "2 more runs were not started" in ran.out


def test_a_sweep_under_torchrun_is_refused(training: FakeTraining, rlvr: Rlvr, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rlvr("train", "-m", "seed=1,2").code == 2
    assert training.configs == []


MADE = ("seed=1", "trainer.max_steps=4")


def made(folder: Path, *settings: str, steps: int | None = 4, final: bool = True) -> Path:
    """The folder of a run with these settings, saved after that many steps."""
    config = load_config([*settings, f"run_dir={folder}"])
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_run_yaml(config))
    for saved in () if steps is None else (2, steps):
        (folder / "checkpoints" / f"step_{saved:06d}").mkdir(parents=True, exist_ok=True)
    if final:
        (folder / "final").mkdir()
    return folder


@pytest.mark.parametrize(
    ("was", "how", "same"),
    [
        (MADE, {}, True),
        (MADE, {"final": False}, False),
        (MADE, {"steps": 3}, False),
        (MADE, {"steps": None}, False),
        (("seed=1", "trainer.max_steps=5"), {"steps": 5}, False),  # it was asked for more steps
        (("seed=2", "trainer.max_steps=4"), {}, False),
        ((*MADE, "trainer.learning_rate=0.5"), {}, False),
    ],
)
def test_a_finished_run_is_taken_as_it_is(
    was: tuple[str, ...], how: dict[str, Any], same: bool, tmp_path: Path
) -> None:
    folder = made(tmp_path / "sweep" / "seed-1", *was, **how)
    found = _placed(load_config(MADE), folder)
    assert (found.run_dir, found.resume) == (str(folder), same)
    assert _placed(load_config([*MADE, "resume=true", f"run_dir={tmp_path}"]), folder).resume
    assert not _placed(load_config([*MADE, "resume=true", f"run_dir={tmp_path}"]), tmp_path / "other").resume
    (folder / "config.yaml").write_text("task: [")
    assert not _placed(load_config(MADE), folder).resume


@pytest.mark.parametrize(
    ("swept", "names"),
    [
        (["x" * 94 + "=12345"], ["x" * 94 + "-12345"]),
        (["x" * 94 + "=123456"], ["0"]),
        (["a=1", "a= 1"], ["0", "1"]),
    ],
)
def test_a_name_of_a_hundred_characters_is_a_folder(swept: list[str], names: list[str]) -> None:
    assert folder_names([Job(swept=(one,), overrides=()) for one in swept]) == names


def test_runs_that_stop_or_were_done_before_are_told(training: FakeTraining, rlvr: Rlvr) -> None:
    training.result = replace(training.result, metrics={})
    made(Path("out/seed-1"), *MADE)
    ran = rlvr("train", "-m", "seed=1,2", "trainer.max_steps=4", "run_dir=out")
    assert (ran.code, [line.split() for line in ran.out.splitlines()]) == (
        0,
        [["run", "accuracy", "folder", "status"], ["seed=1", "-", "out/seed-1", "done", "before"],
         ["seed=2", "-", "out/seed-2", "done"]],
    )  # fmt: skip
    assert [line for line in ran.err.splitlines() if line.startswith("rlvr: run")] == [
        "rlvr: run 1 of 2: seed=1",
        "rlvr: run 2 of 2: seed=2",
    ]
