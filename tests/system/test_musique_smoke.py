"""`rlvr train --config-name musique_smoke`: a BPE model from scratch learns to search, without any data."""

from pathlib import Path

import pytest

from rlvr.data.multihop_sets import made_rows
from tests.system.harness import Cli, metrics, num_lines, run_train

ACCURACY = "eval/musique/accuracy"
QUICK = ("trainer.num_threads=1", "tracker.console=none", "tracker.rollouts_every=1")
"""The recipe, too short to learn anything but the form of a call."""


def test_the_questions_are_the_same_always_and_all_different() -> None:
    rows = made_rows()
    assert rows == made_rows()
    assert len({row.fields["question"] for row in rows}) == len(rows) == 800


@pytest.mark.long
def test_it_learns_to_search_on_a_machine_without_hub_or_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe up to the first good evaluation: less than a minute."""
    monkeypatch.delenv("RLVR_DATA", raising=False)
    folder = tmp_path / "run"

    def found() -> list[float]:
        return [row[ACCURACY] for row in metrics(folder) if ACCURACY in row] if num_lines(folder) else []

    run_train(folder, *QUICK, name="musique_smoke", stopped=lambda: max(found(), default=0.0) >= 0.5)
    assert found()[0] <= 0.3
    assert found()[-1] >= 0.5


def test_a_short_run_can_be_evaluated(tmp_path: Path, cli: Cli) -> None:
    few = ("warm_start.num_steps=20", "warm_start.batch_size=8", "rollout.prompts_per_step=4", "rollout.group_size=4")
    few += ("trainer.max_steps=2", "evaluation.every=2", "evaluation.num_examples=10")
    folder = run_train(tmp_path / "run", *QUICK, *few, name="musique_smoke").folder
    assert (folder / "report.html").is_file()
    assert "musique, 5 held-out examples" in cli.ok("eval", folder, "--num-examples", "5").out
