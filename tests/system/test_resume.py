"""A run that was stopped or killed anywhere and resumed equals the one that was never interrupted, bit for bit."""

import shutil
import signal
from pathlib import Path

import pytest

from rlvr.records.jsonl import read_metrics
from rlvr.run.run_folder import RunFolder, read_config
from tests.system.harness import (
    SCRATCH,
    SMALL,
    Cli,
    Command,
    Outcome,
    check_equal,
    metrics,
    num_lines,
    numbers,
    outcome,
    pretrained,
    run_train,
    wait_until,
)
from tests.variants import variants

LONG = (*SMALL, "trainer.max_steps=6", "evaluation.every=2", "trainer.checkpoint_every=2", "reward=rpn_boxed")
SETTINGS = {
    "ppo": ("algorithm=ppo", "rollout.prompts_per_step=16", "rollout.group_size=1", "algorithm.kl_coef=0.05"),
    "sampler": ("sampler=pass_rate", "sampler.floor=0.05", "rollout.dead_groups=refill"),
    "grpo": ("trainer.schedule=cosine", "trainer.warmup_steps=2"),
    "bfloat16": ("engine.dtype=bfloat16",),
    "float16": ("engine.dtype=float16", "trainer.precision=fp16", "model.head_dtype=float32"),
    "grpo_kl": ("algorithm.kl_coef=0.1", "algorithm.num_epochs=2", "trainer.learning_rate=0.003"),
    "dapo": ("algorithm=dapo", "evaluation.samples_per_example=2"),
}


# -------------------------------------------------------------------------------------------------- stop and go on


@pytest.mark.parametrize("settings", variants(SETTINGS, always=2))
def test_pitfall_37_resume_equals_the_uninterrupted_run(settings: str, model: Path, tmp_path: Path) -> None:
    """Stopped twice, both times off the schedule of checkpoints."""
    overrides = (*LONG, *pretrained(model), *SETTINGS[settings])
    whole, folder = run_train(tmp_path / "whole", *overrides).folder, tmp_path / "parts"
    for steps, more in ((1, ()), (3, ("resume=true",))):
        part = run_train(folder, *overrides, *more, stopped=lambda steps=steps: num_lines(folder) > steps)
        assert (part.result.finished, part.result.num_steps) == (False, steps)
        assert not (folder / "final").exists()
        assert (folder / "checkpoints" / f"step_{steps:06d}").is_dir()
    assert run_train(folder, *overrides, "resume=true").result.finished
    check_equal(outcome(folder), outcome(whole))
    if settings == "bfloat16":
        assert 0 < max(row.get("policy/mismatch_kl", 0.0) for row in numbers(folder)) < 1e-3
    if settings == "dapo":
        assert sum(row["rollout/refilled_groups"] for row in numbers(folder)[1:]) > 0  # the cursor really ran ahead


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run from the shared model."""
    return run_train(tmp_path_factory.mktemp("plain") / "run", *LONG, *pretrained(model)).folder


def test_pitfall_37_what_came_after_the_checkpoint_is_cut_off(plain: Path, model: Path, tmp_path: Path) -> None:
    overrides = (*LONG, *pretrained(model))
    folder = tmp_path / "parts"
    shutil.copytree(plain, folder)
    for name in ("final", "checkpoints/step_000006", "checkpoints/step_000004"):
        shutil.rmtree(folder / name, ignore_errors=True)
    run_train(folder, *overrides, "resume=true")
    check_equal(outcome(folder), outcome(plain))


def test_pitfall_37_rollouts_after_the_checkpoint_are_removed(model: Path, tmp_path: Path) -> None:
    overrides = (*LONG, *pretrained(model), "trainer.checkpoint_every=null")
    folder = tmp_path / "run"
    run_train(folder, *overrides, stopped=lambda: num_lines(folder) > 2)
    for step in (3, 4):  # the run went on and was killed before its next checkpoint
        shutil.copy(folder / "rollouts/step_000002.jsonl.gz", folder / f"rollouts/step_{step:06d}.jsonl.gz")
    run_train(folder, *overrides, "resume=true", "tracker.rollouts_every=null")
    names = sorted(path.name for path in (folder / "rollouts").iterdir())
    assert names == ["step_000001.jsonl.gz", "step_000002.jsonl.gz"]


def test_pitfall_37_from_the_checkpoint_before_the_first_step(plain: Path, model: Path, tmp_path: Path) -> None:
    overrides, folder = (*LONG, *pretrained(model)), tmp_path / "parts"
    assert run_train(folder, *overrides, stopped=lambda: True).result.num_steps == 0
    run_train(folder, *overrides, "resume=true")
    check_equal(outcome(folder), outcome(plain))


def test_more_steps_than_at_first_and_no_more_of_a_finished_run(plain: Path, model: Path, tmp_path: Path) -> None:
    overrides, folder = (*LONG, *pretrained(model)), tmp_path / "parts"
    run_train(folder, *overrides, "trainer.max_steps=4")
    for _ in range(2):
        assert run_train(folder, *overrides, "resume=true").result.finished
        check_equal(outcome(folder), outcome(plain))


def test_a_checkpoint_that_a_killed_run_did_not_come_to_remove(model: Path, tmp_path: Path) -> None:
    words = (*SMALL, *pretrained(model), "trainer.max_steps=3", "trainer.checkpoint_every=1", "trainer.keep_best=false")
    every = run_train(tmp_path / "every", *words, "trainer.keep_last=9").folder / "checkpoints"
    kept = run_train(tmp_path / "run", *words, "trainer.keep_last=1").folder / "checkpoints"
    shutil.copytree(every / "step_000002", kept / "step_000002")  # after the last save, before the old one went
    run_train(tmp_path / "run", *words, "trainer.keep_last=1", "resume=true")
    assert [path.name for path in kept.iterdir()] == ["step_000003"]


# ------------------------------------------------------------------------------------------- by the command line


def test_resume_takes_the_settings_of_the_run_and_no_others(model: Path, tmp_path: Path, cli: Cli) -> None:
    overrides = (*LONG, *pretrained(model), "algorithm=rloo", "seed=5", "name=mine")
    whole = run_train(tmp_path / "whole", *overrides).folder
    folder = tmp_path / "parts"
    run_train(folder, *overrides, stopped=lambda: num_lines(folder) > 2)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    resume = ["train", f"run_dir={folder}", "resume=true"]
    for extra in ("seed=7", "trainer.learning_rate=0.5", "rollout.group_size=2"):
        cli.refuses(2, [*resume, extra], f"rlvr: error: {extra} differs from ")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    cli.ok(*resume)
    check_equal(outcome(folder), outcome(whole))
    assert read_config(RunFolder(root=folder)).name == "mine"


def test_resume_of_a_run_of_another_configuration(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "run"
    overrides = ["trainer.max_steps=2", "warm_start.num_steps=3", "warm_start.warmup_steps=1", "tracker.console=none"]
    overrides += ["warm_start.final_phase_steps=1", "evaluation.num_examples=10"]
    run_train(folder, *overrides, name="rpn_test", stopped=lambda: num_lines(folder) > 1)
    cli.ok("train", "resume=true", f"run_dir={folder}", "trainer.max_steps=3")
    assert [row["step"] for row in metrics(folder)] == [0, 1, 2, 3]


# -------------------------------------------------------------------------------------------------------- signals


def start(tmp_path: Path, *words: str, **options: int) -> tuple[Path, Command]:
    """The run by the command, from scratch."""
    folder = tmp_path / "run"
    return folder, Command("train", *LONG, *SCRATCH, f"run_dir={folder}", *words, log=tmp_path / "log", **options)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return outcome(run_train(tmp_path_factory.mktemp("whole") / "run", *LONG, *SCRATCH).folder)


def resume_and_compare(folder: Path, whole: Outcome) -> None:
    resume = ["resume=true"] if (folder / "config.yaml").exists() else []
    run_train(folder, *LONG, *SCRATCH, *resume)
    check_equal(outcome(folder), whole)
    assert not [path for path in folder.rglob(".*.tmp-*")] + [path for path in folder.rglob(".*.old-*")]


@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize(
    ("number", "code"), variants([(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
)
def test_pitfall_37_a_signal_saves_the_step_and_resume_goes_on(
    number: int, code: int, tmp_path: Path, uninterrupted: Outcome
) -> None:
    folder, command = start(tmp_path)
    wait_until(lambda: num_lines(folder) >= 2)
    command.send(number)
    assert command.wait() == code, command.err
    assert "Traceback" not in command.err
    steps = [row["step"] for row in read_metrics(folder / "metrics.jsonl")]
    assert (folder / "checkpoints" / f"step_{int(steps[-1]):06d}").is_dir()  # nothing of the last step is lost
    assert not (folder / "final").exists()
    resume_and_compare(folder, uninterrupted)


def test_a_signal_during_the_warm_start_ends_it(tmp_path: Path, uninterrupted: Outcome) -> None:
    folder, command = start(tmp_path, "tracker.console=plain")
    wait_until((folder / "config.yaml").exists)
    command.send(signal.SIGINT)
    assert command.wait() == 130, command.err
    assert "stopped in the warm start: nothing is saved" in command.err
    assert "saving" not in command.err
    assert not (folder / "metrics.jsonl").exists()
    resume_and_compare(folder, uninterrupted)


def test_a_second_signal_stops_at_once(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    slow = ["trainer.max_steps=1", "rollout.prompts_per_step=1000", "engine.max_batch_size=8"]
    command = Command("train", *LONG, *pretrained(model), *slow, f"run_dir={folder}", log=tmp_path / "log")
    wait_until(lambda: num_lines(folder) == 1)  # in the middle of a step of a minute
    command.send(signal.SIGINT)
    wait_until(lambda: "once more stops at once" in command.err)
    command.send(signal.SIGINT)
    assert command.wait(30) == 130, command.err
    assert "Traceback" not in command.err
    assert num_lines(folder) == 1


# -------------------------------------------------------------------------------------------------------- kill -9


@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("lines", variants([4, 0]))
def test_pitfall_37_kill_9_during_the_run_loses_nothing(lines: int, tmp_path: Path, uninterrupted: Outcome) -> None:
    folder, command = start(tmp_path)
    wait_until(lambda: (folder / "config.yaml").exists() and num_lines(folder) >= lines)
    command.send(signal.SIGKILL)
    assert command.wait() in (-signal.SIGKILL, 0)
    resume_and_compare(folder, uninterrupted)


@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("die_at", variants([50, 2, 18, 34, 66, 82, 98]))
def test_pitfall_37_kill_9_at_a_write_loses_nothing(die_at: int, tmp_path: Path, uninterrupted: Outcome) -> None:
    folder, command = start(tmp_path, die_at=die_at)
    assert command.wait() == -signal.SIGKILL, command.err
    resume_and_compare(folder, uninterrupted)


@pytest.mark.long
def test_pitfall_37_killed_again_and_again(tmp_path: Path, uninterrupted: Outcome) -> None:
    folder = tmp_path / "run"
    words = ["train", *LONG, *SCRATCH, f"run_dir={folder}"]
    for die_at in (20, 9, 40, 55, 70):
        resume = ["resume=true"] if (folder / "config.yaml").exists() else []
        assert Command(*words, *resume, log=tmp_path / "log", die_at=die_at).wait() in (-signal.SIGKILL, 0)
    resume_and_compare(folder, uninterrupted)
