"""The order of things in a step, on parts that only note what is called."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from rlvr.algorithms.grpo import Grpo
from rlvr.core.errors import NonFiniteError
from rlvr.core.loop import TrainingRun, train
from rlvr.core.rollout import SampledGroups
from rlvr.types import Group, TokenBatch
from tests.unit.core.fakes import completion, episode, group


def one_group(version: int) -> Group:
    return group(episode(((1, 7), completion(5, 2, version=version))))


@dataclass
class Parts:
    """All parts in one, with a diary."""

    diary: list[str] = field(default_factory=list)
    fail_at: int | None = None
    max_staleness: int = 0
    age: int = 0  # of what is sampled
    stop_when: str | None = None
    stopping: bool = False
    last: int | None = None  # step that is not made any more
    logged: dict[int, dict[str, float]] = field(default_factory=dict)

    algorithm = Grpo()

    def note(self, line: str) -> None:
        self.diary.append(line)
        self.stopping = self.stopping or line == self.stop_when

    def stopped(self) -> bool:
        return self.stopping

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def next_batch(self, step: int, *, last: int) -> SampledGroups:
        self.note("sample")
        self.last = last
        return SampledGroups(groups=(one_group(step - self.age),), num_refilled=0)

    def evaluate(self) -> dict[str, float]:
        self.note("evaluate")
        return {"eval/x/accuracy": 0.5}

    def refresh(self, step: int) -> None:
        self.note(f"refresh {step}")

    def score(self, batch: TokenBatch, groups: Sequence[Group]) -> TokenBatch:
        assert [len(group.episodes) for group in groups] == [int(n) for n in batch.groups.bincount()]
        self.note("score")
        return batch

    def advantages(self, batch: TokenBatch) -> TokenBatch:
        self.note("advantages")
        return batch

    def update(self, batch: TokenBatch, step: int) -> tuple[dict[str, float], TokenBatch]:
        self.note(f"update {step}")
        if step == self.fail_at:
            raise NonFiniteError("the loss", [0])
        return {"loss/total": 0.25}, batch

    def advance(self, version: int) -> None:
        self.note(f"weights {version}")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        assert all(map(math.isfinite, metrics.values()))
        self.logged[step] = metrics
        self.note(f"log {step}" + (" with evaluation" if "eval/x/accuracy" in metrics else ""))

    def rollouts(self, step: int, rollouts: SampledGroups, batch: TokenBatch) -> dict[str, float]:
        self.note(f"rollouts {step}")
        return {}

    def non_finite(self, step: int, batch: TokenBatch, error: NonFiniteError) -> Exception:
        self.note(f"non finite {step}")
        return RuntimeError("stop")

    def save_if_due(self, step: int, metrics: dict[str, float], *, now: bool) -> None:
        self.note(f"save {step}" + (" now" if now else ""))


def make_run(parts: Any, *, start: int = 0, steps: int = 3, every: int = 2) -> TrainingRun:
    return TrainingRun(
        start_step=start,
        max_steps=steps,
        evaluate_every=every,
        rollouts=parts,
        objective=parts,
        trainer=parts,
        evaluate=parts.evaluate,
        recorder=parts,
        checkpoints=parts,
    )


def test_a_run_evaluates_first_and_last_and_every_so_often() -> None:
    parts = Parts()
    assert train(make_run(parts, steps=3), parts.stopped) == 3
    shown = [line for line in parts.diary if line.startswith(("log", "save"))]
    with_evaluation = [f"log {step} with evaluation" for step in range(4)]
    assert shown[::2] == [with_evaluation[0], "log 1", *with_evaluation[2:]]
    assert shown[1::2] == ["save 0", "save 1", "save 2", "save 3 now"]


def test_pitfall_31_the_engine_gets_new_weights_first() -> None:
    parts = Parts()
    train(make_run(parts, steps=2), parts.stopped)
    assert parts.last == 2
    assert parts.diary[3:9] == ["sample", "refresh 0", "score", "advantages", "update 0", "weights 1"]
    later = parts.diary[9:]
    assert later.index("weights 2") < later.index("evaluate")


def test_a_resumed_run_goes_on_without_another_first_evaluation() -> None:
    parts = Parts()
    assert train(make_run(parts, start=2, steps=3), parts.stopped) == 3
    assert parts.diary[0] == "sample"
    assert "update 2" in parts.diary
    assert "log 0 with evaluation" not in parts.diary


@pytest.mark.parametrize(("start", "stop_when"), [(3, None), (0, "evaluate")], ids=["finished", "stopped"])
def test_a_run_that_is_finished_or_stopped_samples_nothing(start: int, stop_when: str | None) -> None:
    parts = Parts(stop_when=stop_when)
    assert train(make_run(parts, start=start, steps=3), parts.stopped) == start
    assert "sample" not in parts.diary


@pytest.mark.parametrize("moment", ["sample", "update 0", "rollouts 1", "log 1"])
def test_pitfall_37_a_stop_within_a_step_finishes_and_saves_it(moment: str) -> None:
    parts = Parts(stop_when=moment)
    assert train(make_run(parts, steps=9), parts.stopped) == 1
    assert parts.diary[-1] == "save 1 now"


def test_pitfall_37_a_stop_during_a_save_loses_no_step() -> None:
    parts = Parts(stop_when="save 1")
    steps = train(make_run(parts, steps=9), parts.stopped)
    assert parts.diary[-1] == f"save {steps} now"


def test_a_non_finite_loss_writes_nothing_of_the_step() -> None:
    parts = Parts(fail_at=1)
    with pytest.raises(RuntimeError, match="stop"):
        train(make_run(parts), parts.stopped)
    assert parts.diary[-2:] == ["update 1", "non finite 2"]


def test_time_and_machine_have_prefixes_of_their_own() -> None:
    parts = Parts()
    train(make_run(parts, steps=1), parts.stopped)
    logged = parts.logged[1]
    assert {"time/step_s", "time/tokens_per_s", "time/generation_share", "system/peak_memory_mb"} <= set(logged)
    shares = [value for name, value in logged.items() if name.startswith("time/") and name.endswith("_share")]
    assert sum(shares) == pytest.approx(1.0)
    assert logged["loss/total"] == 0.25


def test_pitfall_24_tokens_that_are_too_old_are_not_trained_on() -> None:
    parts = Parts(max_staleness=1, age=1)
    assert train(make_run(parts, start=2, steps=3), parts.stopped) == 3
    parts = Parts(max_staleness=1, age=2)
    with pytest.raises(RuntimeError, match="step 2 would train on tokens sampled with weights of versions 0 to 0"):
        train(make_run(parts, start=2, steps=3), parts.stopped)
    assert parts.diary == ["sample"]


def test_the_ages_of_tokens_are_logged() -> None:
    ages = {"rollout/staleness_mean": 2.0, "rollout/staleness_max": 2.0}
    for parts, expected in ((Parts(max_staleness=3, age=2), ages), (Parts(), {})):
        train(make_run(parts, start=2, steps=3), parts.stopped)
        assert {name: value for name, value in parts.logged[3].items() if "staleness" in name} == expected
