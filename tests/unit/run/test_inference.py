"""Settings of an evaluated model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.config.compose import load_config, to_run_yaml
from rlvr.engines.openai import Endpoint
from rlvr.run import inference
from rlvr.run.inference import Loaded, open_inference
from rlvr.run.sources import inference_config
from tests.unit.core.tiny import tiny_policy

TRACKER = """from rlvr.tracking.trackers.base import Tracker


class Gone(Tracker):
    def log(self, rows):
        pass
"""


@pytest.mark.slow
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


@pytest.mark.parametrize("model", ["weights", "endpoint"])
@pytest.mark.parametrize("functions", [None, {"own": len}])
def test_functions_from_python_reach_the_tasks(
    model: str, functions: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[Any]()

    @contextmanager
    def opened(config: Any, family: Any, functions: Any, *, reads: Any) -> Iterator[Any]:
        given.append((functions, reads))
        yield SimpleNamespace(fit=lambda config, policy: policy)

    monkeypatch.setattr(inference, "open_tasks", opened)
    one: Any = tiny_policy() if model == "weights" else Endpoint("http://127.0.0.1:1/v1", "x")
    loaded = Loaded(source="x", model=one, fingerprint="f")
    with open_inference(loaded, load_config([], config_name="rpn_test"), functions, reads="eval") as found:
        assert (found.engine is None) == (model == "endpoint")
    assert given == [(functions or {}, "eval")]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_run_is_scored_in_the_data_type_that_it_samples_in(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def opened(*words: Any, reads: Any) -> Iterator[Any]:
        yield SimpleNamespace(fit=lambda config, policy: policy)

    monkeypatch.setattr(inference, "open_tasks", opened)
    loaded, config = Loaded(source="x", model=tiny_policy(), fingerprint="f"), [f"engine.dtype={dtype}"]
    with open_inference(loaded, load_config(config, config_name="rpn_test"), reads="eval") as found:
        model = found.loaded.model
        assert not isinstance(model, Endpoint)
        assert str(model.dtype) == f"torch.{dtype}"
