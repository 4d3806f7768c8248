"""`rlvr train --multirun`: expansion, folders, the table, exit statuses."""

import signal

import pytest

from rlvr.cli.main import main
from rlvr.cli.multirun import expand, folder_names
from rlvr.config import Config
from rlvr.errors import ConfigError, UserError
from tests.unit.cli.conftest import FakeTraining


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
def test_what_cannot_be_swept_is_an_error(override: str) -> None:
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        expand([override])


def test_a_class_of_ones_own_is_swept_like_a_name() -> None:
    jobs = expand(["algorithm=grpo,my_algo:Reinforce", "task.path='a:b','c'"])
    assert [job.swept[0] for job in jobs[::2]] == ["algorithm=grpo", "algorithm=my_algo:Reinforce"]
    assert jobs[0].swept[1] == "task.path='a:b'"


def test_folders_are_named_after_the_swept_values_or_numbered() -> None:
    assert folder_names(expand(["seed=1,2"])) == ["seed-1", "seed-2"]
    assert folder_names(expand(["model.name_or_path=a/b,c/d"])) == ["0", "1"]
    assert folder_names(expand(["seed=1,1"])) == ["0", "1"]
    assert folder_names(expand([])) == ["0"]


def test_runs_go_one_after_another_into_their_own_folders(
    training: FakeTraining, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "-m", "seed=1..3", "run_dir=out"]) == 0
    assert [(c.seed, c.run_dir) for c in training.configs] == [(n, f"out/seed-{n}") for n in (1, 2, 3)]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "seed=2" in lines[2]
    assert "0.750" in lines[2]
    assert "done" in lines[2]


def test_one_failed_run_fails_the_sweep_but_not_the_others(
    training: FakeTraining, capsys: pytest.CaptureFixture[str]
) -> None:
    def act(config: Config) -> None:
        if config.seed == 1:
            raise UserError("loss is not finite.")

    training.act = act
    assert main(["train", "-m", "seed=1,2", "run_dir=out"]) == 1
    assert len(training.configs) == 2
    assert "failed: loss is not finite." in capsys.readouterr().out


def test_a_wrong_value_anywhere_stops_the_sweep_before_it_starts(
    training: FakeTraining, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "-m", "rollout.group_size=8,1"]) == 2
    assert training.configs == []
    assert "rollout.group_size=1" in capsys.readouterr().err


def test_a_signal_ends_the_sweep(training: FakeTraining, capsys: pytest.CaptureFixture[str]) -> None:
    training.act = lambda config: signal.raise_signal(signal.SIGTERM)
    assert main(["train", "-m", "seed=1,2,3", "run_dir=out"]) == 143
    assert len(training.configs) == 1
    assert "2 more runs were not started" in capsys.readouterr().out


def test_a_sweep_under_torchrun_is_refused(training: FakeTraining, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", "-m", "seed=1,2"]) == 2
    assert training.configs == []
