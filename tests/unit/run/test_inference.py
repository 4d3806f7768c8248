"""Settings of an evaluated model."""

from pathlib import Path

import pytest

from rlvr.config.compose import load_config, to_run_yaml
from rlvr.run.sources import inference_config

pytestmark = pytest.mark.slow

TRACKER = """from rlvr.tracking.trackers.base import Tracker


class Gone(Tracker):
    def log(self, rows):
        pass
"""


def test_a_run_with_a_missing_tracker_can_be_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "gone_tracker.py").write_text(TRACKER)
    config = load_config(["tracker.report_to=[gone_tracker:Gone]", "evaluation.num_examples=7"])
    run = tmp_path / "run"
    run.mkdir()
    text = to_run_yaml(config).replace("gone_tracker", "never_a_module")
    (run / "config.yaml").write_text(text)
    assert "never_a_module:Gone" in text
    for found in (inference_config(str(run), []), inference_config("model", [], task=str(run))):
        assert found.evaluation.num_examples == 7
        assert found.tracker.report_to == ()
