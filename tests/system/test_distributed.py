"""`torchrun -m rlvr train`: one job, one voice, the numbers of one process, and a run that survives its processes."""

import importlib.util
import os
import re
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file

from rlvr.commands.train.body import train
from rlvr.config.compose import load_config
from rlvr.core.rollout import RolloutSource
from rlvr.core.world import World
from rlvr.errors import UserError
from rlvr.evaluation.evaluate import grade
from rlvr.records.rollouts import EpisodeRecord, read_rollouts
from rlvr.run import ranks as ranks_module
from rlvr.training.checkpoint import list_checkpoints
from tests.ranks import Ranks
from tests.system.harness import Cli, Command, metrics, num_lines, numbers, run_train, wait_until
from tests.system.torchrun import Job, said

NUM_STEPS = 8
RPN_TEST = (f"trainer.max_steps={NUM_STEPS}", "trainer.checkpoint_every=5", "trainer.keep_last=9")
RPN_TEST += ("tracker.rollouts_every=1", "evaluation.num_examples=40")
TRAIN = ("train", "--config-name", "rpn_test")
ACCELERATE = (sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2")
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`rpn_test` by one process."""
    return run_train(tmp_path_factory.mktemp("alone") / "run", *RPN_TEST, name="rpn_test").folder


def records(folder: Path, step: int) -> list[EpisodeRecord]:
    return read_rollouts(folder / "rollouts" / f"step_{step:06d}.jsonl.gz")


def sampled(folder: Path, step: int) -> list[list[int]]:
    """The token ids of a step's completions."""
    return [turn.completion_ids for record in records(folder, step) for turn in record.turns]


def check_same_numbers(folder: Path, alone: Path, *, least: int) -> int:
    """Losses, rewards and gradients agree up to the first step whose sampled tokens differ; that step, printed."""
    ours, theirs = numbers(folder), numbers(alone)
    differs = next((s for s in range(1, len(ours)) if sampled(folder, s) != sampled(alone, s)), len(ours))
    print(f"first step with another sampled token: {differs if differs < len(ours) else 'none'} of {len(ours) - 1}")
    assert differs >= least
    for mine, other in zip(ours[1:differs], theirs[1:differs], strict=True):
        names = [name for name in other if name.startswith(("loss/", "reward/", "rollout/", "policy/"))]
        names.remove("policy/changed_weight_share")  # counts weights that differ in their last bit
        assert "loss/total" in names
        for name in names:
            limit = TOLERANCE if name.startswith("loss/") else TOLERANCE * max(1.0, abs(other[name]))
            assert abs(mine[name] - other[name]) <= limit, (mine["step"], name, mine[name], other[name])
    return differs


def forked(num_processes: int, *words: str, log: Path) -> list[Command]:
    """The processes of a job as a launcher starts them, but without its imports and without its company."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    size = str(num_processes)
    common = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": str(port), "MASTER_ADDR": "127.0.0.1"}
    return [
        Command(*words, log=log / f"log{rank}", environment=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(num_processes)
    ]


# ----------------------------------------------------------------------------------------------- the same numbers


@pytest.mark.long  # each process makes the imports; test_parallel.py compares forked ranks with one process
def test_pitfall_09_two_processes_train_as_one_does(alone: Path, tmp_path: Path) -> None:
    words = (*RPN_TEST, "trainer.strategy=fsdp2", "trainer.world_size=2", "run_dir=run")
    done = Job(2, *TRAIN, *words, cwd=tmp_path).wait()
    assert done.code == 0, done.err
    folder = tmp_path / "run"
    check_same_numbers(folder, alone, least=6)
    check_same_start(folder, alone)
    check_one_voice(done.out, done.err)
    assert [row["step"] for row in metrics(folder)] == list(range(NUM_STEPS + 1))
    for name in (".", "final"):
        assert sorted(p.name for p in (folder / name).iterdir()) == sorted(p.name for p in (alone / name).iterdir())


def check_same_start(folder: Path, alone: Path) -> None:
    """The warm start, of whose demonstrations each process computes half, and the evaluation before training, of whose
    examples each plays half."""
    for name, tensor in load_file(alone / "warm_start" / "model.safetensors").items():
        ours = load_file(folder / "warm_start" / "model.safetensors")[name]
        torch.testing.assert_close(ours, tensor, rtol=1e-4, atol=1e-5)
    assert numbers(folder)[0] == pytest.approx(numbers(alone)[0], abs=0.05)
    assert metrics(folder)[0]["eval/rpn/num_examples"] == 40


def check_one_voice(out: str, err: str) -> None:
    assert out.count("held-out accuracy") == 1
    assert out.count("try it: rlvr eval run") == 1
    lines = said(err)
    assert len(lines) == len(set(lines)), lines
    assert "processes: 2, trainer.strategy=fsdp2" in lines
    assert not [line for line in err.splitlines() if "Warning" in line or "Traceback" in line]


@pytest.mark.usefixtures("warm_starts")
def test_two_processes_sample_ahead_on_the_prompts_of_one(alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = (*RPN_TEST, "algorithm.num_epochs=1", "algorithm.num_minibatches=1", "rollout.max_staleness=1")
    words += ("trainer.strategy=ddp", f"run_dir={folder}")
    job = forked(2, *TRAIN, *words, log=tmp_path)
    assert [rank.wait() for rank in job] == [0, 0], job[0].err
    rows = metrics(folder)[1:]
    assert [row["step"] for row in rows] == list(range(1, NUM_STEPS + 1))
    ages = [row["rollout/staleness_max"] for row in rows]
    assert max(ages) == 1
    for step in range(1, NUM_STEPS + 1):
        ours, theirs = ([record.example_id for record in records(one, step)] for one in (folder, alone))
        assert ours == theirs


def work_of(world: World, folder: str) -> tuple[list[int], int, list[str]]:
    """In a run of one step: the prompts that this process samples, how many examples it is examined on, and what it
    makes or changes in the run folder."""
    short = ("trainer.max_steps=1", "trainer.warmup_steps=0", "warm_start.num_steps=10", "warm_start.warmup_steps=1")
    words = (*short, "warm_start.final_phase_steps=1", "evaluation.num_examples=5", "trainer.strategy=fsdp2")
    config = load_config([*words, f"run_dir={folder}"], config_name="rpn_test")
    touched = set[str]()
    sys.addaudithook(partial(note_writes, Path(folder), touched))
    with (
        patch.object(RolloutSource, "sample", autospec=True, side_effect=RolloutSource.sample) as sample,
        patch("rlvr.evaluation.evaluate.grade", side_effect=grade) as graded,
    ):
        train(config)
    prompts = [index for call in sample.call_args_list for index in call.args[1]]
    return prompts, graded.call_count, sorted(touched)


def note_writes(folder: Path, touched: set[str], event: str, args: tuple[object, ...]) -> None:
    writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    if (writes or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir")) and isinstance(args[0], str | Path):
        path = Path(args[0])
        if path.is_relative_to(folder):
            touched.add(re.sub(r"tmp-\d+", "tmp", path.relative_to(folder).as_posix()))


def test_each_process_does_its_share_and_the_first_one_writes(ranks: Ranks, tmp_path: Path) -> None:
    first, second = ranks(2, None, work_of, str(tmp_path / "run"))
    assert (first[0], second[0]) == ([*range(0, 16, 2)], [*range(1, 16, 2)])
    assert (first[1], second[1]) == (2 * 3, 2 * 2)  # before and after the step
    assert {"metrics.jsonl", "checkpoints/.step_000001.tmp/state.json", ".final.tmp", ".warm_start.tmp"} <= {*first[2]}
    own = "checkpoints/.step_000001.tmp/shards"
    assert [name for name in second[2] if not own.startswith(name)] == []


# --------------------------------------------------------------------------------------------------------- resume


def five_steps(world: World, folder: str) -> None:
    """The run as far as its first checkpoint."""
    config = load_config([*RPN_TEST, "trainer.strategy=fsdp2", f"run_dir={folder}"], config_name="rpn_test")
    train(config, lambda: num_lines(Path(folder)) > 5)


@pytest.mark.usefixtures("warm_starts")
def test_pitfall_37_saved_by_two_processes_gone_on_by_one(ranks: Ranks, alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ranks(2, None, five_steps, str(folder))
    assert list(list_checkpoints(folder / "checkpoints")) == [0, 5]
    assert (folder / "checkpoints/step_000005/shards/rank_00001.safetensors").is_file()
    words = (*RPN_TEST, "resume=true", "trainer.strategy=single")
    assert run_train(folder, *words, name="rpn_test").result.finished
    check_same_numbers(folder, alone, least=6)
    assert not (folder / "checkpoints/step_000008/shards").exists()


@pytest.mark.long
@pytest.mark.usefixtures("warm_starts")
def test_pitfall_37_a_killed_process_ends_the_job(alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = (*TRAIN, *RPN_TEST, f"run_dir={folder}")
    job = forked(2, *words, "trainer.strategy=ddp", log=tmp_path)
    wait_until(lambda: num_lines(folder) > 7)
    job[1].send(signal.SIGKILL)
    assert [rank.wait() for rank in job] == [1, -signal.SIGKILL]
    [error] = [line for line in job[0].err.splitlines() if line.startswith("rlvr: error: ")]
    assert "process 0 of 2 has lost another one" in error
    assert "resume=true" in error
    assert "Traceback" not in job[0].err
    assert not (folder / "final").exists()
    job = forked(2, *words, "resume=true", "trainer.strategy=fsdp2", log=tmp_path)
    assert [rank.wait() for rank in job] == [0, 0]
    check_same_numbers(folder, alone, least=6)
    assert (folder / "checkpoints/step_000008/shards/rank_00001.safetensors").is_file()


SHORT_OF_THE_END = ("trainer.max_steps=500", "trainer.checkpoint_every=null", *RPN_TEST[3:])
ON = "stopped; go on with: torchrun --standalone --nproc-per-node 2 -m rlvr train"


def check_stopped(folder: Path, alone: Path) -> None:
    """Saved once, after its last step."""
    steps = [row["step"] for row in metrics(folder)]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [f"step_{int(steps[-1]):06d}"]
    assert not (folder / "final").exists()
    check_same_numbers(folder, alone, least=min(len(steps), 6))


@pytest.mark.usefixtures("warm_starts")
def test_a_signal_to_one_process_saves_once_and_ends_all(alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = (*TRAIN, *SHORT_OF_THE_END, "trainer.strategy=ddp", f"run_dir={folder}")
    job = forked(2, *words, log=tmp_path)
    wait_until(lambda: num_lines(folder) > 2)
    job[1].send(signal.SIGTERM)
    assert [rank.wait() for rank in job] == [143, 143]
    assert job[1].err == ""
    assert job[0].err.count("stopping after this step\n") == 1
    assert job[0].err.count(f"{ON} run_dir={folder} resume=true\n") == 1
    check_stopped(folder, alone)


@pytest.mark.long
def test_a_signal_to_the_launcher_saves_once_and_ends_all(alone: Path, tmp_path: Path) -> None:
    """`accelerate launch` where it is installed: it runs what torchrun does."""
    words = (*TRAIN, *SHORT_OF_THE_END, "trainer.strategy=ddp", "run_dir=run")
    launcher = (*ACCELERATE, "--multi_gpu") if importlib.util.find_spec("accelerate") else None
    job = Job(2, *words, "trainer.world_size=2", cwd=tmp_path, launcher=launcher)
    job.wait_until(lambda: num_lines(tmp_path / "run") > 2)
    job.send(signal.SIGTERM)
    done = job.wait()
    assert done.code == 1  # torchrun's, whatever a process ends with
    lines = said(done.err)
    assert lines.count("stopping after this step") == 1
    assert not [line for line in lines if "error" in line]
    assert done.out.count(f"{ON} run_dir=run resume=true") == 1
    check_stopped(tmp_path / "run", alone)


def stopped_at_once(world: World, folder: str) -> tuple[int, bool, bool]:
    """What the command line gets to say."""
    ranks_module.PATIENCE_S = 0.1
    config = load_config(["trainer.strategy=ddp", f"run_dir={folder}"], config_name="rpn_test")
    result = train(config, lambda: os.environ["RANK"] == "1")
    return result.num_steps, result.finished, result.is_first


def test_a_stop_on_one_rank_ends_the_warm_start_on_all(ranks: Ranks, tmp_path: Path) -> None:
    found = ranks(2, None, stopped_at_once, str(tmp_path / "run"))
    assert found == [(0, False, True), (0, False, False)]
    assert not (tmp_path / "run" / "warm_start").exists()


# ------------------------------------------------------------------------------------------------------ bad input


def refused(world: World, overrides: tuple[str, ...]) -> str:
    ranks_module.PATIENCE_S = 0.1  # the process that speaks goes on living here
    try:
        train(load_config(list(overrides), config_name="rpn_test"))
    except (UserError, SystemExit) as error:
        return str(error)
    return "trained"


def test_prompts_that_do_not_split_over_ranks_are_refused(ranks: Ranks, tmp_path: Path) -> None:
    odd = ("rollout.prompts_per_step=5", "algorithm.num_minibatches=1", f"run_dir={tmp_path / 'run'}")
    found = ranks(2, None, refused, ("trainer.strategy=fsdp2", *odd))
    assert "rollout.prompts_per_step=5: does not split into equal parts for 2 processes" in "".join(found)
    assert list(tmp_path.iterdir()) == []


def test_processes_that_would_train_alone_are_refused(monkeypatch: pytest.MonkeyPatch, here: Path, cli: Cli) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        err = cli.refuses(2, ["train", "trainer.strategy=single"])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    alone = "2 processes were started, and each would train by itself; set trainer.strategy=fsdp2 or ddp."
    assert err == f"rlvr: error: trainer.strategy=single: {alone}\n"
    assert list(here.iterdir()) == []


def test_a_launcher_that_starts_one_process_is_noticed(tmp_path: Path) -> None:
    """`accelerate launch` on a CPU: one process where two were asked for."""
    pytest.importorskip("accelerate")
    words = (*TRAIN, "trainer.strategy=ddp", "trainer.world_size=2", "run_dir=run")
    done = Job(2, *words, cwd=tmp_path, launcher=(*ACCELERATE, "--cpu")).wait()
    assert done.code != 0
    assert [line for line in done.err.splitlines() if line.startswith("rlvr: error: ")] == [
        "rlvr: error: trainer.world_size=2: 1 process trains here; start them with torchrun --nproc-per-node 2 -m rlvr "
        "train ... (accelerate launch on a CPU starts one, in silence)."
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("warm_starts")
def test_a_world_of_one_is_a_run_like_any_other(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")  # as torchrun --nproc-per-node 1
    words = (*RPN_TEST, "trainer.strategy=ddp", "trainer.max_steps=2")
    folder = run_train(tmp_path / "run", *words, name="rpn_test").folder
    check_same_numbers(folder, alone, least=3)
    assert numbers(folder)[0] == numbers(alone)[0]
