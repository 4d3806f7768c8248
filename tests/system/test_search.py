"""A search with real trials: their processes, their numbers, and what a kill leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system.harness import ENVIRONMENT, SMALL, Cli, check_equal, metrics, once, outcome, pretrained, run_train

SEARCH = ("train", "-m", "sweep.trials=3", "trainer.learning_rate=tag(log,interval(1e-5,1e-3))", "algorithm=grpo,rloo")


def test_a_run_far_below_those_beside_it_is_pruned_and_can_go_on(model: Path, tmp_path: Path, cli: Cli) -> None:
    row = {"step": 1, "eval/rpn/accuracy": 1.0, "eval/rpn/accuracy_low": 0.99, "eval/rpn/accuracy_high": 1.0}
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    run, words = tmp_path / "run", (*SMALL, *pretrained(model), "evaluation.every=1", "trainer.max_steps=4")
    command = once("train", *words, f"run_dir={run}", "--prune-against", str(tmp_path))
    done = cli.ok(*command)
    assert "pruned: held-out accuracy" in done.out
    assert [row["step"] for row in metrics(run)] == [0, 1]
    listed = json.loads(cli.ok("runs", tmp_path, "--json", "--filter", "name=run").out)
    assert (listed["state"], listed["error"]) == ("pruned", None)
    assert listed["pruned"].endswith("lies below 1.000 (0.990 to 1.000) of b, the median of 3")
    run_train(run, *words, "resume=true")  # as the command's last line says
    assert json.loads(cli.ok("runs", tmp_path, "--json", "--filter", "name=run").out)["state"] == "done"
    whole = run_train(tmp_path / "whole", *words)
    assert metrics(run)[-1]["reward/mean"] == metrics(whole.folder)[-1]["reward/mean"]


@pytest.mark.long
def test_a_search_trains_its_points_at_a_time(model: Path, here: Path, cli: Cli) -> None:
    pytest.importorskip("optuna")
    words = once(*SEARCH, *SMALL, *pretrained(model), "run_dir=search")
    done = cli.ok(*words, "sweep.jobs=2")
    found = [json.loads(line) for line in Path("search/trials.jsonl").read_text().splitlines()]
    assert [one["state"] for one in found] == ["done"] * 3, done.out
    best = max(found, key=lambda one: one["score"])
    alone = run_train(here / "alone", *SMALL, *pretrained(model), *best["overrides"], "trainer.num_threads=1")
    check_equal(outcome(Path(best["folder"])), outcome(alone.folder))
    assert "search/report.html" in cli.ok("report", "search").out
    again = cli.ok(*words)
    assert again.out == done.out


@pytest.mark.long
def test_a_search_killed_in_the_middle_of_a_trial_ends_as_one_that_was_not(model: Path, here: Path, cli: Cli) -> None:
    pytest.importorskip("optuna")
    words = once(*SEARCH, *SMALL, *pretrained(model), "trainer.max_steps=12", "trainer.checkpoint_every=2")
    cli.ok(*words, "run_dir=whole")
    command = [sys.executable, "-m", "rlvr", *words, "run_dir=killed"]
    process = subprocess.Popen(command, env=os.environ | ENVIRONMENT, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 100
    while not Path("killed/trial-1/checkpoints/step_000004").exists() and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not Path("killed/trial-1/final").exists()
    cli.ok(*words, "run_dir=killed")
    text = Path("whole/trials.jsonl").read_text().replace('"whole/', '"killed/')
    assert Path("killed/trials.jsonl").read_text() == text
    for number in range(3):
        check_equal(*(outcome(Path(folder, f"trial-{number}")) for folder in ("whole", "killed")))
