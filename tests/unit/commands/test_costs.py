"""What `rlvr plan` measures; tests/system/test_plan.py compares it with runs."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import pstdev
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.commands.plan import costs
from rlvr.commands.plan.costs import Bench, Sample, TimedEngine
from rlvr.commands.plan.fits import exponential
from rlvr.commands.plan.simulate import STAGES
from rlvr.config.compose import load_config
from rlvr.types import Episode, SamplingParams, StopReason
from tests.unit.core.fakes import completion, episode, group
from tests.unit.core.tiny import tiny_model


@pytest.mark.parametrize(("device", "most"), [("cpu", 0), ("meta", 1 << 40)])
def test_a_model_too_large_to_be_copied_is_not(device: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stages beside each other need two of it; then half the speed is supposed, as on a busy device."""
    monkeypatch.setattr(costs, "MOST_COPIED", most)
    bench: Any = SimpleNamespace(model=tiny_model().to(device))
    nothing: Any = None
    assert Bench._beside(bench, nothing, nothing) == 0.5


def test_a_step_of_the_engine_is_told_by_its_rows_and_tokens() -> None:
    """Three requests with two different prompts, then one that goes on after what is known of its session."""
    engine = TimedEngine(tiny_model(), 4)

    def params(max_tokens: int, seed: int = 0) -> SamplingParams:
        return SamplingParams(max_tokens=max_tokens, stop_ids=frozenset(), seed=seed)

    async def ask() -> list[tuple[float, ...]]:
        first, *_ = await asyncio.gather(
            engine.generate((3, 4, 5), params(3), session="a"),
            engine.generate((3, 4, 5), params(3, seed=1)),
            engine.generate((3, 4, 5, 6, 7), params(2)),
        )
        more = engine.generate((3, 4, 5, *first.token_ids, 8, 9), params(2), session="a")
        await more
        return [told for _, told in engine.steps]

    assert asyncio.run(ask()) == [
        (1.0, 3, 4 + 4 + 6, 1.0, 3 + 5),  # rows, tokens behind them, whether any was started, tokens of new prompts
        (1.0, 2, 5 + 5, 0.0, 0),
        (1.0, 1, 3 + 3 + 2 + 1, 1.0, 3),  # the last sampled token and two that are new
    ]
    assert 0 < sum(seconds for seconds, _ in engine.steps) <= engine.seconds


def said(*lengths: int, stop: StopReason = StopReason.STOP, reply: int = 2) -> Episode:
    """Turns of these lengths after a prompt of three tokens, with replies between them."""
    ids, turns = (1, 2, 3), []
    for length in lengths:
        turns.append((ids, completion(*[5] * length, stop=stop)))
        ids = (*ids, *[5] * length, *[7] * reply)
    return episode(*turns)


def sample(*episodes: Episode, **values: Any) -> Sample:
    stages = dict.fromkeys((*STAGES, "turns"), 0.0)
    plain = {"size": (1, 2, 8), "num_turns": 4, "max_tokens": 8, "tokens": 10, "num_rows": 4, "num_trained": 3}
    groups = tuple(group(one) for one in episodes)
    return Sample(**{**plain, "groups": groups, **values, "stages": stages | values.get("stages", {})})


def bench(*samples: Sample, longest: int = 8, epochs: int = 1, minibatches: int = 1, **objective: Any) -> Any:
    rollout = SimpleNamespace(max_completion_tokens=longest, group_size=8)
    algorithm = SimpleNamespace(num_epochs=epochs, num_minibatches=minibatches, compares_groups=True)
    plain = {"algorithm": algorithm, "coefs": {}, "reads_more": False, **objective}
    made: Any = SimpleNamespace(
        samples=samples,
        setup=SimpleNamespace(config=SimpleNamespace(rollout=rollout, algorithm=algorithm)),
        run=SimpleNamespace(objective=SimpleNamespace(**plain)),
        engine=SimpleNamespace(steps=[]),
    )
    made._lengths = lambda one, notes: Bench._lengths(made, one, notes)
    return made


def test_a_sample_counts_its_episodes_and_tokens() -> None:
    one = sample(said(3), said(2, 4))
    assert (one.num_episodes, one.num_sampled) == (2, 9)


@pytest.mark.parametrize(
    ("stop", "longest"), [(StopReason.STOP, 30), (StopReason.LENGTH, 8)], ids=["all ended", "as long as they may be"]
)
def test_whole_completions_have_their_own_lengths(stop: StopReason, longest: int) -> None:
    """Their mean may be off by two standard errors."""
    notes = list[str]()
    turns, (short, long) = Bench._lengths(
        bench(longest=longest), sample(*(said(*of_one, stop=stop) for of_one in ((3,), (2, 4), (8,)))), notes
    )
    error = 2 * pstdev([3, 6, 8]) / (math.sqrt(3) * (17 / 3))
    assert turns == [(3,), (2, 4), (8,)]
    assert (short, long) == (pytest.approx(1 - error), pytest.approx(1 + error))
    assert notes == []
    _, (short, _) = Bench._lengths(bench(longest=30), sample(said(1), said(1), said(1), said(29)), notes)
    assert short == 0.1  # never none


@pytest.mark.parametrize("num_ended", [0, 3])
def test_completions_that_were_cut_tell_a_rate_of_ends(num_ended: int) -> None:
    """Eight tokens each, of which as many were ends: those counts may be off by two of their roots."""
    notes = list[str]()
    cut = [said(8, stop=StopReason.STOP if n < num_ended else StopReason.LENGTH) for n in range(10)]
    turns, factors = Bench._lengths(bench(longest=100), sample(*cut), notes)
    error = 2 * math.sqrt(num_ended + 1)
    expected = [exponential(n / 80, 100) for n in (num_ended, num_ended + error, max(0.0, num_ended - error))]
    means = [sum(n for (n,) in one) / len(one) for one in expected]
    assert turns == expected[0]
    assert factors == pytest.approx((means[1] / means[0], means[2] / means[0]))
    assert factors[0] < 1 <= factors[1]
    told = f"lengths are extrapolated from 10 completions cut at 8 tokens, {num_ended} of which had ended"
    assert notes == [f"{told}: give --mean-tokens if you know better"]


def test_the_workload_is_that_of_the_sample_with_most_tokens() -> None:
    small, large = sample(said(2), size=(1, 1, 8)), sample(said(3, 2), said(4, reply=5), num_rows=8, num_trained=2)
    slow = replace(small, stages=small.stages | {"generation": math.e, "turns": 100.0})
    fast = replace(small, stages=small.stages | {"update": 0.25, "other": 0.75})
    found = Bench.workload(bench(slow, fast, large), [])
    assert found["episodes"] == ((3, 2), (4,))
    assert (found["prompt_tokens"], found["reply_tokens"]) == (3.0, 2.0)
    assert found["trained_share"] == (2 + 8) / (8 + 16)  # rewards of few rows: a group more that has it, and one not
    assert found["noise"] == pytest.approx(math.sqrt(0.5))
    assert Bench.workload(bench(small), [])["reply_tokens"] == 0.0


@pytest.mark.parametrize(
    ("objective", "share"),
    [
        ({}, (3 + 8) / (4 + 16)),
        ({"coefs": {"kl": 0.1}}, 3 / 4),
        ({"reads_more": True}, 3 / 4),
        ({"algorithm": SimpleNamespace(compares_groups=False, num_epochs=1, num_minibatches=1)}, 3 / 4),
    ],
)
def test_the_share_of_trained_rows_is_exact_unless_rewards_decide(objective: dict[str, Any], share: float) -> None:
    assert Bench.workload(bench(sample(said(2)), **objective), [])["trained_share"] == pytest.approx(share)


def test_costs_are_lines_through_what_was_timed() -> None:
    """Two samples for each line, and two epochs of three minibatches."""

    def timed(turns: int, tokens: int, episodes: Sequence[Episode]) -> Sample:
        return sample(
            *episodes,
            num_turns=turns,
            tokens=tokens,
            stages={
                "scoring": 0.5 + 0.01 * tokens,
                "update": 6.0 + 0.03 * 2 * tokens,
                "other": 0.25 + 0.125 * len(episodes),
                "turns": 0.75 + 0.0625 * turns,
                "sync": tokens / 100,
            },
        )

    made = bench(timed(4, 100, [said(1)] * 2), timed(16, 300, [said(1)] * 10), epochs=2, minibatches=3)
    amounts = [
        (1.0, rows, rows * behind, float(new > 0), new) for rows in (1, 8) for behind in (5, 90) for new in (0, 7, 70)
    ]
    factors = (0.01, 0.002, 1e-5, 0.03, 0.004)
    made.engine.steps = [(sum(a * b for a, b in zip(factors, one, strict=True)), one) for one in amounts]
    found = Bench.costs(made)
    assert [getattr(found, name) for name in ("step", "row", "context", "admission", "prompt_token")] == pytest.approx(
        list(factors)
    )
    assert (found.scoring, found.scored_token) == (pytest.approx(0.5), pytest.approx(0.01))
    assert (found.update, found.trained_token) == (pytest.approx(6.0 / 6), pytest.approx(0.03))
    assert (found.other, found.episode) == (pytest.approx(0.25 + 0.75), pytest.approx(0.125))
    assert (found.turn, found.sync) == (pytest.approx(0.0625), 2.0)


class Steps:
    """Steps of sizes that take a second for each completion of a prompt, on a clock that only they move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, prompts: int, group_size: int, longest: int) -> None:
        self.now, self.made = 0.0, list[tuple[int, int, int]]()
        monkeypatch.setattr(costs.time, "perf_counter", lambda: self.now)
        rollout = SimpleNamespace(prompts_per_step=prompts, group_size=group_size, max_completion_tokens=longest)
        self.setup = SimpleNamespace(config=SimpleNamespace(rollout=rollout))
        self.engine, self.samples, self.took = SimpleNamespace(steps=[0]), list[Any](), dict[Any, float]()

    def step(self, num_groups: int, group_size: int, max_tokens: int) -> tuple[int, int]:
        self.now += num_groups * group_size * max_tokens / 16
        self.made.append((num_groups, group_size, max_tokens))
        return len(self.made), 0

    def _grow(self, *args: Any) -> float:
        return Bench._grow(self, *args)  # type: ignore[arg-type]

    def _beside(self, *last: int) -> float:
        return float(last[0])


def test_steps_grow_as_far_as_there_is_time_and_the_largest_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each 16 tokens: first the batch of four prompts, then four times the tokens, then both again."""
    steps: Any = Steps(monkeypatch, 4, 2, 32)
    assert Bench.measure(steps, 1000.0) == len(steps.made)
    first, *grown = steps.made[:6]
    assert first == (1, 2, 8)  # fills buffers
    assert grown == [(1, 2, 8), (2, 2, 8), (4, 2, 8), (4, 2, 16), (4, 2, 32)]
    again = steps.made[6:]
    assert again == [(4, 2, 32), (4, 2, 16), (4, 2, 8)] * 30
    assert steps.samples == [*range(2, len(steps.made) + 1)]
    assert steps.engine.steps == []
    assert steps.took == {(1, 2, 8): 1.0, (2, 2, 8): 2.0, (4, 2, 8): 4.0, (4, 2, 16): 8.0, (4, 2, 32): 16.0}


def test_a_step_is_not_made_that_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 seconds: after two there is time until 8 for a batch of two prompts, which takes another two; three times
    as long again would be too late. Until 16 it may grow once; the rest is for a longer one of one prompt, and for
    those again that fit."""
    steps: Any = Steps(monkeypatch, 4, 2, 32)
    Bench.measure(steps, 20.0)
    assert steps.made[:3] == [(1, 2, 8), (1, 2, 8), (2, 2, 8)]
    assert steps.made[3:] == [(2, 2, 16), (1, 2, 32), (2, 2, 16), (2, 2, 8), (1, 2, 8)]


def test_a_step_may_grow_exactly_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 2 seconds, begun at 1, may take up to 3 times that: until 7."""
    for until, made in ((7.0, [(2, 2, 8)]), (6.9, [])):
        steps: Any = Steps(monkeypatch, 4, 2, 32)
        steps.now, sizes = 1.0, list[tuple[int, int, int]]()
        took = steps._grow(sizes, [(2, 2, 8)], 2.0, until)
        assert (steps.made, sizes, took) == (made, made, 2.0)


@pytest.mark.parametrize(("seconds", "count"), [(0.875, 3), (0.874, 2)])
def test_one_prompt_and_one_short_completion_are_enough(
    seconds: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter second each, of which two always come: after them 1.5 of one must be left for another."""
    steps: Any = Steps(monkeypatch, 1, 1, 4)
    Bench.measure(steps, seconds)
    assert steps.made == [(1, 1, 4)] * count


def test_what_is_measured_is_one_process_that_trains_in_turns() -> None:
    """It reports nothing, and its steps change no weight; the rest is the run's."""
    run = load_config(["trainer.strategy=fsdp2", "trainer.world_size=4", "trainer.warmup_steps=7", "debug=false"])
    run = run.model_copy(update={"rollout": run.rollout.model_copy(update={"max_staleness": 3})})
    found = costs._alone(run)
    trainer = found.trainer
    assert (trainer.strategy, trainer.world_size, trainer.learning_rate) == ("single", None, costs.NO_STEP)
    assert (trainer.warmup_steps, found.rollout.max_staleness) == (0, 0)
    assert (found.tracker.console, found.tracker.report_to) == ("none", ())
    assert (found.engine.name, found.engine.max_batch_size) == ("local", run.engine.max_batch_size)
    assert (found.algorithm, found.task, found.model) == (run.algorithm, run.task, run.model)
