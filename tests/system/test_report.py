"""`rlvr train` leaves a report in the run folder, and no trouble with it can fail a run."""

from pathlib import Path

import pytest

from tests.system.harness import SMALL, pretrained, run_train
from tests.unit.report.runs import chunk_of


def test_a_run_ends_with_its_report(first_run: Path) -> None:
    html = (first_run / "report.html").read_text()
    main = chunk_of(html, "main")
    assert main["runs"][0]["steps"] == [0, 1, 2]
    assert main["notes"] == []
    assert main["episodes"] == 32
    assert chunk_of(html, "detail-0")[0]["trace"], "rpn notes its steps"
    texts = chunk_of(html, "tokens-0")
    assert "<eoe>" in texts.values()


def test_pitfall_37_a_report_that_cannot_be_written_fails_no_run(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*SMALL, *pretrained(model), "tracker.console=plain")
    run = run_train(tmp_path / "run", *words, "trainer.max_steps=1")
    assert "report: " in capsys.readouterr().err
    (run.folder / "report.html").unlink()
    (run.folder / "report.html").mkdir()
    assert run_train(tmp_path / "run", *words, "trainer.max_steps=2", "resume=true").result.finished
    assert "warning: no report was written (Cannot write" in capsys.readouterr().err
