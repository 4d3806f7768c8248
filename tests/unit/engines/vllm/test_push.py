"""New weights are written, loaded and compared; a push that fails is an error."""

import asyncio
import copy
import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlvr.engines.vllm.push import FP32_TOLERANCE, HALF_TOLERANCE, PushProbe, allowed_gap
from rlvr.engines.vllm.server import GENERATE
from rlvr.engines.vllm.weights import WeightsFolder, full_weights
from rlvr.errors import UserError
from rlvr.models.adapters import add_adapters
from rlvr.models.policy import Adapters, HubPolicy
from rlvr.models.settings import LoraSettings
from rlvr.types import Completion
from tests.unit.engines.tiny import assert_exact, tiny_model
from tests.unit.engines.vllm.fake import DiedError, FakeVllm, Fault, refusal, running, wrong_at
from tests.unit.engines.vllm.world import (
    REQUEST,
    answer,
    assert_answers_with,
    engine_of,
    fake_of,
    make_policy,
    one_server,
    train_a_step,
)


def has_weights(fake: FakeVllm, model: torch.nn.Module) -> bool:
    """Whether the server has all of them, bit by bit."""
    served = dict(fake.weights.named_parameters())
    return all(torch.equal(value, served[name]) for name, value in model.named_parameters())


def test_pitfall_30_every_tensor_arrives(tmp_path: Path) -> None:
    with one_server(tmp_path, version=None) as (engine, fake, policy):
        for version in range(3):
            train_a_step(policy, version)
            engine.load_weights(version)
            assert has_weights(fake, policy.model)
            assert assert_answers_with(policy, engine).policy_version == engine.policy_version == version


def test_pitfall_30_the_probe_finds_a_head_with_old_weights(tmp_path: Path) -> None:
    # the server says that everything was loaded, as a tied head of vLLM on a CPU does
    sentence = r"does not sample from the pushed weights: after probe \d token \d+ has logprob -\S+ there and -\S+ in"
    with pytest.raises(UserError, match=sentence), one_server(tmp_path, keeps_head=True):
        pass


def test_pitfall_31_no_prefix_of_old_weights_is_used_again(tmp_path: Path) -> None:
    with one_server(tmp_path) as (engine, fake, policy):
        before = answer(engine)
        train_a_step(policy)
        fake.calls.clear()
        engine.load_weights(1)
        after = assert_answers_with(policy, engine)
    assert (after.policy_version, before.policy_version) == (1, 0)
    assert fake.calls == [
        "/weight_info",
        "/collective_rpc describe",
        "/v1/models",
        "/pause?mode=keep",
        "/update_weight_version",
        "/reset_prefix_cache?reset_running_requests=true",
        "/collective_rpc abort_update",
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/resume",
    ]


def test_pitfall_30_two_ranks_push_to_a_returned_server_once(tmp_path: Path) -> None:
    policy = make_policy()
    fake = fake_of(policy, on_update=lambda: time.sleep(0.3))
    with running(fake):
        first, second = (engine_of(policy, tmp_path, fake)._fleet for _ in range(2))
        first._locks = second._locks = tmp_path / "run"
        push = engine_of(policy, tmp_path, fake)._publish(1)
        first.announce(push)
        second.announce(push)
        fake.calls.clear()
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(lambda fleet: fleet._bring_up(fleet.members[0]), (first, second))) == [True, True]
        assert [fake.calls.count(f"/{verb}_weight_update") for verb in ("start", "finish")] == [1, 1]
        for fleet in (first, second):
            fleet.close()
    assert not list(tmp_path.glob("*.lock"))


def test_a_server_that_another_run_took_is_named(tmp_path: Path) -> None:
    with one_server(tmp_path) as (engine, fake, policy):
        engine_of(policy, tmp_path / "other", fake).load_weights(0)  # takes it: an ended run's server is free
        with pytest.raises(UserError, match=rf"{fake.url} has weights of another run now: give each run servers of it"):
            engine.load_weights(1)


def refused(tmp_path: Path, route: str, wrong: Any) -> str:
    """Error of a push during which one route goes wrong."""
    with one_server(tmp_path, version=None, fault=wrong_at(route, wrong)) as (engine, fake, _):
        with pytest.raises(UserError) as caught:
            engine.load_weights(0)
        assert fake.goes_on.is_set(), "a failed push leaves no server paused"
    return str(caught.value)


def test_pitfall_31_a_kept_prefix_cache_is_an_error(tmp_path: Path) -> None:
    said = refused(tmp_path, "/reset_prefix_cache", lambda honest: {"success": False})
    assert "did not drop its prefix cache" in said


def test_the_error_of_a_worker_ends_the_run(tmp_path: Path) -> None:
    said = refused(tmp_path, "/update_weights", refusal("x.weight has no place"))
    assert "not take the weights (ValueError: x.weight has no place" in said


@pytest.mark.slow
def test_a_push_goes_on_when_a_server_breaks_in_the_middle(tmp_path: Path) -> None:
    broken = {
        ("/update_weight_version", 0): Fault(drops=True),
        ("/start_weight_update", 0): Fault(status=503),
        ("/pause", 2): Fault(status=500),
        ("/collective_rpc", 6): Fault(body=b'{"results": ["no facts"]}'),
    }
    with one_server(tmp_path, fault=lambda route, count: broken.pop((route, count), None)) as (engine, _, _):
        assert answer(engine).policy_version == 0
    assert broken == {}


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["folder", "broadcast"])
def test_pitfall_30_tokens_of_half_loaded_weights_are_dropped(sync: str, tmp_path: Path) -> None:
    """A push that fails in the middle leaves weights that are neither the old nor the new ones."""

    def fault(route: str, count: int) -> Any:
        return halfway if route == "/update_weights" and breaks.pop() else None

    def halfway(honest: Any) -> Fault:
        found.append(fake.version)
        with torch.no_grad():
            fake.weights.lm_head.weight.zero_()
        return Fault(drops=True)

    breaks, found = [False, True, False], list[str]()
    with one_server(tmp_path, fault=fault, sync=sync) as (engine, fake, policy):
        train_a_step(policy)
        engine.load_weights(1)
        assert (found, breaks) == (["partial"], [])
        assert answer(engine).policy_version == 1


def test_pitfall_30_a_server_that_dies_in_a_push_gets_it_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.engines.vllm.weights.CHUNK_BYTES", 10_000)
    monkeypatch.setattr("rlvr.engines.vllm.fleet.POLL_S", 0.05)
    policy = make_policy()
    fine, broken = fake_of(policy), fake_of(policy)
    ends: list[threading.Thread] = []
    notes: list[str] = []

    def die_at_the_second_chunk() -> None:
        if fine.calls.count("/init_weight_transfer_engine") == 2 and not ends and broken.calls[-1] == broken.calls[-2]:
            ends.append(threading.Thread(target=broken.die))
            ends[0].start()
            broken.died.wait()
            raise DiedError

    broken.on_update = die_at_the_second_chunk
    with running(fine, broken):
        engine = engine_of(policy, tmp_path, fine, broken, sync="broadcast", notes=notes, wait_s=60.0)
        engine.load_weights(0)
        assert has_weights(fine, policy.model)
        assert has_weights(broken, policy.model)
        train_a_step(policy)
        engine.load_weights(1)
        assert has_weights(fine, policy.model)
        assert notes == [f"lost the server {broken.url}: it gets the weights when it is back"]
        fine.die()  # only the other one is left
        ends[0].join()
        broken.start()
        pushed = copy.deepcopy(policy.model)
        before = answer(engine)
        assert before.policy_version == 1
        train_a_step(policy, 7)  # as a busy trainer: the server gets what was pushed
        broken.die()
        broken.start()
        assert answer(engine) == before
        assert has_weights(broken, pushed)
    assert not (tmp_path / "weights").exists(), "a broadcast writes no file"


def test_an_address_that_is_not_this_machines_is_refused(tmp_path: Path) -> None:
    host = {"sync": "broadcast", "broadcast_host": "192.0.2.1"}
    sentence = r"engine.broadcast_host=192.0.2.1: this machine has no"
    with pytest.raises(UserError, match=sentence), one_server(tmp_path, **host):
        pass


def test_only_the_newest_versions_stay_on_the_disk(tmp_path: Path) -> None:
    root = tmp_path / "weights"
    with one_server(tmp_path, version=None) as (engine, _, _):
        for version in (7, 8, 9, 3):  # the last one: resumed from an earlier checkpoint
            engine.load_weights(version)
            kept = sorted(folder.name for folder in root.iterdir())
            assert kept[-1] == f"v{version:06d}"
            assert len(kept) <= 2
        engine.close()
    assert not root.exists()


def test_large_weights_are_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.engines.vllm.weights.MAX_FILE_BYTES", 10_000)
    policy = make_policy()
    weights = WeightsFolder(tmp_path)
    weights.write(1, full_weights(policy), torch.bfloat16)
    files = sorted(weights.of(1).iterdir())
    assert len(files) > 3
    found = {name: value for file in files for name, value in load_file(file).items()}
    own = dict(policy.model.named_parameters())
    assert found.keys() == own.keys()
    assert all(torch.equal(found[name], value.bfloat16()) for name, value in own.items())


def lora_policy() -> HubPolicy:
    model = tiny_model().eval()
    base = copy.deepcopy(model)
    settings = LoraSettings(enabled=True, r=3, alpha=6, target_modules=("q_proj", "down_proj"))
    add_adapters(model, settings, base="x", seed=1)
    adapters = Adapters(fresh_base=lambda: copy.deepcopy(base), merge_final=False, note="")
    return HubPolicy(model=model, tokenizer=make_policy().tokenizer, adapters=adapters)


def test_pitfall_32_the_merged_model_is_pushed(tmp_path: Path) -> None:
    policy = lora_policy()
    train_a_step(policy)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    merged = dict(policy.merged().model.named_parameters())
    pushed = dict(full_weights(policy))
    assert pushed.keys() == merged.keys()
    for name, value in merged.items():
        torch.testing.assert_close(pushed[name], value.detach(), atol=1e-7, rtol=0)
    assert all(torch.equal(value, before[name]) for name, value in policy.model.state_dict().items())
    fake = fake_of(policy.merged())
    with running(fake):
        engine = engine_of(policy, tmp_path, fake)
        engine.load_weights(0)  # probed against the model with its adapters
        assert_answers_with(policy, engine)


def test_an_adapter_needs_a_server_that_takes_it(tmp_path: Path) -> None:
    policy = lora_policy()
    without, small = fake_of(policy.merged()), fake_of(policy.merged(), facts={"max_lora_rank": 2})
    with running(without, small):
        with pytest.raises(UserError, match=r"up to rank 0, model.lora.r=3: start it with -- --enable-lora"):
            engine_of(policy, tmp_path, without, sync="adapter")
        with pytest.raises(UserError, match=r"takes adapters up to rank 2, model.lora.r=3"):
            engine_of(policy, tmp_path, small, sync="adapter")


def test_pitfall_30_a_late_request_finds_its_adapter(tmp_path: Path) -> None:
    policy = lora_policy()
    arrived, is_read, late = threading.Event(), threading.Event(), []

    def keep_one_unread(route: str, count: int) -> None:
        if route == GENERATE and late:
            late.clear()
            arrived.set()
            assert is_read.wait(60)

    assert policy.adapters is not None
    words = policy.tokenizer.get_vocab()
    fake = FakeVllm(policy.adapters.fresh_base(), words, keep_one_unread, facts={"max_lora_rank": 3})

    async def asked_before_the_push() -> Completion:
        engine = engine_of(policy, tmp_path, fake, sync="adapter", max_retries=0)
        for version in range(3):
            train_a_step(policy, version)
            engine.load_weights(version)
        late.append("the next request")
        waiting = asyncio.create_task(engine.generate(*REQUEST))
        await asyncio.to_thread(arrived.wait, 60)
        before = copy.deepcopy(policy.model)
        train_a_step(policy, 3)
        engine.load_weights(3)
        is_read.set()
        completion = await waiting
        assert_exact(before, [REQUEST], [completion])
        return completion

    with running(fake):
        assert set(asyncio.run(asked_before_the_push()).policy_versions) == {2}
    assert len(fake.adapters) == 2, "names of old versions are forgotten"


DTYPES = (torch.float32, torch.bfloat16)


def first(**more: Any) -> Any:
    """Changes values of an answer's first token."""

    def changed(answer: dict[str, Any]) -> dict[str, Any]:
        told = answer["choices"][0]["logprobs"]["content"][0]
        told |= {key: value(told[key]) for key, value in more.items()}
        return answer

    return changed


def worse_last(top: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*top[:-1], top[-1] | {"logprob": top[-1]["logprob"] - 0.5}]


@pytest.mark.parametrize(
    ("gap", "changes", "fits"),
    [
        (5e-5, {}, True),
        (3e-4, {}, False),
        (3e-4, {"max_logprob_gap": 1e-3}, True),
        (0.1, {"facts": {"dtype": "bfloat16"}}, True),
        (2.0, {"facts": {"dtype": "bfloat16"}}, False),
    ],
)
def test_how_far_a_server_may_be_from_the_trainer(
    gap: float, changes: dict[str, Any], fits: bool, tmp_path: Path
) -> None:
    wrong = first(top_logprobs=lambda top: [], logprob=lambda logprob: logprob - gap)
    with one_server(tmp_path, version=None, fault=wrong_at(GENERATE, wrong, 1), **changes) as (engine, _, _):
        if fits:
            engine.load_weights(0)
        else:
            with pytest.raises(UserError, match=r"after probe 1 token \d+ has logprob .* at most \S+ is allowed"):
                engine.load_weights(0)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"is_raw": True}, id="logprobs before the temperature"),
        pytest.param({"fault": wrong_at(GENERATE, first(top_logprobs=worse_last))}, id="a likely token not drawn"),
    ],
)
def test_pitfall_19_the_probe_finds_wrong_logprobs(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not sample from the pushed weights"), one_server(tmp_path, **wrong):
        pass


def test_a_noisy_model_may_be_as_far_from_its_server_as_its_noise() -> None:
    empty = PushProbe(prompts=(), logprobs=torch.zeros(0, 1))
    quiet, loud = (replace(empty, noise=dict.fromkeys(DTYPES, size)) for size in (0.0, 5.0))
    assert (allowed_gap(quiet, exact=True), allowed_gap(loud, exact=True)) == (FP32_TOLERANCE, 10 * 5.0)
    assert (allowed_gap(quiet, exact=False), allowed_gap(loud, exact=False)) == (HALF_TOLERANCE, 3 * 5.0)


def test_gaps_are_relative_where_logprobs_are_small() -> None:
    row = torch.full((1, 40), -50.0)
    row[0, 7] = -30.0
    probe = PushProbe(prompts=((1, 2),), logprobs=row)
    token = {"token_id": 7, "logprob": -30.003, "top_logprobs": [{"token_id": 8, "logprob": -50.01}]}
    spans = [{"version": "x", "start": 0, "end": 1}]
    choice = {"finish_reason": "length", "token_ids": [7], "logprobs": {"content": [token]}, "weight_versions": spans}
    gap = probe.gap(lambda *_: json.dumps({"choices": [choice]}).encode(), "policy", top=1)
    assert (gap.token, gap.size) == (8, pytest.approx(2e-4, rel=0.01))
    row[0, 8] = math.nan  # the gap of the other token is small, and comes later
    gap = probe.gap(lambda *_: json.dumps({"choices": [choice]}).encode(), "policy", top=1)
    assert gap.token == 8
    assert math.isnan(gap.size)
