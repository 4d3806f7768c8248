"""The parts of a run, as its settings ask for them, and where it goes on."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from rlvr.core.executor import Background, Executor
from rlvr.core.loop import TrainingRun
from rlvr.errors import UserError
from rlvr.run.assemble import assemble
from rlvr.run.opened import OpenRun, opened
from rlvr.run.run_folder import RunFolder
from rlvr.run.tuning import started_policy, warmed
from rlvr.tasks.base import Solution
from rlvr.tracking.console import Console
from tests.unit.core.tiny import tiny_config

SMALL = ("model.hidden_size=16", "model.num_layers=1", "model.intermediate_size=16", "trainer.num_threads=1")

Prepared = Callable[..., tuple[OpenRun, StringIO]]
Assembled = Callable[..., tuple[TrainingRun, str]]


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[Prepared]:
    """A run with these settings in `tmp_path`, and what it says."""
    with ExitStack() as stack:

        def make(*overrides: str) -> tuple[OpenRun, StringIO]:
            config, said = tiny_config(*SMALL, *overrides), StringIO()
            console = stack.enter_context(Console("plain", 1, 1, stream=said))
            run = stack.enter_context(opened(config, folder=nullcontext(RunFolder(root=tmp_path))))
            return replace(run, console=console), said

        yield make


@pytest.fixture
def assembled(prepared: Prepared) -> Iterator[Assembled]:
    """A run before its first step, and what it said."""
    with ExitStack() as stack:

        def make(*overrides: str) -> tuple[TrainingRun, str]:
            opened_run, said = prepared(*overrides)
            run = assemble(opened_run, opened_run.load_policy())
            stack.enter_context(run.rollouts)
            return run, said.getvalue()

        yield make


@pytest.mark.parametrize(("bound", "kind"), [(0, Executor), (1, Background)])
def test_rollouts_that_may_be_stale_are_made_beside_the_trainer(assembled: Assembled, bound: int, kind: type) -> None:
    run, _ = assembled(f"rollout.max_staleness={bound}")
    assert type(run.rollouts.executor) is kind
    assert run.rollouts.max_staleness == bound


def test_a_run_goes_on_behind_its_last_checkpoint(assembled: Assembled, tmp_path: Path) -> None:
    first, said = assembled()
    assert first.start_step == 0
    assert "starts again" not in said
    first.checkpoints.save_if_due(2, {}, now=True)
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 2}\n{"step": 3}\n')
    (tmp_path / "rollouts").mkdir()
    for step in (2, 3):
        (tmp_path / f"rollouts/step_00000{step}.jsonl.gz").touch()
    second, said = assembled("resume=true", f"run_dir={tmp_path}")
    assert second.start_step == 2
    assert "starts again" not in said
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0}\n{"step": 2}\n'
    assert [path.name for path in (tmp_path / "rollouts").iterdir()] == ["step_000002.jsonl.gz"]


def test_without_a_checkpoint_a_run_starts_again(assembled: Assembled, tmp_path: Path) -> None:
    """Also with line 0 of its metrics, which it writes first."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
    run, said = assembled("resume=true", f"run_dir={tmp_path}")
    assert run.start_step == 0
    assert "no checkpoint was saved: the run starts again" in said
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_a_finished_run_without_checkpoints_cannot_go_on(assembled: Assembled, tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    with pytest.raises(UserError, match="has a final model but no checkpoint to go on from"):
        assembled()


FEW = ("evaluation.num_examples=1", "rollout.max_completion_tokens=4")
SHORT = ("warm_start.num_steps=2", "warm_start.batch_size=2", "warm_start.cache=false", "warm_start.warmup_steps=0")


def test_a_warm_start_says_why_its_loss_rises(prepared: Prepared) -> None:
    """From the step on that hides most of the work."""
    shares = ("warm_start.final_phase_steps=1", "warm_start.worked_share=0.9", "warm_start.final_worked_share=0.2")
    run, said = prepared(*SHORT, *shares)
    assert warmed(run, run.load_policy(), lambda: False)
    expected = "from here 20% of the answers show their steps, not 90% (warm_start.final_phase_steps): the loss rises"
    lines = said.getvalue().splitlines()
    assert lines.count(expected) == 1
    assert lines.index(expected) < next(place for place, line in enumerate(lines) if line.startswith("warm start 2/2"))


@pytest.mark.parametrize(("enabled", "source"), [(True, "own"), (False, "demonstrations"), (True, "demonstrations")])
def test_demonstrations_are_looked_at_where_a_run_reads_them(prepared: Prepared, enabled: bool, source: str) -> None:
    run, _ = prepared(f"warm_start.enabled={str(enabled).lower()}")
    warm = run.config.warm_start.model_copy(update={"source": source})
    task = run.tasks.own
    bare = Solution(example=task.train_example(0), turns=("5",), is_bare=True)
    task.solutions = lambda num: [bare]  # type: ignore[method-assign]
    remarks = list(run.tasks.check_training(run.config.model_copy(update={"warm_start": warm})))
    wanted = (
        ["warm start: the demonstrations of rpn are bare answers"] if enabled and source == "demonstrations" else []
    )
    assert [remark.partition(",")[0] for remark in remarks] == wanted


@pytest.mark.parametrize("stopped", [False, True])
def test_a_model_made_from_scratch_is_saved_after_its_warm_start(prepared: Prepared, stopped: bool) -> None:
    run, _ = prepared(*SHORT, "warm_start.final_phase_steps=0")
    policy = started_policy(run, lambda: stopped)
    assert (policy is None) == stopped == (not run.folder.warm_start.is_dir())
    if policy is not None:
        again = started_policy(run, lambda: True)  # a resumed run
        assert again is not None
        for one, other in zip(policy.parameters(), again.parameters(), strict=True):
            assert one.equal(other)


@pytest.mark.parametrize("debug", [False, True])
def test_a_debug_run_prints_its_episodes(assembled: Assembled, debug: bool) -> None:
    recorder: Any = assembled(f"debug={str(debug).lower()}")[0].recorder
    assert (recorder.printer is not None) == debug


def test_a_mix_is_evaluated_by_part_and_together(assembled: Assembled) -> None:
    run, _ = assembled(*FEW, "task=mix", "task.parts={rpn: 1, two_hop: 1}")
    found = run.evaluate()
    assert {name.split("/")[1] for name in found if name.startswith("eval/")} == {"mix", "rpn", "two_hop"}
