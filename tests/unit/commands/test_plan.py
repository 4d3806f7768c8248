"""A plan from measured numbers that were chosen so that it can be checked by hand; tests/system measures for real."""

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from rlvr.commands.plan import body, duration, plain, table
from rlvr.commands.plan.body import Machines, Plan, plan, predict
from rlvr.commands.plan.costs import Measured
from rlvr.commands.plan.simulate import Costs
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
MEASURED = Measured(
    costs=Costs(step=1.0, update=2.0, sync=0.5),
    episodes=((21,),),  # a token with the prompt, and twenty steps of the engine
    lengths=(1.0, 1.0),
    noise=0.0,
    prompt_tokens=3.0,
    reply_tokens=0.0,
    trained_share=1.0,
    beside=1.0,
    eval_examples=10,
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


def planned(
    monkeypatch: pytest.MonkeyPatch, *more: str, measured: Measured = MEASURED, changes: bool = False, **options: Any
) -> Plan:
    """`rlvr plan` of a machine that was measured already, with nothing else to do; `changes`: also tries them."""
    monkeypatch.setattr(body, "measure", lambda config, *, gpus, seconds, functions: measured)
    monkeypatch.setattr(body.os, "getloadavg", lambda: (1.0, 1.0, 1.0))
    monkeypatch.setattr(body.os, "cpu_count", lambda: 2)
    if not changes:
        monkeypatch.setattr(body, "_changes", lambda config, machines: iter(()))
    return plan(config(*more), **options)


def test_a_run_is_its_steps_its_evaluations_and_its_checkpoints() -> None:
    """Eight completions in eight slots, ten of an evaluation in two waves; saved before the first step, too."""
    found = predict(config(), MEASURED, Machines())
    assert vars(found.step) == {"generation": 20.0, "scoring": 0.0, "update": 2.0, "sync": 0.5, "other": 0.0}
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
        ("evaluation.samples_per_example=1", {"evaluations": 4 * 60.0}),  # twenty completions
        ("trainer.checkpoint_every=null trainer.keep_best=true", {"checkpoints": 18.0}),
        ("trainer.checkpoint_every=10", {"checkpoints": 2 * 18.0}),
        ("trainer.max_steps=8", {"steps": 8 * 22.5, "evaluations": 3 * 40.0, "checkpoints": 3 * 18.0}),
        ("engine.max_batch_size=4", {"steps": 10 * 42.5, "evaluations": 4 * 60.0}),
    ],
)
def test_what_is_done_more_often_takes_longer(setting: str, totals: dict[str, float]) -> None:
    assert predict(config(*setting.split()), MEASURED, Machines()).totals.items() >= totals.items()


def test_without_evaluations_there_is_no_time_of_them() -> None:
    assert "evaluations" not in predict(config("evaluation.every=null"), MEASURED, Machines()).totals


@pytest.mark.parametrize(("share", "prompts"), [(1.0, 4), (0.5, 4 + 2 + 1), (0.75, 4 + 1)])
def test_groups_that_teach_nothing_are_sampled_again(share: float, prompts: int) -> None:
    """Twice: a half, then a quarter of the four prompts. Prompts are whole: 4 + 1 + 0.25."""
    refilling = config("rollout.dead_groups=refill", "rollout.max_refills=2")
    measured = replace(MEASURED, trained_share=share, costs=Costs(prompt_token=1.0))
    assert predict(refilling, measured, Machines()).step.generation == pytest.approx(3.0 * prompts)
    assert predict(config("rollout.dead_groups=drop"), measured, Machines()).step.generation == pytest.approx(3.0 * 4)


@pytest.mark.parametrize(
    ("device", "strategy", "servers", "exchange", "pushed"),
    [
        ("CPU, 1 thread(s)", "ddp", 0, 2 * 400 / 2 / 0.5e9, 0.0),
        ("CPU, 1 thread(s)", "fsdp2", 0, 3 * 400 / 2 / 0.5e9, 0.0),
        ("NVIDIA H100", "ddp", 3, 2 * 400 / 2 / 25e9, 1000 / 25e9),
    ],
)
def test_several_devices_exchange_gradients_and_are_sent_weights(
    device: str, strategy: str, servers: int, exchange: float, pushed: float
) -> None:
    measured = replace(MEASURED, device=device, costs=Costs(sync=0.5))
    found = predict(config(f"trainer.strategy={strategy}"), measured, Machines(gpus=2, servers=servers))
    assert found.step.update == pytest.approx(exchange, rel=1e-9)
    assert found.step.sync == pytest.approx(0.5 + pushed, rel=1e-12)


@pytest.mark.parametrize("servers", [0, 1])
def test_devices_that_wait_for_each_other_wait_for_the_slower_one(servers: int) -> None:
    alone, two = (predict(config(), MEASURED, Machines(gpus=gpus, servers=servers)) for gpus in (1, 2))
    assert (alone.step.update == 2.0) == (servers == 0)
    assert two.step.update != pytest.approx(2.0, rel=1e-3)


def test_the_range_is_that_of_shorter_and_longer_completions_two_deviations_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = replace(MEASURED, episodes=((16,),), lengths=(0.5, 2.0), noise=0.24)
    found = planned(monkeypatch, "evaluation.every=null", measured=measured)
    spread = math.hypot(0.1, 0.24)
    short, long = (7 + 10 * (tokens - 1 + 2.5) + 72 for tokens in (8, 32))
    assert found.range_s == pytest.approx((short * math.exp(-2 * spread), long * math.exp(2 * spread)))


@pytest.mark.parametrize(
    ("mean", "turns"), [(7, ((4,), (10,))), (14, ((7,), (20,))), (49, ((24,), (32,))), (0.1, ((1,), (1,)))]
)
def test_completions_of_another_mean_keep_their_shape(
    mean: float, turns: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is shorter than a token, or longer than allowed."""
    measured = replace(MEASURED, episodes=((7,), (20,)), lengths=(0.1, 9.0))
    found = planned(monkeypatch, measured=measured, mean_tokens=mean * 27 / 28)
    assert found.measured.episodes == turns
    assert found.range_s == pytest.approx([found.prediction.total_s * math.exp(k * 0.2) for k in (-1, 1)])


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


def test_changes_are_tried_and_the_best_one_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planned(monkeypatch, changes=True)
    gains = dict(found.gains)
    assert list(gains.values()) == sorted(gains.values(), reverse=True)
    assert set(gains) == {
        *("engine.max_batch_size=16", "engine.max_batch_size=2", "rollout.max_staleness=1", "evaluation.every=8"),
        *("trainer.checkpoint_every=8", "--gpus 2", "--servers 1"),
    }
    assert gains["engine.max_batch_size=16"] == pytest.approx(4 * 20 / 464)  # the evaluation's second wave
    assert gains["evaluation.every=8"] == pytest.approx(40 / 464)  # before the first step, after 8 and 10
    assert gains["trainer.checkpoint_every=8"] == pytest.approx(18 / 464)
    assert gains["engine.max_batch_size=2"] == pytest.approx(1 - (7 + 10 * 82.5 + 4 * 100 + 72) / 464)


@pytest.mark.parametrize(
    ("settings", "machines", "absent"),
    [
        ([], Machines(gpus=4, servers=2), "--gpus"),  # four prompts cannot be shared by eight
        (["evaluation.every=10"], Machines(), "evaluation.every"),
        (["evaluation.every=null"], Machines(), "evaluation.every"),
        (["trainer.checkpoint_every=10"], Machines(), "trainer.checkpoint_every"),
        (["trainer.checkpoint_every=null", "trainer.keep_best=true"], Machines(), "trainer.checkpoint_every"),
        (["rollout.max_staleness=1"], Machines(), "rollout.max_staleness"),
    ],
)
def test_a_change_that_changes_nothing_is_not_tried(settings: list[str], machines: Machines, absent: str) -> None:
    lines = [line for line, *_ in body._changes(config(*settings), machines)]
    assert lines[:2] == ["engine.max_batch_size=16", "engine.max_batch_size=2"]
    assert not [line for line in lines if line.startswith(absent)]
    assert lines[-1] == f"--servers {machines.servers + 1}"


def test_changed_machines_are_one_server_more_or_twice_the_devices() -> None:
    changes = {line: machines for line, _, machines in body._changes(config(), Machines(gpus=2, servers=3))}
    assert changes["--gpus 4"] == Machines(gpus=4, servers=3)
    assert changes["--servers 4"] == Machines(gpus=2, servers=4)
    assert changes["engine.max_batch_size=16"] == Machines(gpus=2, servers=3)


@pytest.mark.parametrize(
    ("algorithm", "correction"), [("grpo", ""), ("ppo", " algorithm.mismatch_correction=truncate")]
)
def test_asynchronous_training_is_tried_with_a_correction_only_where_it_needs_one(
    algorithm: str, correction: str
) -> None:
    lines = [line for line, *_ in body._changes(config(f"algorithm={algorithm}"), Machines())]
    assert [line for line in lines if "stale" in line] == [f"rollout.max_staleness=1{correction}"]


@pytest.mark.parametrize(("load", "is_busy"), [(2.0, False), (2.01, True)])
def test_a_busy_machine_is_noted(load: float, is_busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a process more for each of two cores, beside this one."""
    monkeypatch.setattr(body.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(body.os, "cpu_count", lambda: 2)
    said = f"the machine is busy (load {load:.1f} on 2 cores): times are those of now, longer than alone"
    assert list(body._notes(config(), MEASURED, Machines())) == ["as measured", *[said] * is_busy]


def test_a_machine_that_does_not_know_its_cores_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body.os, "getloadavg", lambda: (1.75, 0.0, 0.0))
    monkeypatch.setattr(body.os, "cpu_count", lambda: None)
    [_, said] = body._notes(config(), MEASURED, Machines())
    assert "(load 1.8 on 1 cores)" in said


@pytest.mark.parametrize(("gpus", "servers", "count"), [(1, 0, 0), (2, 0, 1), (1, 1, 2)])
def test_what_is_assumed_is_said(gpus: int, servers: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = planned(monkeypatch, measured=replace(MEASURED, trained_share=0.25), gpus=gpus, servers=servers)
    first, share, *more = found.notes
    assert (first, share[:38]) == ("as measured", "25% of the rows move the gradient now;")
    assert len(more) == count
    assert not count or more[-1] == "assumed: 0.5 GB/s between devices, speeds that vary by 5%"
    on_gpu = replace(MEASURED, device="NVIDIA H100")
    assert not count or "25 GB/s" in planned(monkeypatch, measured=on_gpu, gpus=gpus, servers=servers).notes[-1]


@pytest.mark.parametrize(
    ("settings", "options", "machines"),
    [
        ([], {}, Machines(gpus=1, servers=0)),
        (["trainer.strategy=ddp", "trainer.world_size=2"], {}, Machines(gpus=2)),
        (["trainer.strategy=ddp", "trainer.world_size=2"], {"gpus": 4}, Machines(gpus=4)),
        (["engine=vllm", "engine.urls=[http://a,http://b]"], {}, Machines(servers=2)),
        (["engine=vllm", "engine.urls=[http://a,http://b]"], {"servers": 1}, Machines(servers=1)),
    ],
)
def test_devices_are_those_asked_for_or_those_of_the_configuration(
    settings: list[str], options: dict[str, int], machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert planned(monkeypatch, *settings, **options).machines == machines


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
    assert texts["the run"] == ["7:44 min", "6:19 min to 9:26 min; 21 tokens an episode"]
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
