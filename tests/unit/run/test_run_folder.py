"""The folder of a run: never overwritten, never shared, resumed only with its own settings."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rlvr.config import Config
from rlvr.config.compose import load_config, read_values
from rlvr.errors import ConfigError, UserError
from rlvr.run.run_folder import changed_settings, open_run_folder, read_config
from rlvr.settings import dumped

NOW = datetime(2026, 1, 31, 23, 59, 0)


@pytest.fixture(scope="module")
def base() -> Config:
    return load_config([])


def with_values(config: Config, values: dict[str, Any] | None = None, **more: Any) -> Config:
    """`with_values(config, {"trainer.max_steps": 7}, seed=3)`"""
    data = OmegaConf.create(dumped(config))
    for key, value in {**(values or {}), **more}.items():
        OmegaConf.update(data, key, value)
    return read_values(OmegaConf.to_container(data))  # type: ignore[arg-type]


def opened(config: Config, **options: Any) -> None:
    with open_run_folder(config, **options):
        pass


@contextmanager
def finished(config: Config, root: Path) -> Iterator[Config]:
    """A run in `root` that has ended; the configuration that resumes it."""
    opened(with_values(config, run_dir=str(root)))
    (root / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
    yield with_values(config, run_dir=str(root), resume=True)


def test_a_new_folder_holds_the_configuration_without_its_place(base: Config, tmp_path: Path) -> None:
    config = with_values(base, run_dir=str(tmp_path / "deep" / "run"))
    with open_run_folder(config) as folder:
        assert folder.root == tmp_path / "deep" / "run"
        saved = OmegaConf.to_container(OmegaConf.load(folder.config))
        assert saved == dumped(config) | {"run_dir": None, "resume": False}
        assert read_config(folder) == base


def test_leftovers_of_a_killed_run_are_no_obstacle(base: Config, tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("123\n")
    (tmp_path / ".config.yaml.tmp-123").write_text("half")
    opened(with_values(base, run_dir=str(tmp_path)))
    assert not (tmp_path / ".config.yaml.tmp-123").exists()


def test_the_default_name_holds_the_time_and_latest_points_to_it(base: Config, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with open_run_folder(base, runs=runs, now=NOW) as first, open_run_folder(base, runs=runs, now=NOW) as second:
        assert first.root == runs / f"{base.name}-20260131-235900"
        assert second.root == runs / f"{base.name}-20260131-235900-2"
    assert (runs / "latest").resolve() == second.root.resolve()
    assert len(list(runs.iterdir())) == 3


def test_latest_points_to_a_run_in_another_folder(base: Config, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with open_run_folder(base.model_copy(update={"run_dir": str(tmp_path / "mine")}), runs=tmp_path / "runs"):
        assert (tmp_path / "runs" / "latest").resolve() == tmp_path / "mine"


def test_a_run_that_is_resumed_as_latest_stays_latest(base: Config, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with open_run_folder(base, runs=runs, now=NOW) as first:
        pass
    opened(with_values(base, run_dir=str(runs / "latest"), resume=True), runs=runs)
    assert (runs / "latest").resolve() == first.root.resolve()


def test_resume_with_the_same_settings(base: Config, tmp_path: Path) -> None:
    with finished(base, tmp_path) as config:
        before = (tmp_path / "config.yaml").read_bytes()
        (tmp_path / ".final.tmp-123").mkdir()
        with open_run_folder(config) as folder:
            assert folder.root == tmp_path
        assert (tmp_path / "config.yaml").read_bytes() == before
        assert not (tmp_path / ".final.tmp-123").exists()


def test_a_run_that_made_nothing_is_no_obstacle_for_another(base: Config, tmp_path: Path) -> None:
    """It was refused after its folder was made."""
    opened(with_values(base, run_dir=str(tmp_path)))
    opened(with_values(base, run_dir=str(tmp_path), seed=3))
    assert "seed: 3" in (tmp_path / "config.yaml").read_text()
    (tmp_path / ".lock").unlink()  # a user's own file
    with pytest.raises(ConfigError, match="is not empty"):
        opened(with_values(base, run_dir=str(tmp_path), seed=4))


@pytest.mark.parametrize("kept", ["nothing", "warm_start", "checkpoints/step_000000", "metrics"])
def test_a_run_without_a_step_goes_on_with_other_settings(base: Config, tmp_path: Path, kept: str) -> None:
    opened(with_values(base, run_dir=str(tmp_path)))
    if kept == "metrics":
        (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
    elif kept != "nothing":
        (tmp_path / kept).mkdir(parents=True)
    same = with_values(base, run_dir=str(tmp_path), resume=True)
    opened(same)
    assert kept in ("nothing", "metrics") or (tmp_path / kept).is_dir()
    opened(with_values(same, seed=3))
    assert "seed: 3" in (tmp_path / "config.yaml").read_text()
    assert not (tmp_path / "warm_start").exists()
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("key", "value", "old"),
    [("seed", 123, 0), ("trainer.learning_rate", 0.5, 0.0004), ("evaluation.every", 77, 10)],
)
def test_a_setting_that_changes_numbers_is_refused(
    base: Config, tmp_path: Path, key: str, value: Any, old: Any
) -> None:
    with finished(base, tmp_path) as config:
        before = (tmp_path / "config.yaml").read_bytes()
        with pytest.raises(ConfigError) as error:
            opened(with_values(config, {key: value}))
        assert str(error.value).startswith(f"{key}={value} differs from {old} in {tmp_path / 'config.yaml'}, and ")
        assert f"--config-dir {tmp_path} --config-name config run_dir={tmp_path} resume=true" in str(error.value)
        assert (tmp_path / "config.yaml").read_bytes() == before
        opened(config)  # the refusal let go of the lock


def test_a_setting_of_another_algorithm_is_refused(base: Config, tmp_path: Path) -> None:
    other = load_config(["algorithm=rloo"])
    with finished(base, tmp_path), pytest.raises(ConfigError, match=r"^algorithm\.name=rloo .* \(and \d+ more\)"):
        opened(with_values(other, run_dir=str(tmp_path), resume=True))


def test_the_number_of_other_differences_is_told(base: Config, tmp_path: Path) -> None:
    changes = {"seed": 3, "evaluation.every": 7, "evaluation.num_examples": 9}
    for count, told in ((1, "config.yaml, and"), (2, "config.yaml (and 1 more), and"), (3, "(and 2 more), and")):
        with finished(base, tmp_path / str(count)) as config, pytest.raises(ConfigError) as error:
            opened(with_values(config, dict(list(changes.items())[:count])))
        assert told in str(error.value)


def test_a_warm_start_is_another_one_where_there_is_one(base: Config) -> None:
    """Its settings say nothing where neither run has one; whether there is one always does."""
    on, longer = (with_values(base, {"warm_start.enabled": True, "warm_start.num_steps": n}) for n in (50, 60))
    off, other = (with_values(base, {"warm_start.enabled": False, "warm_start.num_steps": n}) for n in (50, 60))
    assert [*changed_settings(on, longer)] == ["warm_start.num_steps"]
    assert [*changed_settings(off, other)] == []
    assert [*changed_settings(on, off)] == [*changed_settings(off, on)] == ["warm_start.enabled"]


def test_settings_that_change_no_number_may_change(base: Config, tmp_path: Path) -> None:
    free = {"tracker.log_every": 99, "trainer.checkpoint_every": 3, "trainer.keep_last": 9, "name": "other"}
    free["reward.max_error_share"] = 1.0  # a run is stopped for verifiers that fail
    free |= {"trainer.strategy": "fsdp2", "trainer.world_size": 2}  # any number of processes goes on
    free |= {
        "trainer.microbatch_tokens": 512,
        "engine.max_batch_size": 3,
    }  # remedies of a full memory
    with finished(base, tmp_path) as config:
        changed = with_values(config, free)
        with open_run_folder(changed) as folder:
            assert read_config(folder) == with_values(base, free)


def test_servers_may_have_moved_when_a_run_goes_on() -> None:
    old = load_config(["engine=vllm", "engine.urls=[http://a:8000]"])
    moved = ["engine.urls=[http://b:8000,http://c:8000]", "engine.sync=broadcast", "engine.wait_s=5"]
    assert changed_settings(old, load_config(["engine=vllm", *moved])) == {}
    assert changed_settings(load_config([]), old) == {}  # a run outgrows its laptop


def test_max_steps_may_change_where_no_schedule_depends_on_it(base: Config) -> None:
    more = base.trainer.max_steps + 5
    for schedule, refused in [("constant", []), ("linear", ["trainer.max_steps"]), ("cosine", ["trainer.max_steps"])]:
        old = with_values(base, {"trainer.schedule": schedule})
        assert list(changed_settings(old, with_values(old, {"trainer.max_steps": more}))) == refused


def test_a_final_model_is_kept_though_no_step_was_made(base: Config, tmp_path: Path) -> None:
    opened(with_values(base, run_dir=str(tmp_path)))
    (tmp_path / "final").mkdir()
    with pytest.raises(ConfigError, match=r"^seed=3 differs from 0 in "):
        opened(with_values(base, run_dir=str(tmp_path), resume=True, seed=3))


def test_a_run_is_not_cut_below_what_it_has_made(base: Config, tmp_path: Path) -> None:
    constant = with_values(base, {"trainer.schedule": "constant"})
    with finished(constant, tmp_path) as config:
        (tmp_path / "checkpoints" / "step_000003").mkdir(parents=True)
        (tmp_path / "checkpoints" / "step_000003" / "state.json").touch()
        opened(with_values(config, {"trainer.max_steps": 3}))
        with pytest.raises(ConfigError, match=r"^trainer\.max_steps=2: the run in .* has made 3 steps already"):
            opened(with_values(config, {"trainer.max_steps": 2}))


@pytest.mark.parametrize("text", ["", "a: [", "seed: 1", "\x00", "- 1"])
def test_a_damaged_configuration_is_a_sentence(base: Config, tmp_path: Path, text: str) -> None:
    with finished(base, tmp_path) as config:
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(UserError, match=r"config\.yaml(: | cannot be used \(.+\): start a new run)"):
            opened(config)


def test_two_processes_never_write_to_one_folder(base: Config, tmp_path: Path) -> None:
    with finished(base, tmp_path) as config:
        code = f"""
import fcntl, os, sys
file = open({str(tmp_path / ".lock")!r}, "a+")
fcntl.flock(file, fcntl.LOCK_EX)
file.truncate(0); file.write(str(os.getpid())); file.flush()
print("locked", flush=True); sys.stdin.read()
"""
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "locked\n"
            with pytest.raises(UserError, match=rf"is being written by another process \(pid {other.pid}\)"):
                opened(config)
            other.kill()
        opened(config)  # the system frees the lock of a killed process
