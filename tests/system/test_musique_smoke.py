"""`rlvr train --config-name musique_smoke`: a BPE model from scratch learns to search, without any data."""

from pathlib import Path

import pytest

from rlvr.tasks.made_rows import made_rows
from tests.system.harness import check_equal, metrics, num_lines, outcome, rlvr, run_train

ACCURACY = "eval/musique/accuracy"
QUICK = ("trainer.num_threads=1", "tracker.console=none", "tracker.rollouts_every=1")
FEW = (
    *QUICK,
    "warm_start.num_steps=60",
    "warm_start.batch_size=8",
    "rollout.prompts_per_step=4",
    "rollout.group_size=4",
    "trainer.max_steps=4",
    "trainer.checkpoint_every=2",
    "evaluation.every=2",
    "evaluation.num_examples=10",
)
"""The recipe, too short to learn anything but the form of a call."""


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_train(tmp_path_factory.mktemp("short") / "run", *FEW, name="musique_smoke").folder


def test_the_questions_are_the_same_always_and_all_different() -> None:
    rows = made_rows()
    assert rows == made_rows()
    assert len({row.text("question") for row in rows}) == len(rows) == 800


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


def test_stop_and_resume_equals_the_uninterrupted_run(short: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    first = run_train(folder, *FEW, name="musique_smoke", stopped=lambda: num_lines(folder) > 3)
    assert (first.result.finished, first.result.num_steps) == (False, 3)
    assert run_train(folder, *FEW, "resume=true", name="musique_smoke").result.finished
    check_equal(outcome(folder), outcome(short))


def test_a_run_folder_keeps_its_promises(short: Path) -> None:
    assert (short / "report.html").is_file()
    told = rlvr("eval", str(short), "--num-examples", "5", cwd=short.parent)
    assert told.code == 0, told.err
    assert "musique, 5 held-out examples" in told.out
