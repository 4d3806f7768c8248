"""From the configuration to the arguments of the memory plan."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rlvr.run.memory
from rlvr.core.world import ALONE, World
from rlvr.run.memory import agreed, plan_run
from rlvr.training.memory import MemoryPlan
from tests.unit.core.tiny import tiny_config, tiny_policy

REWARDED = ("algorithm.reward_coef=1", "rollout.group_size=8")
LONGEST = 7
"""Tokens of the longest prompt."""


def plan(
    *overrides: str, name: str = "rpn", world: World = ALONE, longest: int = LONGEST, tools: int = 0, **more: Any
) -> MemoryPlan:
    """Of a policy of two layers with a context of 256; `tools`: tokens that describe them."""
    policy = tiny_policy(max_position_embeddings=256)
    chat: Any = SimpleNamespace(encode_prompt=lambda length, tools: [0] * (length + tools))
    task: Any = SimpleNamespace(
        train_example=lambda index: SimpleNamespace(messages=min(1 + index, longest)),
        env=lambda example: SimpleNamespace(tools=tools),
    )
    config = tiny_config("rollout.max_completion_tokens=20", *overrides, name=name)
    return plan_run(config, policy, chat, task, world=world, **{"layout": "shared", **more})


def asked_about(found: MemoryPlan) -> str:
    """Tokens of the longest row in the plan."""
    return found.lines[0].partition("rows of up to ")[2].partition(":")[0]


def test_the_longest_row_fits_the_context():
    assert asked_about(plan()) == "27"
    assert asked_about(plan("task.max_turns=3", name="two_hop")) == "67"
    assert asked_about(plan(tools=50)) == "77"  # they stand in the prompt
    assert asked_about(plan(longest=0)) == "20"  # the environment begins
    assert asked_about(plan(longest_row=60)) == "60"  # of a demonstration
    assert asked_about(plan(longest_row=20)) == "27"
    assert asked_about(plan("rollout.max_completion_tokens=300", "model.max_context_tokens=400")) == "256"


def test_pitfall_33_each_copy_of_the_weights_is_planned_for():
    alone = plan().parts
    assert (alone["reference"], alone["sampler"]) == (0, 0)
    assert plan("algorithm.kl_coef=0.1").parts["reference"] == alone["weights"]
    copy = ("algorithm=distill", "algorithm.teacher=start", "algorithm.refresh_every=2", *REWARDED)
    both = plan(*copy, "algorithm.kl_coef=0.1")  # the start, and one that moves
    assert both.parts["reference"] == 2 * alone["weights"]
    assert plan("rollout.max_staleness=1").parts["sampler"] == alone["weights"]
    cut = plan("trainer.strategy=fsdp2", world=World(size=2)).parts
    assert cut["weights"] == -(-alone["weights"] // 2)
    assert cut["sampler"] == alone["weights"]  # it samples from all of them
    assert plan("trainer.strategy=ddp", world=World(size=2)).parts["weights"] == alone["weights"]


def test_a_teacher_has_half_the_bytes_where_products_are_in_bfloat16(tmp_path: Path):
    tiny_policy().save(tmp_path)
    of_teacher = ("algorithm=distill", f"algorithm.teacher={tmp_path}", "engine.dtype=float32")
    whole = plan(*of_teacher, "trainer.precision=fp32").parts["teachers"]
    assert whole == plan(*of_teacher, "trainer.precision=fp16").parts["teachers"] > 0
    assert plan(*of_teacher, "trainer.precision=bf16").parts["teachers"] == whole // 2


@pytest.mark.slow
def test_the_cache_is_of_completions_sampled_together():
    def of(*overrides: str) -> int:
        return plan(*overrides).parts["keys and values"]

    few = ("rollout.prompts_per_step=2", "rollout.group_size=4", "evaluation.num_examples=3")
    assert of(*few) == of(*few, "evaluation.num_examples=8") == 8 * of("engine.max_batch_size=1")
    assert of(*few, "evaluation.num_examples=16") == 2 * of(*few)
    assert of(*few, "engine.max_batch_size=4") == of(*few) // 2
    assert of("engine=vllm", "engine.urls=[http://127.0.0.1:1]") == 0


def test_each_part_follows_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch):
    whole = "trainer.microbatch_tokens=100000"
    assert plan().parts["libraries"] > 0
    assert plan(whole, "algorithm.num_minibatches=2").parts["activations"] < plan(whole).parts["activations"]
    assert plan(whole).parts["activations"] < plan(whole, layout="packed").parts["activations"], "prompts are shared"
    kept = [plan(f"engine.dtype={dtype}").parts["keys and values"] for dtype in ("bfloat16", "float32")]
    assert 2 * kept[0] == kept[1]
    before = plan().parts["sampler"]
    monkeypatch.setattr("rlvr.training.memory.packed_bytes", lambda model, dtype: 1000)
    assert plan().parts["sampler"] == before + 1000


def test_gpu_memory_decides_unless_weights_are_offloaded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rlvr.run.memory, "available_memory", lambda device: 1 << 40)
    few = ("rollout.prompts_per_step=1", "rollout.group_size=2")
    assert plan(*few).microbatch_tokens == 2 * 27
    assert plan(*few, "trainer.strategy=fsdp2", "trainer.cpu_offload=true").microbatch_tokens == 2048


def test_every_rank_gets_the_smallest_of_their_microbatches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(World, "gather", lambda self, tokens: [tokens, 512, 4096])
    assert agreed(plan(), World(size=3)).microbatch_tokens == 512


def test_fewer_completions_are_sampled_where_memory_is_short(monkeypatch: pytest.MonkeyPatch):
    least = sum(plan("engine.max_batch_size=1", "trainer.microbatch_tokens=27").parts.values())
    monkeypatch.setattr(rlvr.run.memory, "available_memory", lambda device: least + 100)
    found = plan()
    assert found.samples_fewer
    assert found.max_batch_size == 1
