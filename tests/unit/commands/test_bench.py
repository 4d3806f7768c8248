"""Steps that `rlvr plan` measures are those of a run: a small one, made here."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch

from rlvr.commands.plan.measure import STAGES, Bench, alone
from rlvr.records.rollouts import read_rollouts, rollouts_path
from rlvr.run.assemble import assemble
from rlvr.run.opened import opened
from tests.unit.core.tiny import tiny_config

SMALL = ("model.hidden_size=16", "model.num_layers=1", "model.intermediate_size=16", "trainer.num_threads=1")
RECORDED = ("tracker.rollouts_max_groups=2", "rollout.group_size=2", "rollout.prompts_per_step=6")


@contextmanager
def made(*overrides: str) -> Iterator[Bench]:
    with opened(alone(tiny_config(*SMALL, *RECORDED, *overrides))) as run:
        policy = run.load_policy()
        yield Bench(run, policy, assemble(run, policy), 4)


@pytest.mark.parametrize("staleness", [0, 1])
def test_steps_are_the_loop_s_and_change_no_weight(staleness: int) -> None:
    with made(f"rollout.max_staleness={staleness}") as bench:
        before = {name: weight.clone() for name, weight in bench.policy.model.named_parameters()}
        watch = bench.steps(3, until=0.0)
        assert [row["rollout/episodes"] for row in watch.rows] == [6, 6]
        assert watch.mean.keys() == set(STAGES)
        assert sum(watch.mean.values()) == pytest.approx(watch.rows[-1]["time/step_s"])
        assert watch.num_written == 4  # two of three groups
        assert len(read_rollouts(rollouts_path(bench.run.folder.rollouts, 1))) == 4
        for name, weight in bench.policy.model.named_parameters():
            assert torch.allclose(weight, before[name])


def test_steps_grow_as_far_as_there_is_time_and_the_largest_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each prompt: 2 steps of 1 prompt, 2 of 4, and with 16 prompts on until the time is over."""
    now, sizes = 0.0, list[int]()

    class Rows:
        def __init__(self, prompts: int) -> None:
            self.rows = [{"time/step_s": float(prompts)}]

    def steps(bench: Bench, prompts: int, until: float) -> Rows:
        nonlocal now
        now += 2 * prompts
        sizes.append(prompts)
        assert until == (given if prompts == 16 else 0.0)
        return Rows(prompts)

    monkeypatch.setattr("rlvr.commands.plan.measure.time.perf_counter", lambda: now)
    monkeypatch.setattr(Bench, "steps", steps)
    bench = Bench.__new__(Bench)
    for given, expected in ((27.0, [1, 4, 16]), (18.0, [1, 4]), (0.0, [1, 4])):
        now = 0.0
        sizes.clear()
        assert list(bench.measure(16, given)) == expected == sizes
    given = now = 0.0
    assert list(bench.measure(1, given)) == [1]
    assert list(bench.measure(3, given)) == [1, 3]


def test_an_evaluation_is_that_of_all_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 examples with two draws 3 are played for a step of 3 prompts with two completions each."""
    now, limits = 0.0, list[int]()

    def evaluate(run: object, *rest: object) -> Mapping[str, float]:
        nonlocal now
        now += 1.5
        limits.append(run.config.evaluation.limit)  # type: ignore[attr-defined]
        return {}

    monkeypatch.setattr("rlvr.commands.plan.measure.time.perf_counter", lambda: now)
    monkeypatch.setattr("rlvr.commands.plan.measure.evaluate", evaluate)
    with made("evaluation.num_examples=12", "evaluation.samples_per_example=1") as bench:
        assert bench.evaluation_s(3) == 1.5 * 12 / 3
        assert bench.evaluation_s(100) == 1.5
        assert bench.evaluation_s(0) == 1.5 * 12
    assert limits == [3, 12, 1]
