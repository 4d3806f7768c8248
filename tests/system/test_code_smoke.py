"""`rlvr train --config-name code_smoke`: programs of a tiny model, judged by their tests alone."""

from pathlib import Path

import pytest

from tests.system.harness import check_equal, metrics, num_lines, outcome, run_train, split

RATE = "eval/code/sampled_accuracy"
FEW = split("""
    model.hidden_size=64 model.num_layers=2 model.num_heads=2 model.intermediate_size=128
    warm_start.num_steps=60 warm_start.batch_size=16 rollout.prompts_per_step=4 rollout.group_size=4
    trainer.max_steps=3 trainer.checkpoint_every=1 trainer.num_threads=1 evaluation.every=3
    evaluation.num_examples=8 evaluation.samples_per_example=2 tracker.console=plain
""")


def test_a_run_reports_verdicts_and_resumes_as_if_it_had_not_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run_train(tmp_path / "whole", *FEW, name="code_smoke").folder
    assert "programs run in a jail: " in capsys.readouterr().err
    rows = metrics(whole)
    assert [row["step"] for row in rows if RATE in row] == [0, 3]
    for row in rows[1:]:
        kinds = ("passed", "wrong", "raised", "timed_out", "out_of_memory", "no_program")
        assert sum(row[f"episode/{kind}"] for kind in kinds) == pytest.approx(1.0)
        assert row["episode/passed"] == row["reward/mean"]
    folder = tmp_path / "stopped"
    run_train(folder, *FEW, name="code_smoke", stopped=lambda: num_lines(folder) > 1)
    assert run_train(folder, *FEW, "resume=true", name="code_smoke").result.finished
    check_equal(outcome(whole), outcome(folder))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_most_programs_are_right_in_the_end(tmp_path: Path) -> None:
    rows = metrics(run_train(tmp_path / "run", "tracker.console=none", name="code_smoke").folder)
    rates = [row[RATE] for row in rows if RATE in row]
    assert rates[0] < 0.4
    assert rates[-1] > 0.7
