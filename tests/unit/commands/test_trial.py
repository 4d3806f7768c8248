"""Where `rlvr diagnose --try` goes on from, and what it leaves alone (rlvr.commands.diagnose)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.commands.diagnose.trial import _beside, _config, _latest_kept, _prepare, _start
from rlvr.config.compose import load_config, to_run_yaml
from rlvr.errors import UserError

PRETRAINED = ("model=hf", "model.name_or_path=some/model")


def run(root: Path, *overrides: str, checkpoints: tuple[int, ...] = (), warm: bool = True) -> Path:
    for step in checkpoints:
        (root / "checkpoints" / f"step_{step:06d}").mkdir(parents=True)
    (root / "warm_start").mkdir(parents=True) if warm else root.mkdir(parents=True, exist_ok=True)
    (root / "config.yaml").write_text(to_run_yaml(load_config(overrides)))
    return root


def record(*evaluations: tuple[int, float, float, float]) -> Any:
    """Steps with value, low and high."""
    names = ("step", "value", "low", "high")
    return SimpleNamespace(evaluations=[SimpleNamespace(**dict(zip(names, one, strict=True))) for one in evaluations])


FIRST = (0, 0.3, 0.2, 0.4)


@pytest.mark.parametrize(
    ("evaluations", "start"),
    [
        ((FIRST,), 0),
        ((FIRST, (2, 0.5, 0.4, 0.6)), 0),  # intervals that touch
        ((FIRST, (2, 0.5, 0.41, 0.6)), 2),
        ((FIRST, (2, 0.5, 0.41, 0.6), (4, 0.7, 0.6, 0.8)), 4),
        ((FIRST, (2, 0.8, 0.7, 0.9), (4, 0.7, 0.6, 0.8)), 2),  # the better one
        ((FIRST, (6, 0.9, 0.8, 1.0)), 0),  # without a checkpoint
        (((2, 0.9, 0.8, 1.0),), 0),  # without a first evaluation nothing is known
        ((), 0),
    ],
)
def test_it_goes_on_from_the_best_checkpoint_that_is_better_than_chance(
    evaluations: tuple[Any, ...], start: int, tmp_path: Path
) -> None:
    assert _start(run(tmp_path / "run", checkpoints=(2, 4)), record(*evaluations)) == start


@pytest.mark.parametrize(
    ("overrides", "warm", "lost"),
    [
        ((), True, False),
        ((), False, True),
        (PRETRAINED, False, False),
        ((*PRETRAINED, "warm_start.enabled=true"), False, True),
        ((*PRETRAINED, "warm_start.enabled=true"), True, False),
    ],
)
def test_first_weights_that_are_lost_are_said(
    overrides: tuple[str, ...], warm: bool, lost: bool, tmp_path: Path
) -> None:
    root = run(tmp_path / "run", *overrides, checkpoints=(2,), warm=warm)
    if not lost:
        assert _start(root, record()) == 0
        return
    with pytest.raises(UserError, match="has no warm_start/: its first weights are lost"):
        _start(root, record())
    assert _start(root, record(FIRST, (2, 0.9, 0.8, 1.0))) == 2  # those of a checkpoint are there
    (root / "config.yaml").unlink()
    with pytest.raises(UserError, match=r"is no run folder to go on from: it has no config\.yaml"):
        _start(root, record())


def test_a_trial_lies_beside_the_run_under_a_new_name(tmp_path: Path) -> None:
    root = run(tmp_path / "run")
    names = list[str]()
    for _ in range(3):
        folder = _beside(root)
        names.append(folder.name)
        folder.mkdir()
    assert names == ["run.try", "run.try-2", "run.try-3"]
    (tmp_path / "link").symlink_to(root)
    assert _beside(tmp_path / "link").name == "run.try-4"


@pytest.mark.parametrize(("start", "kept"), [(0, []), (2, ["step_000002"])])
def test_an_arm_resumes_from_the_runs_own_weights(start: int, kept: list[str], tmp_path: Path) -> None:
    root, arm = run(tmp_path / "run", checkpoints=(2, 4)), tmp_path / "run.try" / "remedy"
    config = load_config(["seed=7"])
    _prepare(root, arm, start, config)
    assert (arm / "config.yaml").read_text() == to_run_yaml(config)
    assert (arm / "warm_start").resolve() == root / "warm_start"
    assert [path.name for path in (arm / "checkpoints").glob("*")] == kept
    assert all(path.resolve().parent == root / "checkpoints" for path in (arm / "checkpoints").glob("*"))
    _prepare(run(tmp_path / "bare", *PRETRAINED, warm=False), tmp_path / "arm", 0, config)
    assert [path.name for path in (tmp_path / "arm").iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("own", "warmup", "every"),
    [
        (["trainer.warmup_steps=30", "evaluation.every=7"], 20, 5),
        (["trainer.warmup_steps=20"], 20, 5),
        (["trainer.warmup_steps=3", "evaluation.every=null"], 3, None),
    ],
)
def test_an_arm_has_the_runs_settings_for_a_few_steps(
    own: list[str], warmup: int, every: int | None, tmp_path: Path
) -> None:
    root = run(tmp_path / "run", "seed=9", *own)
    found = _config(str(root), ["rollout.temperature=0.5"], 20, 5)
    assert (found.seed, found.rollout.temperature) == (9, 0.5)
    assert (found.trainer.max_steps, found.trainer.checkpoint_every, found.evaluation.every) == (20, None, every)
    assert found.trainer.warmup_steps == warmup
    assert (found.tracker.console, found.tracker.report_to) == ("none", ())


def test_the_newest_run_is_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    latest = tmp_path / "runs" / "latest"
    with _latest_kept(latest):
        pass
    assert not latest.exists()
    latest.symlink_to("a")
    for other in ("a", "b"):
        with _latest_kept(latest):
            latest.unlink()
            latest.symlink_to(other)
        assert str(latest.readlink()) == "a"
    with _latest_kept(latest):
        latest.unlink()
    assert not latest.is_symlink()
