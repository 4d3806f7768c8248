"""Which step of a run can be made once more, and what is needed for it (rlvr.commands.replay)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.config.compose import load_config
from rlvr.errors import UserError
from rlvr.records.rollouts import rollouts_path, write_rollouts
from rlvr.research.repeat import Recorded, Repeated, check_replays, find_step, linked
from rlvr.run.run_folder import RunFolder
from tests.unit.report.runs import episode


def run(root: Path, steps: int = 5, *checkpoints: int) -> Path:
    root.mkdir(parents=True)
    (root / "config.yaml").write_text("")
    (root / "metrics.jsonl").write_text("".join(f'{{"step": {n}, "loss/total": {n}.5}}\n' for n in range(steps + 1)))
    for number in checkpoints:
        (root / "checkpoints" / f"step_{number:06d}").mkdir(parents=True)
    return root


@pytest.mark.parametrize(("step", "checkpoint"), [(1, 0), (2, 0), (3, 2), (4, 2), (5, 4)])
def test_a_step_begins_at_the_newest_checkpoint_before_it(step: int, checkpoint: int, tmp_path: Path) -> None:
    found = find_step(run(tmp_path / "run", 5, 2, 4, 5), step)
    assert (found.step, found.metrics["loss/total"], found.lines) == (step, step + 0.5, [])
    assert found.checkpoint == (tmp_path / f"run/checkpoints/step_{checkpoint:06d}" if checkpoint else None)


def test_a_recorded_step_has_its_lines(tmp_path: Path) -> None:
    root = run(tmp_path / "run")
    write_rollouts(rollouts_path(root / "rollouts", 3), [episode(), episode(sample=1)])
    assert len(find_step(root, 3).lines) == 2
    rollouts_path(root / "rollouts", 3).write_bytes(b"no gzip")
    with pytest.raises(
        UserError, match=r"step_000003\.jsonl\.gz is damaged .*: move it, and only metrics are compared"
    ):
        find_step(root, 3)


@pytest.mark.parametrize(
    ("steps", "step", "said"),
    [
        (5, 0, "has steps 1 to 5, so there is no step 0 to replay"),  # the evaluation before the first update
        (5, 6, "has steps 1 to 5, so there is no step 6 to replay"),
        (0, 1, "has no step yet, so there is no step 1 to replay"),
    ],
)
def test_a_step_that_was_not_made_is_refused(steps: int, step: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        find_step(run(tmp_path / "run", steps), step)


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl"])
def test_a_folder_without_a_run_is_refused(name: str, tmp_path: Path) -> None:
    root = run(tmp_path / "run")
    (root / name).unlink()
    with pytest.raises(UserError, match=f"is no run folder to replay: it has no {name}"):
        find_step(root, 1)


def recorded(root: Path, *, checkpoint: bool = False, warm: bool = False) -> Recorded:
    if warm:
        (root / "warm_start").mkdir(parents=True)
    folder = root / "checkpoints" / "step_000002"
    folder.mkdir(parents=True)
    kept = folder if checkpoint else None
    return Recorded(folder=RunFolder(root=root), step=3, metrics={}, lines=[], checkpoint=kept)


PRETRAINED = ("model=hf", "model.name_or_path=some/model")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["engine=vllm", "engine.urls=[http://a]"], r"\(engine=vllm\): a server drew its tokens"),
        (["trainer.strategy=ddp"], r"\(trainer.strategy=ddp\): several processes added up its gradient"),
        (["rollout.max_staleness=1"], r"\(rollout.max_staleness=1\): time decided which weights drew a token"),
    ],
)
def test_what_depends_on_more_than_seeds_cannot_be_repeated(settings: list[str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"cannot be replayed number for number {reason}"):
        check_replays(load_config(settings), recorded(tmp_path, checkpoint=True))


@pytest.mark.parametrize(
    ("settings", "checkpoint", "warm", "lost"),
    [
        ((), True, False, False),
        ((), False, True, False),
        ((), False, False, True),
        (PRETRAINED, False, False, False),  # its own weights are there
        ((*PRETRAINED, "warm_start.enabled=true"), False, False, True),
        ((*PRETRAINED, "warm_start.enabled=true"), False, True, False),
    ],
)
def test_the_first_weights_must_be_there(
    settings: tuple[str, ...], checkpoint: bool, warm: bool, lost: bool, tmp_path: Path
) -> None:
    found = recorded(tmp_path, checkpoint=checkpoint, warm=warm)
    if lost:
        with pytest.raises(UserError, match=r"has neither a checkpoint before step 3 nor warm_start/"):
            check_replays(load_config(settings), found)
    else:
        check_replays(load_config(settings), found)


def test_a_resume_finds_the_start_and_the_one_checkpoint(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run", checkpoint=True, warm=True)
    (tmp_path / "run/checkpoints/step_000004").mkdir()
    with linked(found) as folder:
        assert folder.warm_start.resolve() == tmp_path / "run/warm_start"
        assert [path.name for path in folder.checkpoints.iterdir()] == ["step_000002"]
    assert not folder.root.exists()
    assert (tmp_path / "run/warm_start").is_dir()
    with linked(recorded(tmp_path / "other")) as folder:
        assert [*folder.root.iterdir()] == []


def test_progress_is_that_of_the_steps() -> None:
    seen, nothing = list[tuple[int, int]](), SimpleNamespace()
    made = Repeated(step=3, opened=nothing, run=nothing, on_progress=lambda *told: seen.append(told))  # type: ignore[arg-type]
    assert made.made == 0
    made.log(2, {"loss/total": 1.0})
    assert (seen, made.made, made.metrics) == ([(2, 3)], 2, {"loss/total": 1.0})
    error: Any = SimpleNamespace(what="the loss")
    assert (
        str(made.non_finite(3, nothing, error)) == "the loss of step 3 is not finite in the replay, and was in the run."
    )  # type: ignore[arg-type]
