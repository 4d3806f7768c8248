"""Sampling and training on one GPU against the CPU, and memory against the plan."""

import gc
import json
import threading
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
import torch

from rlvr.core.devices import exact_products
from rlvr.core.engine import LocalEngine
from rlvr.core.engine.graphs import CudaRecorder, GraphedRunner, Graphs
from rlvr.core.engine.request import Request
from rlvr.core.engine.shared_prefix import engine_attention
from rlvr.core.packing import microbatches
from rlvr.models.devices import choose_device
from rlvr.models.policy import HubPolicy
from rlvr.training.memory import Demand, available_memory, measure_activations, plan_memory
from tests.unit.core.engine.test_graphs import crowd
from tests.unit.core.tiny import gradient, tiny_batch, tiny_policy, tiny_trainer, update
from tests.unit.engines.tiny import ARCHITECTURES, assert_exact, generate, tiny_model

EIGHT_LONG = crowd(2, 4, max_tokens=75, stop_ids=frozenset())


@pytest.fixture
def device():
    """This process's GPU, multiplying as exactly as the CPU does."""
    with exact_products():
        yield choose_device("cuda")
    gc.collect()
    torch.cuda.empty_cache()


def moved(policy: HubPolicy, device: torch.device) -> HubPolicy:
    policy.model.to(device)
    if policy.value_head is not None:
        policy.value_head.to(device)
    return policy


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_graphs_give_the_logprobs_of_a_plain_forward(name, device):
    model, on_cpu = tiny_model(name).to(device), tiny_model(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = LocalEngine(model, max_batch_size=8, max_context_tokens=100)

    def assert_sampled(requests):
        assert_exact(on_cpu, requests, generate(engine, requests), atol=1e-4)

    runner = engine._scheduler.rows.runner
    if not isinstance(runner, GraphedRunner):
        assert name == "mixtral"  # float32 experts may be multiplied one by one, which waits for their token counts
        assert_sampled(crowd(4, 5))
        return
    for requests in (EIGHT_LONG, crowd(4, 5), crowd(4, 5)):
        assert_sampled(requests)
    assert len(runner.graphs.steps) > 1  # they were dropped where buffers had grown, and recorded again
    with torch.no_grad():
        for parameter in (*model.parameters(), *on_cpu.parameters()):
            parameter.mul_(0.9)
    engine.load_weights(1)
    assert_sampled(crowd(3, 3))
    runner.graphs.clear()
    assert_sampled(crowd(3, 3))
    assert not runner.graphs.gave_up


def test_a_step_that_waits_is_not_recorded_and_work_goes_on(device):
    graphs = Graphs(CudaRecorder())
    here = torch.cuda.current_stream()
    with pytest.warns(UserWarning, match="capturing"):
        found = graphs.run(0, lambda x: x[:, None] * float(x.sum()), [torch.ones(2, device=device)], most_rows=2)
    assert found.tolist() == [[2.0], [2.0]]
    assert torch.cuda.current_stream() == here
    again = Graphs(CudaRecorder())
    assert again.run(0, lambda x: x[:, None] * 3, [torch.ones(2, device=device)], most_rows=2).tolist() == [[3], [3]]
    assert not again.gave_up


def test_steps_are_recorded_while_another_thread_computes(device):
    """As with rollout.max_staleness=1: neither may disturb the other."""
    over = threading.Event()

    def compute() -> float:
        total = 0.0
        while not over.is_set():
            total += float(torch.randn(1000, 1000, device=device).square().mean())
            torch.cuda.empty_cache()
        return total

    model, on_cpu = tiny_model("llama").to(device), tiny_model("llama")
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(compute)
        try:
            engine = LocalEngine(model, max_batch_size=8, max_context_tokens=100)
            assert_exact(on_cpu, crowd(), generate(engine, crowd()), atol=1e-4)
        finally:
            over.set()
        assert beside.result() > 0
    runner = engine._scheduler.rows.runner
    assert isinstance(runner, GraphedRunner)
    assert not runner.graphs.gave_up


def test_a_decode_step_waits_for_the_gpu_once(device):
    model = tiny_model("llama").to(device)
    engine = LocalEngine(model, max_batch_size=8, max_context_tokens=100)
    generate(engine, EIGHT_LONG)
    for ids, sampling in EIGHT_LONG:
        engine._scheduler.submit(Request(prompt_ids=tuple(ids), sampling=sampling, future=Future()))
    with engine_attention(model), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            engine._step()
        caught.clear()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            engine._step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len([w for w in caught if "synchronizing" in str(w.message)]) == 1


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_an_update_is_that_of_the_cpu(algorithm, device):
    overrides = (f"algorithm={algorithm}", "trainer.precision=fp32", "algorithm.kl_coef=0.1")
    critic = algorithm == "ppo"
    here, there = tiny_policy(critic=critic), moved(tiny_policy(critic=critic), device)
    batch = tiny_batch(here)
    ours, theirs = (gradient(tiny_trainer(policy, *overrides), batch).cpu() for policy in (there, here))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def test_auto_computes_in_bfloat16(device):
    trainer = tiny_trainer(moved(tiny_policy(), device))
    assert trainer.parallel.bf16
    update(trainer, tiny_batch(tiny_policy()))


def test_an_update_takes_about_the_memory_of_the_plan(device):
    policy = moved(tiny_policy(num_hidden_layers=8, hidden_size=256, intermediate_size=2048, head_dim=128), device)
    trainer = tiny_trainer(policy, "trainer.microbatch_tokens=8192")
    batch = tiny_batch(tiny_policy(), num_groups=200)
    update(trainer, batch)
    shapes = [part.ids.shape for part in microbatches(batch, range(len(batch.ids)), trainer.packing)]
    shape = max(shapes, key=torch.Size.numel)
    torch.cuda.reset_peak_memory_stats()
    update(trainer, batch)
    demand = Demand(
        line_tokens=shape[1],
        num_rows=10_000,
        activations=measure_activations(policy, "shared", partial(trainer.parallel.autocast, policy.model.device)),
        keys_values_per_row=0,
        max_batch_size=0,
        num_references=0,
        teacher_bytes=0,
        copy_dtype=None,
    )
    planned = sum(plan_memory(policy, demand, setting=shape.numel(), available=available_memory(device)).parts.values())
    assert 0.7 * torch.cuda.max_memory_allocated() < planned < 1.6 * torch.cuda.max_memory_allocated()


def test_memory_that_runs_out_halves_the_microbatches(device):
    def make(tokens):
        policy = moved(tiny_policy(intermediate_size=8192), device)
        return tiny_trainer(policy, f"trainer.microbatch_tokens={tokens}", "trainer.precision=fp32")

    batch = tiny_batch(tiny_policy(), num_groups=200)  # 2 GB in one pass
    expected = gradient(make(256), batch)
    gc.collect()
    torch.cuda.empty_cache()
    trainer = make(16384)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (600 << 20)) / total)
    try:
        found = gradient(trainer, batch)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert 128 <= trainer.packing.max_tokens < 16384
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


def test_a_run_learns_where_it_is_told_to(tmp_path, device):
    from rlvr.cli.main import main

    for name in ("cuda", "cpu"):
        words = ["train", "--config-name", "rpn_test", f"trainer.device={name}", f"run_dir={tmp_path / name}"]
        assert main([*words, "trainer.precision=fp32", "trainer.max_steps=3", "evaluation.every=3"]) == 0
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("cuda", "cpu")]
    first, other = (json.loads(found[1]) for found in lines)
    assert first["policy/mismatch_kl"] < 1e-4
    assert first["reward/mean"] == pytest.approx(other["reward/mean"], abs=0.5)
