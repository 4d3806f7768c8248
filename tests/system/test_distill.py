"""`algorithm=distill`: it learns from the teacher alone, resumes exactly, and refuses a teacher of other words."""

import re
import signal
from pathlib import Path

import pytest

from rlvr.core.world import World
from rlvr.errors import UserError
from tests.ranks import Ranks
from tests.system.harness import (
    SCRATCH,
    SMALL,
    Cli,
    Command,
    check_equal,
    metrics,
    num_lines,
    numbers,
    once,
    outcome,
    pretrained,
    run_train,
    wait_until,
)
from tests.variants import variants

STEPS = ("trainer.max_steps=6", "evaluation.every=3", "trainer.checkpoint_every=2", "trainer.learning_rate=0.003")
DISTILL = (*SMALL, *STEPS, "algorithm=distill", "rollout.prompts_per_step=16", "rollout.group_size=1")
COPY = ("algorithm.teacher=start", "algorithm.refresh_every=3", "algorithm.reward_coef=1.0", "rollout.group_size=4")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned to sum from more demonstrations than `model` has seen, all of them worked."""
    worked = ("warm_start.num_steps=250", "warm_start.final_phase_steps=0", "trainer.max_steps=1")
    return run_train(tmp_path_factory.mktemp("teacher") / "run", *SMALL, *SCRATCH, *worked).folder


def test_a_policy_follows_its_teacher(teacher: Path, model: Path, tmp_path: Path) -> None:
    """Without a reward; the teacher is named by its run."""
    words = (*DISTILL, *pretrained(model), f"algorithm.teacher={teacher}", "rollout.prompts_per_step=32")
    ran = run_train(
        tmp_path / "run", *words, "trainer.max_steps=20", "trainer.learning_rate=4e-4", "evaluation.every=20"
    )
    distance = [row["policy/teacher_kl"] for row in ran.rows[1:]]
    assert sum(distance[-5:]) < 0.6 * sum(distance[:5])
    written = (tmp_path / "run" / "config.yaml").read_text()
    assert f"teacher: {(teacher / 'final').resolve()}" in written  # so that a resume finds it from anywhere


@pytest.mark.parametrize("kind", variants(["copy", "folder"]))
def test_pitfall_37_killed_and_resumed_with_a_teacher(kind: str, teacher: Path, model: Path, tmp_path: Path) -> None:
    """Killed after step 3 and resumed from the checkpoint of step 2, or 4 with the copy of step 3."""
    named = COPY if kind == "copy" else (f"algorithm.teacher={teacher}",)
    words = (*DISTILL, *pretrained(model), *named)
    whole = run_train(tmp_path / "whole", *words).folder
    folder = tmp_path / "parts"
    command = Command("train", *words, f"run_dir={folder}", log=tmp_path / "log")
    wait_until(lambda: num_lines(folder) >= (6 if kind == "copy" else 4))
    command.send(signal.SIGKILL)
    command.wait()
    run_train(folder, *words, "resume=true")
    check_equal(outcome(folder), outcome(whole))
    if kind == "copy":
        distance = [row["policy/teacher_kl"] for row in metrics(folder)[1:]]
        assert [abs(value) < 1e-6 for value in distance] == [True, False, False] * 2  # 0 after each refresh


def lines_of(world: World, words: list[str], folder: str) -> list[dict[str, float]]:
    run_train(Path(folder), *words)
    return numbers(Path(folder))


@pytest.mark.parametrize("strategy", variants(["fsdp2", "ddp"]))
def test_pitfall_09_two_ranks_distill_as_one(
    strategy: str, teacher: Path, model: Path, ranks: Ranks, tmp_path: Path
) -> None:
    words = [*DISTILL, *pretrained(model), f"algorithm.teacher={teacher}", "trainer.max_steps=3"]
    alone = run_train(tmp_path / "alone", *words).numbers
    two, _ = ranks(2, None, lines_of, [*words, f"trainer.strategy={strategy}"], str(tmp_path / "two"))
    for mine, other in zip(two, alone, strict=True):
        for name in {"policy/teacher_kl", "loss/total", "policy/grad_norm", "eval/rpn/accuracy"} & other.keys():
            assert mine[name] == pytest.approx(other[name], rel=1e-5, abs=1e-5), (mine["step"], name)


def test_a_teacher_that_is_not_there_is_named_before_anything_is_made(tmp_path: Path, cli: Cli) -> None:
    words = [
        "train",
        *SMALL,
        "algorithm=distill",
        f"algorithm.teacher={tmp_path / 'no'}",
        f"run_dir={tmp_path / 'run'}",
    ]
    cli.refuses(1, words, f"rlvr: error: there is no folder {tmp_path / 'no'}")
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_model_is_refused_before_anything_is_made(tmp_path: Path, cli: Cli) -> None:
    words = [*SMALL, "algorithm=distill", f"algorithm.teacher={tmp_path}", f"run_dir={tmp_path / 'run'}"]
    cli.refuses(1, ["train", *words], f"the folder '{tmp_path}' holds no model")
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_another_vocabulary_is_refused(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    short = ("warm_start.num_steps=2", "warm_start.warmup_steps=0", "warm_start.final_phase_steps=0")
    run_train(other, *SMALL, *SCRATCH, *short, "trainer.max_steps=1", "task.modulus=7", "task.operand_range=[0,6]")
    with pytest.raises(UserError, match=r"the tokens of the teacher '.*' are not the policy's: "):
        run_train(tmp_path / "run", *DISTILL, *pretrained(other / "final"), *SMALL, f"algorithm.teacher={model}")


def test_the_memory_plan_counts_the_teacher(teacher: Path, model: Path, tmp_path: Path, cli: Cli) -> None:
    words = (*DISTILL, *pretrained(model), f"algorithm.teacher={teacher}", "trainer.max_steps=1")
    said = cli.ok("train", *once(*words, "tracker.console=plain", f"run_dir={tmp_path / 'run'}")).err
    [line] = [line for line in said.splitlines() if line.startswith("memory: ")]
    of_teacher, of_policy = re.findall(r"(?:teachers|weights) ([\d.]+) kB", line)
    assert float(of_teacher) == pytest.approx(float(of_policy), rel=0.01)
