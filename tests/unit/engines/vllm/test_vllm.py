"""A real vLLM server samples what the trainer would, after every push."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, Qwen2ForCausalLM

from rlvr.engines.settings import VllmEngineSettings
from rlvr.engines.vllm import VllmEngine
from rlvr.engines.vllm.server import RefusedError, Server
from rlvr.engines.vllm.weights import FILES, chunks, transfer
from rlvr.models.adapters import add_adapters
from rlvr.models.policy import Adapters, HubPolicy
from rlvr.models.settings import LoraSettings
from rlvr.seeding import derive_seed
from rlvr.types import Completion, SamplingParams, StopReason
from tests.unit.engines.tiny import generate, plain_logprobs
from tests.unit.engines.vllm.world import train_a_step
from tests.vllm_server import CONTEXT_TOKENS, NUM_SLOTS, save_tiny_qwen, vllm_server

pytestmark = pytest.mark.vllm

TOLERANCE = 1e-4
LONG = [3 + i * 7 % 60 for i in range(280)]  # two blocks of the prefix cache, which has 128 tokens in each on a CPU


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    save_tiny_qwen(folder)
    return folder


@pytest.fixture(scope="module")
def url(start: Path) -> Iterator[str]:
    with vllm_server(start, "--enable-lora", "--max-lora-rank", "8", "--max-loras", "4") as server:
        yield server.url


def policy_of(folder: Path) -> HubPolicy:
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return HubPolicy(model=model, tokenizer=AutoTokenizer.from_pretrained(folder))


def lora_policy(folder: Path) -> HubPolicy:
    policy = policy_of(folder)
    base = copy.deepcopy(policy.model)
    lora = LoraSettings(enabled=True, r=4, alpha=8, target_modules=("q_proj", "v_proj", "down_proj"))
    add_adapters(policy.model, lora, base=str(folder), seed=1)
    return replace(policy, adapters=Adapters(fresh_base=lambda: copy.deepcopy(base), merge_final=False, note=""))


def engine_of(policy: HubPolicy, url: str, folder: Path, sync: str = "folder", max_batch_size: int = 64) -> VllmEngine:
    settings = VllmEngineSettings(
        urls=(url,),
        sync=sync,  # type: ignore[arg-type]
        max_batch_size=max_batch_size,
        timeout_s=300.0,  # the first request takes long
        wait_s=10.0,
        max_retries=1,
    )
    return VllmEngine(policy, settings, folder / "weights", max_context_tokens=CONTEXT_TOKENS, on_note=print)


def params(seed: int = 0, **changes) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 12, "stop_ids": frozenset(), "seed": seed, "temperature": 0.7} | changes))


def sample(engine: VllmEngine, *requests: tuple[list[int], SamplingParams]) -> list[Completion]:
    return generate(engine, requests)  # type: ignore[arg-type]


def gap(model: PreTrainedModel, ids: list[int], completion: Completion, temperature: float = 0.7) -> float:
    ours = plain_logprobs(model, ids, completion, temperature)
    return float((ours - torch.tensor(completion.behavior_logprobs)).abs().max())


@torch.no_grad()
def greedy(model: PreTrainedModel, ids: list[int], count: int) -> tuple[int, ...]:
    sequence = list(ids)
    for _ in range(count):
        sequence.append(int(model(input_ids=torch.tensor([sequence]), use_cache=False).logits[0, -1].argmax()))
    return tuple(sequence[len(ids) :])


@pytest.mark.parametrize("sync", ["folder", "broadcast"])
def test_pitfall_30_trainer_and_server_agree_after_each_push(sync: str, start: Path, url: str, tmp_path: Path) -> None:
    # the head is the embedding's: vLLM 0.32 on a CPU keeps a copy of it that its own reloading forgets
    policy = policy_of(start)
    engine = engine_of(policy, url, tmp_path, sync)
    before: list[tuple[int, ...]] = []
    for version in range(1, 6):
        train_a_step(policy, version, 0.02)
        engine.load_weights(version)
        requests = [([3 + version, 5, 8], params(seed=i)) for i in range(8)] + [(LONG, params())]
        found = sample(engine, *requests)
        assert max(gap(policy.model, ids, one) for (ids, _), one in zip(requests, found, strict=True)) < TOLERANCE
        assert {v for one in found for v in one.policy_versions} == {version}
        (likeliest,) = sample(engine, ([3, 5, 8], params(temperature=0.0)))
        assert likeliest.token_ids == greedy(policy.model, [3, 5, 8], 12)
        assert gap(policy.model, [3, 5, 8], likeliest, temperature=1.0) < TOLERANCE
        before.append(likeliest.token_ids)
    assert len(set(before)) > 1, "the updates change nothing that could be seen"


def test_pitfall_31_a_push_drops_cached_prompts(start: Path, url: str, tmp_path: Path) -> None:
    policy = policy_of(start)
    engine = engine_of(policy, url, tmp_path)
    for version in (1, 2):
        train_a_step(policy, version, 0.02)
        engine.load_weights(version)
        (first,) = sample(engine, (LONG, params()))
        (cached,) = sample(engine, (LONG, params()))
        assert max(gap(policy.model, LONG, first), gap(policy.model, LONG, cached)) < TOLERANCE


def test_pitfall_36_seeds_of_a_group_differ_and_repeat(start: Path, url: str, tmp_path: Path) -> None:
    engine = engine_of(policy_of(start), url, tmp_path)
    engine.load_weights(0)
    seeds = [derive_seed(run, "train", 7, index) for run in (0, 1) for index in range(8)]
    first = sample(engine, *(([4, 5], params(seed=seed)) for seed in seeds))
    again = sample(engine, *(([4, 5], params(seed=seed)) for seed in reversed(seeds)))
    assert len({one.token_ids for one in first}) == len(seeds)
    assert [one.token_ids for one in reversed(again)] == [one.token_ids for one in first]


def test_pitfall_20_truncated_sampling_and_stop_tokens(start: Path, url: str, tmp_path: Path) -> None:
    policy = policy_of(start)
    engine = engine_of(policy, url, tmp_path)
    engine.load_weights(0)
    (cut,) = sample(engine, ([4, 5], params(top_k=3)))
    expected = [
        torch.log_softmax(_next_logits(policy.model, [4, 5, *cut.token_ids[:i]]).topk(3).values / 0.7, -1)
        for i in range(len(cut.token_ids))
    ]
    likeliest = [_next_logits(policy.model, [4, 5, *cut.token_ids[:i]]).topk(3).indices.tolist() for i in range(12)]
    for i, token in enumerate(cut.token_ids):
        assert cut.sampling_logprobs[i] == pytest.approx(float(expected[i][likeliest[i].index(token)]), abs=TOLERANCE)
    assert all(one != one for one in cut.behavior_logprobs)  # unknown
    (whole,) = sample(engine, ([4, 5], params(seed=3)))
    stop = whole.token_ids[5]
    first = whole.token_ids.index(stop)
    (ended,) = sample(engine, ([4, 5], params(seed=3, stop_ids=frozenset({stop}))))
    assert ended.token_ids == whole.token_ids[: first + 1]
    assert (ended.stop_reason, whole.stop_reason) == (StopReason.STOP, StopReason.LENGTH)
    (full,) = sample(engine, (LONG, params(max_tokens=1000)))
    assert len(LONG) + len(full.token_ids) == CONTEXT_TOKENS


@torch.no_grad()
def _next_logits(model: PreTrainedModel, ids: list[int]) -> Tensor:
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]


def metric(url: str, name: str) -> float:
    """A counter of the server, such as sampled tokens."""
    text = httpx2.get(url.removesuffix("/v1") + "/metrics").text
    (line,) = [line for line in text.splitlines() if line.startswith(f"vllm:{name}{{")]
    return float(line.split()[-1])


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it never came to that")


NUM_IN_FLIGHT, MAX_PUSHES = 4 * NUM_SLOTS, 20


def in_flight(engine: VllmEngine, policy: HubPolicy) -> list[Completion]:
    """64 requests, during which weights are pushed: none is lost, every token has the version that sampled it."""
    models = {1: copy.deepcopy(policy.model)}
    engine.load_weights(1)
    prompts = [[3 + i % 60, 7, *LONG[: i % 3 * 70]] for i in range(NUM_IN_FLIGHT)]
    num_tokens = [100 + i % 5 * 15 for i in range(NUM_IN_FLIGHT)]

    async def all_of_them() -> list[Completion]:
        requests = [
            asyncio.create_task(engine.generate(ids, params(seed=i, max_tokens=num_tokens[i])))
            for i, ids in enumerate(prompts)
        ]
        for version in range(2, 2 + MAX_PUSHES):
            _, waiting = await asyncio.wait(requests, timeout=0.1)
            if not waiting:
                break
            train_a_step(policy, version, 0.02)
            models[version] = copy.deepcopy(policy.model)
            engine.load_weights(version)
        return await asyncio.gather(*requests)

    completions = asyncio.run(all_of_them())
    assert [len(one.token_ids) for one in completions] == num_tokens
    for ids, one in zip(prompts, completions, strict=True):
        versions = one.policy_versions
        of_version = {version: plain_logprobs(models[version], ids, one, 0.7) for version in set(versions)}
        ours = torch.stack([of_version[version][t] for t, version in enumerate(versions)])
        torch.testing.assert_close(torch.tensor(one.behavior_logprobs), ours, atol=TOLERANCE, rtol=0)
    return completions


def test_pushing_while_64_requests_are_in_flight_loses_none(start: Path, url: str, tmp_path: Path) -> None:
    policy = policy_of(start)
    completions = in_flight(engine_of(policy, url, tmp_path), policy)
    assert any(one.version_changes for one in completions), "during the pushes none was being sampled"


def test_adapters_are_swapped_and_each_request_keeps_its_own(start: Path, url: str, tmp_path: Path) -> None:
    engine_of(policy_of(start), url, tmp_path / "base").load_weights(0)  # the model under the adapter
    policy = lora_policy(start)
    train_a_step(policy, 9, 0.02)
    engine = engine_of(policy, url, tmp_path, sync="adapter")
    completions = in_flight(engine, policy)
    assert engine.policy_version > 1, "all were done before the first swap"
    assert any(one.policy_version == 1 for one in completions)
    assert not any(one.version_changes for one in completions), "a request keeps its adapter"
    (after,) = sample(engine, ([4, 5], params()))
    assert after.policy_version == engine.policy_version
    assert gap(policy.model, [4, 5], after) < TOLERANCE
    assert len(httpx2.get(url + "/models").json()["data"]) == 3, "the model, and its two last adapters"


def test_pitfall_32_merged_adapters_are_pushed_as_whole_weights(start: Path, url: str, tmp_path: Path) -> None:
    policy = lora_policy(start)
    train_a_step(policy, 9, 0.02)
    engine = engine_of(policy, url, tmp_path)
    engine.load_weights(0)
    (found,) = sample(engine, ([4, 5], params()))
    assert gap(policy.model, [4, 5], found) < TOLERANCE


def broken_weights(policy: HubPolicy, folder: Path) -> list[tuple[Path, str]]:
    """Files that are not the model, and the server's error of each."""
    own = {name: value.detach().clone() for name, value in policy.model.named_parameters()}
    key = "model.layers.1.self_attn.k_proj.weight"  # a part of a fused tensor: vLLM would take memory for the rest
    norm = "model.layers.0.input_layernorm.weight"

    def without(missing: str) -> dict[str, Tensor]:
        return {name: value for name, value in own.items() if name != missing}

    wrong = {
        "no part": (without(key), "1 tensors are missing, as .*qkv_proj"),
        "no norm": (without(norm), f"1 tensors are missing, as {norm}"),
        "more": (own | {"model.layers.2.mlp.up_proj.weight": own["model.norm.weight"].clone()}, "layers.2"),
        "other names": ({f"x.{name}": value for name, value in own.items()}, "x"),
        "another vocabulary": (own | {"model.embed_tokens.weight": torch.zeros(65, 64)}, "AssertionError"),
    }
    found = [(folder / "nothing", "no safetensors file at")]
    for name, (tensors, sentence) in wrong.items():
        found.append((folder / f"{name}.safetensors", sentence))
        save_file(tensors, found[-1][0])
    (folder / "damaged.safetensors").write_bytes((folder / "other names.safetensors").read_bytes()[:-500])
    torch.save(own, folder / "pickle.safetensors")
    return [*found, (folder / "damaged.safetensors", "Error"), (folder / "pickle.safetensors", "Error")]


def test_pitfall_30_wrong_weights_are_refused(start: Path, url: str, tmp_path: Path) -> None:
    policy = policy_of(start)
    engine = engine_of(policy, url, tmp_path)
    engine.load_weights(0)
    (before,) = sample(engine, ([4, 5], params()))
    server = Server(url, timeout_s=60.0)
    facts = server.describe()
    for version, (path, sentence) in enumerate(broken_weights(policy, tmp_path), 1):
        server.call("/pause?mode=keep")
        server.name_version("partial")
        with pytest.raises(RefusedError, match=sentence):
            transfer(server, facts, path, "broken")
        server.call("/resume")
        assert server.weight_version() == "partial"
        engine.load_weights(version)
        (after,) = sample(engine, ([4, 5], params()))
        assert (after.token_ids, after.policy_version) == (before.token_ids, version), path
        assert gap(policy.model, [4, 5], after) < TOLERANCE


def test_pitfall_30_after_a_broken_push_the_next_one_loads(
    start: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlvr.engines.vllm.weights.CHUNK_BYTES", 10_000)
    policy = policy_of(start)
    engine = engine_of(policy, url, tmp_path, "broadcast")
    engine.load_weights(0)
    server = Server(url, timeout_s=60.0)
    server.call("/pause?mode=keep")
    server.call("/init_weight_transfer_engine", {"init_info": FILES})
    server.call("/start_weight_update")
    train_a_step(policy, 1, 0.02)
    server.update(next(chunks({name: -value.detach() for name, value in policy.model.named_parameters()})))
    # and here the trainer is killed
    engine.load_weights(1)
    (after,) = sample(engine, ([4, 5], params()))
    assert gap(policy.model, [4, 5], after) < TOLERANCE


def test_a_given_up_request_is_ended_on_the_server(start: Path, url: str, tmp_path: Path) -> None:
    engine = engine_of(policy_of(start), url, tmp_path, max_batch_size=300)
    engine.load_weights(0)

    async def give_up() -> None:
        before = metric(url, "generation_tokens_total")
        calls = [engine.generate([4], params(seed=i, max_tokens=310)) for i in range(300)]  # not done too soon
        tasks = [asyncio.create_task(call) for call in calls]
        await until(lambda: metric(url, "num_requests_running") > 0)
        given_up = [task for task in tasks if task.cancel()]
        await asyncio.wait(tasks)
        assert given_up
        assert all(task.cancelled() for task in given_up)
        await until(lambda: metric(url, "num_requests_running") == 0)
        assert metric(url, "generation_tokens_total") - before < 300 * 310, "it went on after the request was given up"

    asyncio.run(give_up())
