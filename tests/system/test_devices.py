"""The whole product with its models on another device than its batches: what meets a tensor of the wrong one fails.

There is no GPU in CI. On `tests/pretend_device.py` every number is what the CPU makes of it, so a run there must give
the numbers of one on the CPU. The device has no float64, as Apple's has not; one run is made on a form that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from pathlib import Path

import pytest

from rlvr.cli.main import main
from rlvr.core.engine import LocalEngine
from rlvr.core.engine.graphs import GraphedRunner
from rlvr.core.engine.request import Request
from rlvr.core.engine.runner import CachedRunner
from rlvr.core.engine.shared_prefix import engine_attention
from rlvr.types import SamplingParams
from tests.pitfalls.planting import edit, without_keyword, without_method
from tests.pretend_device import AVAILABLE, NAME, Pretend, install, on_device
from tests.system.harness import Cli, numbers, rlvr, split
from tests.system.served import served
from tests.unit.engines.tiny import tiny_model
from tests.variants import variants

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="this torch has no devices made in Python")

Prepare = Callable[[], object]
OnCpu = Callable[..., Path]
WITHOUT_FLOAT64: Prepare = partial(install, float64=False)
FEW = split("""
    trainer.num_threads=1 trainer.precision=fp32 trainer.max_steps=1 trainer.checkpoint_every=1 tracker.console=none
    evaluation.every=1 evaluation.num_examples=2 rollout.prompts_per_step=2
""")
WARM = split("warm_start.num_steps=2 warm_start.warmup_steps=1 warm_start.final_phase_steps=0 warm_start.batch_size=8")
SHORT = split("rollout.max_completion_tokens=8 task.max_prompt_tokens=15")
FIRST = (*split("train --config-name rpn_test algorithm=grpo rollout.group_size=2"), *SHORT, *FEW, *WARM)
"""A warm start and a step of GRPO, top-p."""

RUNS = {
    "critic": (*split("train --config-name rpn_ppo algorithm.kl_coef=0.1 model.num_layers=2"), *SHORT, *FEW, *WARM),
    "stale": (
        *split("train --config-name two_hop rollout.group_size=2 rollout.max_staleness=1"),
        *(word.replace("max_steps=1", "max_steps=2") for word in (*FEW, *WARM)),
    ),
    "epochs": (
        *split("train --config-name rpn_test algorithm.num_epochs=4 algorithm.num_minibatches=2"),
        *(*SHORT, *FEW, *WARM, "trainer.microbatch_tokens=64"),
    ),
    "tools": (*split("train --config-name two_hop rollout.group_size=2 algorithm.kl_coef=0.1"), *FEW, *WARM),
}
"""PPO with a critic and a reference, turns whose keys and values are kept with older samples, epochs, tools in step."""

ADAPTERS = (
    *split("train --config-name rpn_test model=hf model.lora.enabled=true model.gradient_checkpointing=true"),
    *split("model.lora.target_modules=[q_proj,v_proj] algorithm=grpo algorithm.kl_coef=0.1 rollout.group_size=2"),
    *(*SHORT, *FEW),
)
"""Adapters on the model that the first run began with, whose layers are computed again in the backward pass."""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the first run, made on the device."""
    folder = tmp_path_factory.mktemp("first") / "run"
    run(folder, FIRST)
    return folder


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> OnCpu:
    """The folder of a run on the CPU, made once."""

    @cache
    def on_cpu(*words: str) -> Path:
        folder = tmp_path_factory.mktemp("cpu") / "run"
        assert main([*words, f"run_dir={folder}"]) == 0
        return folder

    return on_cpu


def run(folder: Path, words: tuple[str, ...], *more: str, prepare: Prepare = WITHOUT_FLOAT64) -> None:
    """A command on the device, in a process of its own."""
    done = rlvr(*words, *more, f"run_dir={folder}", cwd=folder.parent, prepare=prepare)
    assert done.code == 0, done.err[-3000:]


def check_equal(there: Path, cpu: Path, num_lines: int) -> None:
    """Up to the first update, whose signs of tiny gradients are anybody's."""
    ours, theirs = numbers(there), numbers(cpu)
    assert len(ours) == len(theirs) == num_lines
    for one, other in zip(ours[:2], theirs[:2], strict=True):
        assert one == pytest.approx(other, abs=1e-4, rel=1e-3, nan_ok=True)


def test_a_warm_start_a_step_and_a_resume(first: Path, on_cpu: OnCpu) -> None:
    check_equal(first, on_cpu(*FIRST), 2)
    run(first, ("train", "resume=true", "trainer.max_steps=2"))
    assert [row["step"] for row in numbers(first)] == [0, 1, 2]


def test_a_device_with_float64(on_cpu: OnCpu, tmp_path: Path) -> None:
    run(tmp_path / "run", FIRST, prepare=install)
    check_equal(tmp_path / "run", on_cpu(*FIRST), 2)


@pytest.mark.parametrize("name", variants(RUNS))
def test_runs_are_those_on_the_cpu(name: str, on_cpu: OnCpu, tmp_path: Path) -> None:
    run(tmp_path / "run", RUNS[name])
    check_equal(tmp_path / "run", on_cpu(*RUNS[name]), 3 if name == "stale" else 2)


def test_adapters(first: Path, on_cpu: OnCpu, tmp_path: Path) -> None:
    words = (*ADAPTERS, f"model.name_or_path={first / 'warm_start'}")
    run(tmp_path / "run", words)
    check_equal(tmp_path / "run", on_cpu(*words), 2)


@pytest.mark.long
def test_a_warm_start_of_adapters(first: Path, on_cpu: OnCpu, tmp_path: Path) -> None:
    tuned = ("warm_start.enabled=true", "warm_start.num_examples=8", "warm_start.num_epochs=1")
    words = (*ADAPTERS, f"model.name_or_path={first / 'warm_start'}", *tuned)
    run(tmp_path / "run", words)
    check_equal(tmp_path / "run", on_cpu(*words), 2)


@pytest.mark.long
def test_bfloat16(tmp_path: Path) -> None:
    """Autocast in training, and a copy that samples: they differ by rounding, and by no more than that."""
    run(tmp_path / "run", FIRST, "trainer.precision=bf16", "engine.dtype=bfloat16", "algorithm.kl_coef=0.1")
    assert 0 < numbers(tmp_path / "run")[1]["policy/mismatch_kl"] < 1e-4


def test_an_evaluation_is_that_on_the_cpu(first: Path, cli: Cli, tmp_path: Path) -> None:
    words = ("eval", str(first), "--json", "--samples-per-example", "2")
    done = rlvr(*words, cwd=tmp_path, prepare=WITHOUT_FLOAT64)
    assert done.code == 0, done.err[-3000:]
    assert done.out == cli.ok(*words).out


@pytest.mark.long
def test_doctor_finds_no_fault(first: Path, tmp_path: Path) -> None:
    done = rlvr("doctor", str(first), cwd=tmp_path, prepare=WITHOUT_FLOAT64)
    assert done.code == 0, done.out[-3000:] + done.err[-3000:]


def test_a_server_answers_as_on_the_cpu(first: Path) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 4, "seed": 1, "top_p": 0.9, "logprobs": 2, "return_token_ids": True}
    answers = []
    for prepare in (WITHOUT_FLOAT64, None):
        with served(str(first), prepare=prepare) as server:
            status, answer = server.post("/v1/completions", body)
        assert status == 200, answer
        answers.append(answer["choices"][0])
    assert answers[0]["token_ids"] == answers[1]["token_ids"]
    assert answers[0]["logprobs"]["token_logprobs"] == pytest.approx(answers[1]["logprobs"]["token_logprobs"], abs=1e-4)


BUGS = {
    "a mask made on the CPU": (
        edit("rlvr.core.engine.runner:CachedRunner._causal_mask", without_keyword("device")),
        "tensors of two devices",
    ),
    "seeds that stay on the CPU": (
        edit("rlvr.core.engine.sampler:RowSampling.of", without_method("to")),
        "tensors of two devices",
    ),
    "numpy() without cpu()": (
        edit("rlvr.models.weight_cache:_content", without_method("cpu")),
        f"can't convert {NAME} tensor to numpy",
    ),
}


def plant(name: str) -> None:
    """Make the device, and the bug."""
    install()
    BUGS[name][0]()


@pytest.mark.parametrize("name", variants(BUGS))
def test_a_planted_bug_is_caught(name: str, tmp_path: Path) -> None:
    done = rlvr(*FIRST, "run_dir=run", cwd=tmp_path, prepare=partial(plant, name))
    assert done.code != 0
    assert BUGS[name][1] in done.err


def reads_per_step(architecture: str) -> dict[str, float]:
    """Of recorded decode steps in which no row starts or ends: how often the host waits, and for what."""
    model = tiny_model(architecture).to(NAME)
    engine = LocalEngine(model, max_batch_size=8, max_context_tokens=100)
    assert type(engine._scheduler.rows.runner) is CachedRunner
    recorded = []

    def record(compute: Callable[[], None]) -> Callable[[], None]:
        """Fails where CUDA could not record."""
        Pretend.recording = True
        compute()
        Pretend.recording = False
        recorded.append(compute)
        return compute

    record.forget = list  # nothing is kept
    engine._scheduler.rows.runner = GraphedRunner(model, 8, recorder=record)
    for seed in range(6):
        settings = SamplingParams(max_tokens=60, temperature=1.0, stop_ids=frozenset(), seed=seed)
        engine._scheduler.submit(Request(prompt_ids=(1, 2, 3 + seed // 3), sampling=settings, future=Future()))
    with engine_attention(model):
        for _ in range(3):
            engine._step()
        Pretend.reads.clear()
        for _ in range(20):
            engine._step()
    assert recorded
    return {name: count / 20 for name, count in Pretend.reads.items()}


@pytest.mark.parametrize("architecture", variants(["llama", "gemma3"]))
def test_a_recorded_step_waits_for_the_device_once(architecture: str) -> None:
    assert on_device(reads_per_step, architecture) == {"tolist": 1.0}
