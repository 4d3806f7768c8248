"""`rlvr plan`: what it says, and what it leaves alone."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from rlvr.errors import ConfigError
from tests.system.harness import SMALL, Cli, pretrained
from tests.variants import variants

QUICK = ("plan", "--config-name", "rpn_test", "--seconds", "1", "warm_start.cache=false")


def test_a_plan(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = json.loads(cli.ok(*QUICK, "--json").out)
    assert found["step_s"] == pytest.approx(sum(found["stages_s"].values()))
    assert found["bound_by"] == max(found["stages_s"], key=found["stages_s"].__getitem__)
    assert all(found["stages_s"][name] > 0 for name in ("generation", "scoring", "other"))
    assert list(found["totals_s"]) == ["warm start", "steps", "evaluations", "checkpoints"]
    assert found["totals_s"]["steps"] == pytest.approx(15 * found["step_s"])
    assert found["total_s"] == pytest.approx(sum(found["totals_s"].values()))
    low, high = found["range_s"]
    assert low < 0.83 * found["total_s"] < 1.2 * found["total_s"] < high
    # the weights and two moments at the end, and the model in warm_start/ and final/
    weights = found["memory"]["weights"]
    assert found["disk"]["checkpoints"] == pytest.approx(3 * weights, rel=0.01)
    assert found["disk"]["models"] == 2 * weights
    assert found["disk"]["rollouts"] > 0
    assert found["memory_bytes"] > 2e8  # torch alone
    assert {"--gpus 2", "evaluation.every=10", "trainer.checkpoint_every=20"} & found["gains"].keys()
    assert 1 <= found["mean_tokens"] <= 30
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", variants([((),), (("warm_start.source=own", "warm_start.samples=2"),)]))
def test_the_warm_start_of_a_pretrained_model_counts(more: tuple[str, ...], model: Path, cli: Cli) -> None:
    tuned = ("warm_start.enabled=true", "warm_start.num_examples=64", "warm_start.learning_rate=1e-3", *more)
    words = ("plan", "--seconds", "1", "--json", *SMALL, *pretrained(model))
    cold, warm = (json.loads(cli.ok(*words, *some).out) for some in ((), tuned))
    assert cold["totals_s"]["warm start"] == 0 < warm["totals_s"]["warm start"]
    assert warm["disk"]["models"] == 2 * cold["disk"]["models"]


def test_a_table_for_other_machines(cli: Cli) -> None:
    done = cli.ok(*QUICK, "--gpus", "4")
    for part in ("generation", "a step", "bound by ", "the run", "peak of a process", "rollouts", "would help most: "):
        assert part in done.out
    assert "what devices send each other is not counted" in done.err


@pytest.mark.parametrize(("load", "busy"), [(1.9, False), (2.1, True)])
def test_a_busy_machine_is_said(load: float, busy: bool, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    said = f"the machine is busy (load {load} on 2 cores)"
    assert (said in cli.ok(*QUICK).err) == busy


def test_a_run_that_could_not_start_is_refused(cli: Cli) -> None:
    cli.refuses(2, ["plan", "trainer.learnin_rate=1"], "did you mean trainer.learning_rate")
    cli.refuses(2, ["plan", "--config-name", "rnp"], "did you mean rpn")
    cli.refuses(2, [*QUICK, "--gpus", "3"], "rollout.prompts_per_step=16", "15 or 18")
    cli.refuses(1, ["plan", "--config-name", "gsm8k", "model.name_or_path=absent/folder"], "absent/folder")
    cli.refuses(2, ["plan", "--gpus", "0"], "--gpus")


def test_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    import rlvr
    from rlvr.commands.plan.measure import Bench

    given, measure = list[float](), Bench.measure

    def noted(bench: Bench, share: int, until: float) -> Any:
        given.extend((share, until - time.perf_counter()))
        return measure(bench, share, until)

    monkeypatch.setattr(Bench, "measure", noted)
    found = rlvr.plan(config_name="rpn_test", seconds=1, gpus=2, trainer={"max_steps": 30})
    assert given == [8, pytest.approx(0.6, abs=0.1)]  # of 16 prompts for two; what the warm start leaves
    assert found.gpus == 2
    assert found.total_s > 30 * found.step_s > 0
    with pytest.raises(ConfigError, match="prompts_per_step=16"):
        rlvr.plan(config_name="rpn_test", gpus=5)
