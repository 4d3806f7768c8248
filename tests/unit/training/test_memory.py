"""The memory plan against memory that is really taken."""

import gc
import math
import weakref
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlvr.core.engine import LocalEngine
from rlvr.core.packing import microbatches
from rlvr.errors import ConfigError
from rlvr.models.recompute import recompute_in_backward
from rlvr.training import memory
from rlvr.training.memory import (
    Activations,
    Demand,
    available_memory,
    keys_values_bytes,
    measure_activations,
    plan_memory,
    weight_bytes,
)
from rlvr.types import SamplingParams
from tests.unit.core.tiny import VOCABULARY, tiny_batch, tiny_policy, tiny_trainer, update
from tests.unit.engines.tiny import generate
from tests.unit.models.checkpoints import adapted, save_model

WIDE = {"hidden_size": 128, "intermediate_size": 512, "head_dim": 64, "max_position_embeddings": 512}
NOTHING = Activations(fixed=0, per_token=0, per_pair=0)


class Meter(TorchDispatchMode):
    """Counts tensors where they are made: inside, `peak` is the most new memory that was alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())

    def _gone(self, name: int, num_bytes: int) -> None:
        self._seen.discard(name)
        self.live -= num_bytes


def demand(**changes):
    """Of a run of 64 rows of up to 100 tokens."""
    values = {"line_tokens": 100, "num_rows": 64, "max_batch_size": 64}
    values |= {
        "activations": NOTHING,
        "keys_values_per_row": 0,
        "num_references": 0,
        "teacher_bytes": 0,
        "copy_dtype": None,
    }
    return Demand(**(values | changes))


def held(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("changes", [{"architecture": "qwen2"}, {"architecture": "llama", "critic": True}])
def test_pitfall_33_weights_and_moments_are_planned_to_the_byte(changes):
    policy = tiny_policy(**changes)
    trainer = tiny_trainer(policy, *(["algorithm=ppo"] if policy.value_head else []))
    update(trainer, tiny_batch(policy))
    parts = plan_memory(policy, demand(num_references=1, copy_dtype=torch.float32), setting=2048).parts
    state = [value for values in trainer.optimizer.state.values() for value in values.values()]
    assert parts["gradients"] == held(p.grad for p in policy.parameters() if p.grad is not None)
    assert parts["optimizer"] == held(state)
    head = list(policy.value_head.parameters()) if policy.value_head else []
    assert parts["weights"] == held([*policy.model.parameters(), *policy.model.buffers(), *head])
    assert parts["reference"] == parts["sampler"] == parts["weights"]
    half = plan_memory(policy, demand(copy_dtype=torch.bfloat16), setting=2048).parts["sampler"]
    assert half == parts["weights"] - held(policy.model.parameters()) // 2


@pytest.mark.parametrize("kind", [{}, {"dtype": "bfloat16"}, {"load_in_4bit": True}, {"load_in_8bit": True}])
def test_adapters_alone_have_gradients_and_need_no_reference(tmp_path, kind):
    policy = adapted(save_model(tmp_path / "model"), **kind)
    parts = plan_memory(policy, demand(num_references=1), setting=2048).parts
    trained = sum(p.numel() for p in policy.parameters())
    assert parts["gradients"] == 4 * trained
    assert parts["optimizer"] == 8 * trained + 4 * len(list(policy.parameters()))
    assert parts["reference"] == 0
    assert parts["weights"] == weight_bytes(policy)
    assert parts["weights"] >= held(policy.model.parameters())
    cut = plan_memory(policy, demand(num_shards=4), setting=2048).parts  # every rank has all of the adapters
    assert (cut["gradients"], cut["optimizer"]) == (parts["gradients"], parts["optimizer"])


SIX_LAYERS = {"num_hidden_layers": 6, **WIDE}
LONG = {"max_position_embeddings": 512}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "overrides", "recomputed"),
    [
        (SIX_LAYERS, (), False),
        (SIX_LAYERS, (), True),
        pytest.param(SIX_LAYERS, ("trainer.precision=bf16",), False, marks=pytest.mark.long),
        pytest.param(
            {"num_hidden_layers": 4, "attn_implementation": "eager", **LONG}, (), False, marks=pytest.mark.long
        ),
        pytest.param({"vocab_size": 30_000, **LONG}, (), False, marks=pytest.mark.long),
    ],
    ids=["llama", "recomputed", "bf16", "eager", "a large vocabulary"],
)
def test_activations_and_logits_are_what_an_update_takes(changes, overrides, recomputed):
    policy = tiny_policy(**changes)
    if recomputed:
        recompute_in_backward(policy.model)
    trainer = tiny_trainer(policy, "trainer.microbatch_tokens=1024", *overrides)
    batch = tiny_batch(policy, num_groups=30)
    update(trainer, batch)  # the moments are there now
    batch = trainer.objective.advantages(trainer.score(batch))
    shapes = [part.ids.shape for part in microbatches(batch, range(len(batch.ids)), trainer.packing)]
    shape = max(shapes, key=torch.Size.numel)
    gc.collect()
    with Meter() as meter:
        trainer.update(batch, 0)
    activations = measure_activations(policy, "shared", partial(trainer.parallel.autocast, policy.model.device))
    asked = demand(line_tokens=shape[1], num_rows=1000, activations=activations)
    parts = plan_memory(policy, asked, setting=shape.numel()).parts
    assert 0.8 * meter.peak < parts["activations"] + parts["logits"] < 1.5 * meter.peak


def test_three_small_passes_tell_the_three_parts_apart(monkeypatch):
    exact = Activations(fixed=7, per_token=5, per_pair=3)
    taken = lambda policy, layout, lines, length: 7 + lines * (5 * length + 3 * length**2)  # noqa: E731
    monkeypatch.setattr(memory, "_kept_bytes", taken)
    assert measure_activations(tiny_policy(), "shared") == exact


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0.0 kB"), (999_900, "999.9 kB"), (10**6, "1.0 MB"), (999_900_000, "999.9 MB"), (10**9, "1.0 GB")],
)
def test_sizes_are_in_the_largest_unit_that_fits(count, text):
    assert memory.size_text(count) == text


def test_keys_and_values_are_what_the_engine_holds():
    policy = tiny_policy(max_position_embeddings=256)
    engine = LocalEngine(policy.model, max_batch_size=8, max_context_tokens=256)
    sampling = [SamplingParams(max_tokens=120, temperature=1.0, stop_ids=frozenset(), seed=i) for i in range(8)]
    generate(engine, [([1, 2, 3], settings) for settings in sampling])
    taken = held(engine._scheduler.rows.runner._cache.rows._made.values())
    assert 0.7 * taken < 8 * keys_values_bytes(policy, 123) < 1.5 * taken


def test_a_prompt_is_kept_once_and_does_not_grow():
    policy = tiny_policy()
    column = 4 * 2 * 2 * 16  # float32: keys and values, layers, width
    assert keys_values_bytes(policy, 20 + 33, prompt_tokens=33) == column * (48 + 2 * 32)


def test_a_tied_embedding_has_two_gradients_until_they_are_added():
    tied, apart = tiny_policy("qwen2", vocab_size=3000), tiny_policy(vocab_size=3000)
    parts = [plan_memory(policy, demand(), setting=64).parts["unadded"] for policy in (tied, apart)]
    assert parts == [2 * 4 * 3000 * 32, 4 * 3000 * 32]


def test_a_gpu_keeps_one_set_of_keys_and_recorded_logits():
    policy = tiny_policy()
    on_cpu = keys_values_bytes(policy, 20)
    assert keys_values_bytes(policy, 20, recomputed=True) == 2 * on_cpu
    assert on_cpu == 2 * 4 * (2 * 2 * 16 * 32)  # twice, float32: keys and values, layers, width, columns
    assert [keys_values_bytes(policy, tokens) // on_cpu for tokens in (17, 32, 33)] == [1, 1, 2]
    assert keys_values_bytes(policy, 16) == keys_values_bytes(policy, 1) == on_cpu // 2
    policy.model.to("meta")
    assert keys_values_bytes(policy, 20) == on_cpu // 2 + 2 * 4 * 17


BY_TOKEN = Activations(fixed=1000, per_token=1000, per_pair=1)


def test_on_a_cpu_auto_is_a_number_and_nothing_is_compared():
    policy = tiny_policy()
    assert plan_memory(policy, demand(), setting="auto").microbatch_tokens == 2048
    assert plan_memory(policy, demand(activations=BY_TOKEN), setting=77).microbatch_tokens == 77


def test_a_plan_without_anything_else_by_hand():
    policy = tiny_policy()
    own, trained = weight_bytes(policy), held(policy.parameters())
    asked = demand(activations=Activations(fixed=7, per_token=5, per_pair=3), num_rows=2, num_shards=3)
    assert plan_memory(policy, asked, setting=1000).parts == {
        "libraries": 0,
        "unadded": max(parameter.nbytes for parameter in policy.parameters()),
        "weights": math.ceil(own / 3),
        "gradients": math.ceil(trained / 3),
        "optimizer": math.ceil(2 * trained / 3) + 4 * len(list(policy.parameters())),
        "reference": 0,
        "teachers": 0,
        "sampler": 0,
        "activations": 7 + 200 * 5 + 200 * 100 * 3,  # both rows
        "logits": memory.LOGITS_COPIES * 4 * 200 * len(VOCABULARY),
        "keys and values": 0,
    }
    fewer = plan_memory(
        policy, replace(asked, batch_tokens=150, predicted_tokens=30, library_bytes=9), setting=1000
    ).parts
    assert (fewer["activations"], fewer["libraries"]) == (7 + 150 * 5 + 150 * 100 * 3, 9)
    assert fewer["logits"] == memory.LOGITS_COPIES * 4 * 30 * len(VOCABULARY)
    of_others = plan_memory(policy, replace(asked, num_references=2, teacher_bytes=10), setting=1000).parts
    assert (of_others["reference"], of_others["teachers"]) == (2 * math.ceil(own / 3), 4)


@pytest.mark.parametrize(("width", "tokens"), [(64, 2048), (512, 512)])
def test_a_wide_frozen_model_takes_short_passes_on_a_cpu(tmp_path, width, tokens):
    policy = adapted(save_model(tmp_path / "base", hidden_size=width, head_dim=16))
    assert plan_memory(policy, demand(), setting="auto").microbatch_tokens == tokens
    assert plan_memory(policy, demand(), setting=700).microbatch_tokens == 700
    assert plan_memory(replace(policy, adapters=None), demand(), setting="auto").microbatch_tokens == 2048


def test_auto_is_the_most_that_fits():
    policy = tiny_policy()
    asked = demand(activations=BY_TOKEN)
    seen = set()
    for available in range(450_000, 10_000_000, 200_000):
        plan = plan_memory(policy, asked, setting="auto", available=available)
        assert sum(plan.parts.values()) <= available
        twice = sum(plan_memory(policy, asked, setting=2 * plan.microbatch_tokens).parts.values())
        assert twice > available or plan.microbatch_tokens >= asked.num_rows * asked.line_tokens
        seen.add(plan.microbatch_tokens)
    assert sorted(seen) == [100 * 2**i for i in range(7)]
    assert all(b == 2 * a for a, b in pairwise(sorted(seen)))


def test_completions_that_do_not_fit_are_sampled_in_parts():
    policy = tiny_policy()
    asked = demand(keys_values_per_row=10_000)
    free = sum(plan_memory(policy, replace(asked, max_batch_size=0), setting=100).parts.values())
    plan = plan_memory(policy, asked, setting="auto", available=free + 170_000)
    assert (plan.max_batch_size, plan.samples_fewer) == (16, True)
    assert "engine.max_batch_size=64: the keys and values of that many completions do not fit" in plan.lines[1]
    roomy = plan_memory(policy, asked, setting="auto", available=free + 10_000_000)
    assert (roomy.max_batch_size, roomy.samples_fewer, len(roomy.lines)) == (64, False, 1)


def test_what_takes_all_memory_to_the_byte_fits():
    policy = tiny_policy()

    def plan(available: int, *, setting="auto", **changes):
        return plan_memory(policy, demand(keys_values_per_row=10_000, **changes), setting=setting, available=available)

    def taken(tokens: int, **changes) -> int:
        return sum(plan_memory(policy, demand(keys_values_per_row=10_000, **changes), setting=tokens).parts.values())

    for count in (64, 16, 1):
        room = taken(100, max_batch_size=count)
        assert plan(room).max_batch_size == count
    with pytest.raises(ConfigError):
        plan(room - 1)
    assert plan(taken(100, max_batch_size=16) - 1).max_batch_size == 8
    by_token = {"activations": BY_TOKEN, "max_batch_size": 1}
    room = taken(400, **by_token)
    assert plan(room, **by_token).microbatch_tokens == 400
    assert plan(room - 1, **by_token).microbatch_tokens == 200
    assert [len(plan(room, setting=setting, **by_token).lines) for setting in (400, 401)] == [1, 2]


def test_a_gpu_gives_what_is_free_and_what_this_process_holds(monkeypatch):
    given = SimpleNamespace(mem_get_info=lambda device: (1000, 9000), memory_reserved=lambda device: 500)
    monkeypatch.setattr(torch, "get_device_module", lambda device: given)
    assert available_memory(torch.device("cuda")) == 1350  # nine tenths: the rest is lost to fragmentation
    monkeypatch.undo()
    assert available_memory(torch.device("cpu")) is None


def test_a_run_that_cannot_fit_is_one_sentence():
    policy = tiny_policy()
    with pytest.raises(ConfigError) as error:
        plan_memory(policy, demand(activations=BY_TOKEN), setting="auto", available=100_000)
    said = str(error.value)
    assert said.startswith("the run needs 410.2 kB of memory and may use 100.0 kB, even with one row of 100 tokens at")
    assert "(weights 66.5 kB, gradients 66.4 kB, unadded 6.1 kB, optimizer 132.9 kB, " in said
    assert said.endswith("or train adapters with model.lora.enabled=true.")
