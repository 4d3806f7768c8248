"""Settings of benchmarks exist: a script that runs once a month is the last to hear of a renamed key."""

import importlib
from pathlib import Path

import pytest

from rlvr.commands.doctor.body import CHECKS
from rlvr.config.compose import load_config
from rlvr.tracking.signals import LINKS
from rlvr.trust.judges import JUDGES

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(("module", "constant"), [("vs_trl", "OVERRIDES"), ("async", "BASE")])
def test_settings_of_a_benchmark_exist(module: str, constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    overrides = getattr(importlib.import_module(module), constant)
    load_config([*overrides], config_name="rpn")


def test_what_names_a_planted_fault_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links of `rlvr diagnose`, checks of `rlvr doctor`; a fault that no check names says so by `new`."""
    monkeypatch.syspath_prepend(str(BENCHMARKS / "faults"))
    runs = importlib.import_module("diagnose").table(["rpn", "two_hop", "gsm8k_smoke"], 1)
    assert {link for fault in runs for link in fault.right} == LINKS.keys()
    judges = {judge.__name__ for before in JUDGES.values() for judge in before}
    assert importlib.import_module("diagnose").LINK_OF.keys() == judges
    checks = {check for fault in importlib.import_module("doctor").TABLE for check in fault.right}
    assert len(checks) > 60
    assert checks - {check.__name__ for check in CHECKS} == {"load", "new"}


@pytest.mark.parametrize("runner", ["audit", "doctor", "diagnose"])
def test_a_runner_lists_the_faults_of_a_name(
    runner: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "faults"))
    monkeypatch.setattr("sys.argv", [runner, "--list", "--only", "Oslo", "sign", "BOS"])
    importlib.import_module(runner).main()
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines
    assert all("sign" in name or "BOS" in name for _, _, name, _ in lines)
