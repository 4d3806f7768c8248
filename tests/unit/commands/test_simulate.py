"""The simulator against cases that can be solved by hand, and against the product's own schedule."""

import importlib
import random
from collections import deque
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.plan.simulate import STAGES, Cluster, Costs, StepTimes, Workload, _Engine, _Episode, simulate

FOUR = Workload(prompts=4, group_size=1, episodes=((5,),))
"""Four completions of five tokens: the first comes with the prompt, four from steps of the engine."""
STEP = Costs(step=1.0)  # a completion takes four seconds


def run(work: Workload, costs: Costs, num_steps: int = 10, slots: int = 4, **more: float) -> StepTimes:
    return simulate(Cluster(costs=costs, slots=slots, **more), work, num_steps=num_steps)  # type: ignore[arg-type]


def test_without_staleness_the_stages_add_up() -> None:
    costs = replace(STEP, scoring=0.5, update=2.0, sync=0.25, other=1.0, episode=0.125)
    times = run(FOUR, costs)
    assert times == StepTimes(generation=4.0, scoring=0.5, update=2.0, sync=0.25, other=1.5)
    assert times.step == sum(getattr(times, name) for name in STAGES) == 8.25


def test_an_engine_step_costs_its_rows_and_what_is_behind_them() -> None:
    work = replace(FOUR, prompt_tokens=10, group_size=2, prompts=2)
    assert run(work, Costs(row=1.0)).generation == pytest.approx(4 * 4)
    assert run(work, Costs(context=1.0)).generation == pytest.approx(4 * (10 + 11 + 12 + 13))
    # a prompt is read once for its group, and all of them in one admission
    assert run(work, Costs(admission=3.0, prompt_token=0.5)).generation == pytest.approx(3 + 0.5 * 2 * 10)
    assert run(work, Costs(turn=0.5)).generation == pytest.approx(4 * 0.5)


@pytest.mark.parametrize(("slots", "waves"), [(4, 1), (2, 2), (1, 4), (100, 1)])
def test_completions_of_equal_length_come_in_waves(slots: int, waves: int) -> None:
    assert run(FOUR, STEP, slots=slots).generation == pytest.approx(4 * waves)


def test_a_step_waits_for_its_longest_completion() -> None:
    work = replace(FOUR, prompts=200, episodes=((5,), (9,)))
    assert run(work, STEP, slots=200).generation == pytest.approx(8.0)


@pytest.mark.parametrize(("training", "total"), [(2.0, 4 * 10 + 2), (6.0, 4 + 6 * 10)])
def test_with_staleness_the_longer_stage_counts(training: float, total: float) -> None:
    work = replace(FOUR, max_staleness=1)
    assert 10 * run(work, replace(STEP, update=training), servers=1).step == pytest.approx(total)


def test_stages_on_one_device_slow_each_other() -> None:
    work, costs = replace(FOUR, max_staleness=1), replace(STEP, update=4.0)
    assert 10 * run(work, costs, beside=1.0).step == pytest.approx(4 + 4 * 10)
    # the first batch alone, nine pairs of stages at half speed, the last update alone
    assert 10 * run(work, costs, beside=0.5).step == pytest.approx(4 + 9 * 8 + 4)


def test_new_weights_reach_completions_in_flight() -> None:
    """Two batches in two slots: when the first is trained on, one completion of the second is under way."""
    work = replace(FOUR, prompts=1, max_staleness=1, episodes=((11,),), prompt_tokens=20)
    alone = run(work, replace(STEP, update=1.0), num_steps=2, slots=2, servers=1)
    again = run(work, replace(STEP, update=1.0, prompt_token=0.1), num_steps=2, slots=2, servers=1)
    assert alone.step == pytest.approx(6.0)  # both end after 10 seconds, then two updates
    assert again.step > alone.step + 1.0


@pytest.mark.parametrize(("update", "total"), [(1.0, 27.0), (3.0, 29.1)])
def test_what_a_completion_has_behind_it_is_computed_again_for_new_weights(update: float, total: float) -> None:
    """One slot: a prompt of 20 tokens takes 2 seconds, so that the second completion decodes from 14 to 24, alone.
    The new weights come at 13, with its prompt behind it, or at 15, with a token more."""
    work = replace(FOUR, prompts=1, max_staleness=1, episodes=((11,),), prompt_tokens=20)
    found = run(work, replace(STEP, update=update, prompt_token=0.1), num_steps=2, slots=1, servers=1)
    assert 2 * found.step == pytest.approx(total)


def by_tokens(work: Workload, costs: Costs, slots: int, servers: int, num_steps: int) -> float:
    """Seconds of generation of one engine, a step of the engine at a time."""
    draw, now = random.Random(0), 0.0
    for _ in range(num_steps):
        waiting, running = deque[list[Any]](), list[list[Any]]()  # group, turns, tokens behind, steps left
        for group in range(work.prompts):
            drawn = draw.choices(work.episodes, k=work.group_size)
            waiting += [[group, list(turns), work.prompt_tokens, None] for turns in drawn]
        while waiting or running:
            free = slots - len(running)
            least = 1 if servers or not running else max(1, min(len(waiting), slots // 8))
            if waiting and free >= least:
                new = [waiting.popleft() for _ in range(min(free, len(waiting)))]
                later = [one for one in new if one[3] is not None]
                read = work.prompt_tokens * len({one[0] for one in new if one[3] is None}) + work.reply_tokens * len(
                    later
                )
                now += costs.admission + costs.prompt_token * read + costs.turn * len(new)
                for one in later:
                    one[2] += work.reply_tokens + 1
                for one in new:
                    one[3] = one[1].pop(0) - 1
                running += new
            if all(one[3] for one in running):
                now += costs.step + costs.row * len(running) + costs.context * sum(one[2] for one in running)
                for one in running:
                    one[2], one[3] = one[2] + 1, one[3] - 1
            waiting += [one for one in running if not one[3] and one[1]]
            running = [one for one in running if one[3]]
    return now / num_steps


@pytest.mark.parametrize("servers", [0, 1])
def test_generation_takes_as_long_as_it_does_token_by_token(servers: int) -> None:
    """Forty workloads with turns, groups, prompts and slots of any number, each cost by itself and all at once."""
    rng = random.Random(servers)
    names = ("step", "row", "context", "admission", "prompt_token", "turn")
    for case in range(40):
        lengths = [tuple(rng.randint(1, 9) for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(1, 3))]
        work = Workload(
            prompts=rng.randint(1, 6),
            group_size=rng.randint(1, 5),
            episodes=tuple(lengths),
            prompt_tokens=rng.randint(1, 9),
            reply_tokens=rng.randint(0, 5),
        )
        slots, chosen = rng.randint(1, 40), names if case % 2 else (names[case // 2 % len(names)],)
        costs = Costs(**{name: rng.random() for name in chosen})
        found = run(work, costs, num_steps=3, slots=slots, servers=servers).generation
        assert found == pytest.approx(by_tokens(work, costs, slots, servers, 3), rel=1e-6, abs=1e-9), (
            work,
            costs,
            slots,
        )


def test_a_look_in_between_changes_no_end() -> None:
    """Forty steps, of which each has one token more behind it than the one before."""
    cluster = Cluster(costs=Costs(step=1.0, context=0.5), slots=4)
    engine = _Engine(cluster, FOUR, 0)
    engine.add(_Episode(step=0, group=0, turns=(41,), tokens=10.0))
    engine.admit()
    end = sum(1.0 + 0.5 * (10 + k) for k in range(40))
    for now in (0.0, 100.0, 100.5, 600.0):
        assert engine.settle(now) == []
        assert engine.next_event() == pytest.approx(end)
    assert len(engine.settle(engine.next_event())) == 1


def test_gpus_share_prompts_and_rows() -> None:
    costs = replace(STEP, trained_token=1.0, other=1.0, exchange=0.5)
    one, two = run(FOUR, costs, slots=1), run(FOUR, costs, slots=1, gpus=2)
    assert (one.generation, two.generation) == (16.0, 8.0)
    assert (one.update, two.update) == (4 * 5, 4 * 5 / 2 + 0.5)
    assert one.other == two.other  # every process does that for the whole batch


def test_more_servers_than_completions() -> None:
    assert run(FOUR, STEP, slots=1, servers=4).step == run(FOUR, STEP, slots=1, servers=40).step == 4.0
    assert run(FOUR, STEP, slots=1, servers=3).step == 8.0


def test_turns_follow_each_other() -> None:
    work = replace(FOUR, episodes=((5, 3),), reply_tokens=2, prompt_tokens=7)
    assert run(work, STEP).generation == pytest.approx(4 + 2)
    # the reply is read, and the first turn's last token
    assert run(work, Costs(prompt_token=1.0)).generation == pytest.approx(4 * 7 + 4 * 2)
    assert run(work, Costs(trained_token=1.0)).update == pytest.approx(4 * (7 + 5 + 2 + 3))


def test_updates_are_counted() -> None:
    work = replace(FOUR, epochs=3, minibatches=2, trained_share=0.5)
    assert run(work, Costs(update=1.0, trained_token=1.0)).update == pytest.approx(6 + 3 * 0.5 * 20)


def test_what_is_not_said_costs_nothing_and_is_there_once() -> None:
    assert not any(vars(Costs()).values())
    assert (FOUR.prompt_tokens, FOUR.reply_tokens, FOUR.max_staleness) == (0.0, 0.0, 0)
    assert (FOUR.epochs, FOUR.minibatches, FOUR.trained_share) == (1, 1, 1.0)
    cluster = Cluster(costs=STEP, slots=4)
    assert (cluster.gpus, cluster.servers, cluster.beside, cluster.stragglers) == (1, 0, 0.5, 0.0)
    eight, other = (
        simulate(cluster, replace(FOUR, episodes=((5,), (9,))), **more) for more in ({}, {"num_steps": 8, "seed": 0})
    )
    assert eight == other


def test_stragglers_that_differ_little_take_no_longer() -> None:
    """Their speeds lie around 1."""
    even, uneven = (run(FOUR, replace(STEP, update=1.0), gpus=2, stragglers=noise) for noise in (0.0, 1e-9))
    assert vars(uneven) == pytest.approx(vars(even), rel=1e-6)


def test_stragglers_make_a_step_longer_and_the_seed_repeats_it() -> None:
    costs, work = replace(STEP, update=1.0), replace(FOUR, prompts=64)
    even, uneven = (run(work, costs, gpus=16, stragglers=noise) for noise in (0.0, 0.2))
    assert uneven.generation > 1.1 * even.generation
    assert uneven.update > 1.1 * even.update
    assert uneven == run(work, costs, gpus=16, stragglers=0.2)


def test_a_thousand_gpus() -> None:
    work = Workload(prompts=1000, group_size=8, episodes=((50,), (500,)), max_staleness=1)
    costs = Costs(step=0.01, row=1e-4, update=1.0)
    assert simulate(Cluster(costs=costs, slots=8, gpus=1000, servers=250), work, num_steps=3).step > 1.0


def test_the_schedule_is_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """`benchmarks/async_clock.py` drives `RolloutSchedule` itself, token by token."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    clock = importlib.import_module("async_clock")
    draws = [-log((k + 0.5) / 1000) for k in range(1000)]  # of the distribution that it draws from
    lengths = tuple((5 + min(60, int(12 * x)),) for x in draws)
    for row in (("token", clock.BATCH // 2, 1, True), ("step", clock.BATCH, 1, True)):
        costs = Costs(row=1.0) if row[0] == "token" else STEP
        work = Workload(prompts=clock.BATCH, group_size=1, episodes=lengths)
        alone = [run(work, costs, clock.STEPS, row[1], servers=1).step, clock.seconds_a_step(row, 0, 0.0)]
        assert alone[0] == pytest.approx(alone[1], rel=0.03)
        ours = run(replace(work, max_staleness=1), replace(costs, update=alone[0] / 2), clock.STEPS, row[1], servers=1)
        assert ours.step / alone[0] == pytest.approx(clock.seconds_a_step(row, 1, alone[1] / 2) / alone[1], rel=0.03)
