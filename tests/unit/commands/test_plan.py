"""A plan from measured numbers that were chosen so that it can be checked by hand; tests/system measures for real."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from rlvr.commands.plan import body, duration, plain, table
from rlvr.commands.plan.body import Plan, plan, totals_of
from rlvr.commands.plan.measure import STAGES, UNKNOWN_NOISE, Measured, Watch, alone, noise
from rlvr.config import Config
from rlvr.config.compose import load_config
from tests.unit.cli.conftest import Rlvr

SETTINGS = {
    **{"trainer.max_steps": 10, "trainer.checkpoint_every": 4, "evaluation.every": 4, "engine.max_batch_size": 8},
    **{"rollout.prompts_per_step": 4, "rollout.group_size": 2, "rollout.max_completion_tokens": 32},
    **{"tracker.rollouts_every": 4, "tracker.rollouts_max_groups": 3, "trainer.keep_last": 2, "algorithm": "grpo"},
    "trainer.keep_best": "false",
}
LINE = [f"{key}={value}" for key, value in SETTINGS.items()]


def step(generation: float, update: float = 2.0, sync: float = 0.5) -> dict[str, float]:
    return {"generation": generation, "scoring": 0.0, "update": update, "sync": sync, "other": 0.0}


MEASURED = Measured(
    steps={1: step(8.0), 2: step(10.0), 4: step(20.0)},
    noise=0.0,
    evaluation_s=40.0,
    mean_tokens=21.0,
    taught_share=1.0,
    warm_start_s=7.0,
    memory={"weights": 100, "optimizer": 50},
    saved_bytes=1000,
    trained_bytes=400,
    episode_bytes=20.5,
    disk_bytes_s=100.0,
    device="CPU, 1 thread(s)",
    notes=("as measured",),
)


@cache
def config(*more: str) -> Config:
    return load_config(
        [*(one for one in LINE if one.partition("=")[0] not in {m.partition("=")[0] for m in more}), *more]
    )


def planned(monkeypatch: pytest.MonkeyPatch, *more: str, measured: Measured = MEASURED, **options: Any) -> Plan:
    """`rlvr plan` of a machine that was measured already, with nothing else to do."""
    monkeypatch.setattr(body, "measure", lambda config, *, gpus, seconds, functions: measured)
    monkeypatch.setattr(body.os, "getloadavg", lambda: (1.0, 1.0, 1.0))
    monkeypatch.setattr(body.os, "cpu_count", lambda: 2)
    return plan(config(*more), **options)


def test_a_run_is_its_steps_its_evaluations_and_its_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved and evaluated before the first step, too."""
    found = planned(monkeypatch)
    assert found.stages == step(20.0)
    assert found.step_s == 22.5
    assert found.bound_by == "generation"
    assert found.totals == {
        "warm start": 7.0,
        "steps": 10 * 22.5,
        "evaluations": (1 + 3) * 40.0,  # before the first step, after 4, 8 and 10
        "checkpoints": (1 + 3) * (1000 + 2 * 400) / 100,
    }
    assert found.total_s == 7 + 225 + 160 + 72


@pytest.mark.parametrize(
    ("setting", "totals"),
    [
        ("evaluation.every=5", {"evaluations": 3 * 40.0}),
        ("evaluation.every=10", {"evaluations": 2 * 40.0}),
        ("trainer.checkpoint_every=null trainer.keep_best=true", {"checkpoints": 18.0}),
        ("trainer.checkpoint_every=10", {"checkpoints": 2 * 18.0}),
        ("trainer.max_steps=8", {"steps": 8 * 22.5, "evaluations": 3 * 40.0, "checkpoints": 3 * 18.0}),
    ],
)
def test_what_is_done_more_often_takes_longer(setting: str, totals: dict[str, float]) -> None:
    assert totals_of(config(*setting.split()), MEASURED, step(20.0)).items() >= totals.items()


def test_without_evaluations_there_is_no_time_of_them() -> None:
    assert "evaluations" not in totals_of(config("evaluation.every=null"), MEASURED, step(20.0))


@pytest.mark.parametrize(
    ("sizes", "prompts", "generation"),
    [
        ({1: 8.0, 2: 10.0, 4: 20.0}, 4, 20.0),
        ({1: 8.0, 2: 10.0, 4: 20.0}, 3, 15.0),
        ({1: 8.0, 2: 10.0, 4: 20.0}, 8, 40.0),  # there was no time for it: as from 2 to 4
        ({1: 8.0, 4: 7.0}, 100, 7.0),
        ({1: 8.0, 4: 7.0}, 3, pytest.approx(8.0 - 2 / 3)),
        ({1: 8.0}, 1, 8.0),
    ],
)
def test_a_size_that_was_not_timed_is_on_a_line(sizes: dict[int, float], prompts: int, generation: float) -> None:
    measured = replace(MEASURED, steps={size: step(took) for size, took in sizes.items()})
    assert measured.stages(prompts) == step(generation)


def test_a_device_makes_its_share_of_the_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four prompts two devices sample and train two each, and four one each."""
    found = planned(monkeypatch, gpus=2)
    assert found.stages == step(10.0)
    assert dict(found.gains)["--gpus 4"] == pytest.approx(10 * 2 / found.total_s)
    assert found.notes[-1] == "what devices send each other is not counted"
    of_run = planned(monkeypatch, "trainer.strategy=ddp", "trainer.world_size=2")
    assert (of_run.gpus, of_run.stages) == (2, step(10.0))


def test_the_range_is_two_deviations_of_steps_and_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planned(monkeypatch, measured=replace(MEASURED, noise=0.24))
    spread = math.hypot(0.1, 0.24)
    assert found.range_s == pytest.approx((464 * math.exp(-2 * spread), 464 * math.exp(2 * spread)))


@pytest.mark.parametrize(
    ("settings", "generation", "said"),
    [
        (["rollout.max_staleness=1"], 20.0, False),  # was measured so
        (["engine=vllm"], 20.0, True),
        (["engine=vllm", "rollout.max_staleness=1"], 17.5, True),  # what the trainer does not hide
    ],
)
def test_servers_sample_while_the_trainer_works(
    settings: list[str], generation: float, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planned(monkeypatch, *settings)
    assert found.stages["generation"] == generation
    assert ("a server is taken to be as fast as the local engine on this device" in found.notes) == said


def test_memory_and_disk_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four checkpoints are kept; three files of three groups of two."""
    found = planned(monkeypatch)
    assert found.memory_bytes == 150
    assert found.disk == {"checkpoints": 2 * 1800, "models": 2 * 1000, "rollouts": 3 * 3 * 2 * 20 + 9}


@pytest.mark.parametrize(
    ("settings", "disk"),
    [
        (["trainer.keep_best=true"], {"checkpoints": 3 * 1800}),
        (["trainer.keep_last=9"], {"checkpoints": 4 * 1800}),
        (["trainer.checkpoint_every=null", "trainer.keep_best=true"], {"checkpoints": 1800}),
        (["tracker.rollouts_every=null", "tracker.rollouts_max_groups=8"], {"rollouts": 0}),
        (["tracker.rollouts_every=3", "tracker.rollouts_max_groups=null"], {"rollouts": 4 * 4 * 2 * 20 + 16}),
        (["tracker.rollouts_max_groups=9"], {"rollouts": 3 * 4 * 2 * 20 + 12}),
        (["model=hf", "model.name_or_path=some/model"], {"models": 1000}),
    ],
)
def test_what_is_kept_takes_space(settings: list[str], disk: dict[str, int]) -> None:
    assert body._disk(config(*settings), MEASURED).items() >= disk.items()


def test_the_change_that_saves_most_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planned(monkeypatch)
    gains = dict(found.gains)
    assert list(gains.values()) == sorted(gains.values(), reverse=True)
    assert gains == {
        "--gpus 2": pytest.approx(10 * 10 / 464),
        "evaluation.every=8": pytest.approx(40 / 464),  # before the first step, after 8 and 10
        "rollout.max_staleness=1 and a device that only samples": pytest.approx(10 * 2.5 / 464),
        "trainer.checkpoint_every=8": pytest.approx(18 / 464),
    }


@pytest.mark.parametrize(
    ("settings", "gpus", "absent"),
    [
        ([], 4, "--gpus"),  # four prompts cannot be shared by eight
        (["evaluation.every=10"], 1, "evaluation.every"),
        (["evaluation.every=null"], 1, "evaluation.every"),
        (["trainer.checkpoint_every=10"], 1, "trainer.checkpoint_every"),
        (["trainer.checkpoint_every=null", "trainer.keep_best=true"], 1, "trainer.checkpoint_every"),
        (["rollout.max_staleness=1"], 1, "rollout.max_staleness"),
    ],
)
def test_a_change_that_changes_nothing_is_not_tried(
    settings: list[str], gpus: int, absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name, _ in planned(monkeypatch, *settings, gpus=gpus).gains]
    assert len(names) == 3
    assert not [name for name in names if name.startswith(absent)]


@pytest.mark.parametrize(("load", "is_busy"), [(2.0, False), (2.01, True)])
def test_a_busy_machine_is_noted(load: float, is_busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a process more for each of two cores, beside this one."""
    monkeypatch.setattr(body.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(body.os, "cpu_count", lambda: 2)
    said = f"the machine is busy (load {load:.1f} on 2 cores): times are those of now, longer than alone"
    assert list(body._notes(config(), MEASURED, 1)) == ["as measured", *[said] * is_busy]


def test_a_machine_that_does_not_know_its_cores_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body.os, "getloadavg", lambda: (1.75, 0.0, 0.0))
    monkeypatch.setattr(body.os, "cpu_count", lambda: None)
    [_, said] = body._notes(config(), MEASURED, 1)
    assert "(load 1.8 on 1 cores)" in said


@pytest.mark.parametrize(("algorithm", "said"), [("grpo", True), ("ppo", False)])
def test_groups_of_equal_rewards_are_noted_where_they_teach_nothing(
    algorithm: str, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = replace(MEASURED, taught_share=0.25)
    notes = planned(monkeypatch, f"algorithm={algorithm}", measured=measured).notes
    assert notes[0] == "as measured"
    assert [note[:39] for note in notes[1:]] == ["25% of the groups move the gradient now;"[:39]] * said


def test_what_is_measured_is_one_process_that_changes_no_weight() -> None:
    """It reports nothing; the rest is the run's, also samples that are older than the policy."""
    run = config("trainer.strategy=fsdp2", "trainer.world_size=4", "trainer.warmup_steps=7", "rollout.max_staleness=3")
    found = alone(run)
    trainer = found.trainer
    assert (trainer.strategy, trainer.world_size, trainer.warmup_steps) == ("single", None, 0)
    assert trainer.learning_rate == 1e-12
    assert (found.tracker.console, found.tracker.report_to) == ("none", ())
    assert (found.engine, found.rollout) == (run.engine, run.rollout)
    assert (found.algorithm, found.task, found.model) == (run.algorithm, run.task, run.model)
    of_servers = alone(config("engine=vllm", "rollout.max_staleness=1", "engine.max_batch_size=7"))
    assert (of_servers.engine.name, of_servers.engine.max_batch_size) == ("local", 7)
    assert of_servers.rollout.max_staleness == 0


def watched(*rows: Mapping[str, float], until: float = math.inf) -> Watch:
    watch: Any = Watch(None, until, None)  # type: ignore[arg-type]
    watch.log(0, {"time/step_s": 99.0})  # the evaluation before the first step
    for number, row in enumerate(rows, 1):
        watch.log(number, row)
    return watch


def test_the_first_step_does_not_count() -> None:
    rows = [{"time/step_s": took, "time/generation_share": 0.5, "time/other_share": 0.25} for took in (9.0, 1.0, 3.0)]
    assert watched(*rows).mean == dict.fromkeys(STAGES, 0.0) | {"generation": 1.0, "other": 0.5}


@pytest.mark.parametrize(("steps", "until", "stopped"), [(1, 0.0, False), (2, 3.0, False), (2, 2.9, True)])
def test_two_steps_are_made_and_then_as_many_as_fit(
    steps: int, until: float, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is 1 o'clock, and a step takes 2."""
    monkeypatch.setattr("rlvr.commands.plan.measure.time.perf_counter", lambda: 1.0)
    assert watched(*[{"time/step_s": 2.0}] * steps, until=until).stopped() == stopped


def test_the_noise_is_that_of_steps_of_one_size() -> None:
    assert noise([1.0, math.e, 1.0, math.e]) == pytest.approx(0.5)
    assert noise([1.0, math.e]) == UNKNOWN_NOISE


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.0, "0 s"), (0.00049, "0 s"), (0.0005, "0.0005 s"), (0.041, "0.041 s"), (42.4, "42 s"), (59.4, "59 s")),
        *((60.0, "1:00 min"), (185.0, "3:05 min"), (3599.0, "59:59 min"), (3600.0, "1:00 h"), (7830.0, "2:10 h")),
        *((3_600_060.0, "1,000:01 h"), (7199.0, "1:59 h")),
    ],
)
def test_a_duration_is_told_in_its_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_command_prints_notes_and_a_table(rlvr: Rlvr, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = replace(planned(monkeypatch), gains=(("evaluation.every=8", 40 / 464),))
    monkeypatch.setattr("rlvr.commands.plan.body.plan", lambda config, **options: expected)
    ran = rlvr("plan", *LINE)
    assert ran.code == 0, ran.err
    assert ran.out == table(expected)
    rows = {name.strip(): cells for name, *cells in (line.split("   ") for line in ran.out.splitlines()[2:-1])}
    texts = {name: [cell.strip() for cell in cells if cell.strip()] for name, cells in rows.items()}
    assert texts["generation"] == ["20 s", "89% of a step"]
    assert texts["a step"] == ["22 s", "bound by generation"]
    assert texts["evaluations"] == ["2:40 min", "34% of the run"]
    assert texts["the run"] == ["7:44 min", "6:19 min to 9:26 min; 21 tokens a turn"]
    assert texts["memory"][1:] == ["peak of a process"]
    assert ran.out.splitlines()[-1].startswith("would help most: evaluation.every=8 (9% less)")
    assert "note: as measured" in ran.err
    asked = rlvr("plan", *LINE, "--json")
    assert asked.lines == json.loads(json.dumps([plain(expected)]))
    assert asked.lines[0]["total_s"] == 464.0


def test_nothing_is_said_to_help_that_saves_less_than_a_hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planned(monkeypatch)
    for gain, said in ((0.01, "nothing that was tried"), (0.0101, "x=1 (1% less)")):
        lines = table(replace(found, gains=(("x=1", gain),))).splitlines()
        assert lines[-1] == f"would help most: {said}"
