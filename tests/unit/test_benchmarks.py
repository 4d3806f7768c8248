"""Settings of benchmarks exist: a script that runs once a month is the last to hear of a renamed key."""

import importlib
from pathlib import Path

import pytest

from rlvr.config.compose import load_config
from rlvr.report.diagnosis.causes import CHAIN

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(("module", "constant"), [("vs_trl", "OVERRIDES"), ("async", "BASE")])
def test_settings_of_a_benchmark_exist(module: str, constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    overrides = getattr(importlib.import_module(module), constant)
    load_config([*overrides], config_name="rpn")


def test_causes_of_planted_faults_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    faults = importlib.import_module("diagnose_faults")
    named = {cause for name in ("FAULTS", "FURTHER", "SECOND", "THIRD") for one in getattr(faults, name).values()
             for cause in one.causes}  # fmt: skip
    assert len(named) > 12
    assert named <= CHAIN.keys()
