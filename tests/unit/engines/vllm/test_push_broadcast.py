"""Pushes by broadcast: who has which weights, also when a server dies in the middle, and what is said of the rest."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import torch

from rlvr.engines.vllm.extension.rlvr_vllm_group import UNREACHABLE
from rlvr.errors import UserError
from tests.unit.engines.tiny import plain_logprobs, prompt, sampling
from tests.unit.engines.vllm.fake import DiedError, FakeVllm, running
from tests.unit.engines.vllm.world import engine_of, fake_of, make_policy, train_a_step


def has_weights(fake: FakeVllm, model: torch.nn.Module) -> bool:
    """Whether the server has all of them, bit by bit."""
    own = dict(fake.weights.named_parameters())
    return all(torch.equal(value, own[name]) for name, value in model.named_parameters())


def test_pitfall_30_every_server_has_every_version_before_it_samples(tmp_path: Path) -> None:
    policy = make_policy()
    fakes = fake_of(policy), fake_of(policy, num_workers=2)
    with running(*fakes):
        engine = engine_of(policy, tmp_path, *fakes, sync="broadcast")
        for version in range(2):
            train_a_step(policy, version)
            engine.load_weights(version)
            assert all(has_weights(fake, policy.model) for fake in fakes)
            completion = asyncio.run(engine.generate(prompt(5), sampling()))
            ours = plain_logprobs(policy.model, prompt(5), completion)
            torch.testing.assert_close(torch.tensor(completion.behavior_logprobs), ours, atol=1e-5, rtol=0)
            assert completion.policy_version == version
        engine.close()
    assert not (tmp_path / "weights").exists(), "nothing goes by way of the disk"
    for fake in fakes:
        assert fake.calls.count("/collective_rpc receive_policy") == 2, "one group for both"


def test_pitfall_30_a_server_that_died_in_a_broadcast_gets_what_was_pushed_when_it_is_back(tmp_path: Path) -> None:
    policy = make_policy()
    fine, broken = fake_of(policy), fake_of(policy)
    notes: list[str] = []

    def die(worker: int, name: str) -> None:
        if broken.version == "partial" and fine.version == "partial" and pushes == [1] and name.endswith("norm.weight"):
            pushes.append(0)
            ends.append(threading.Thread(target=broken.die))
            ends[0].start()
            broken.died.wait()
            raise DiedError

    broken.on_tensor = die
    pushes, ends = [0], list[threading.Thread]()
    with running(fine, broken):
        engine = engine_of(policy, tmp_path, fine, broken, sync="broadcast", notes=notes, wait_s=60.0)
        engine.load_weights(0)
        train_a_step(policy)
        pushes[:] = [1]
        engine.load_weights(1)
        assert has_weights(fine, policy.model)
        assert notes == [f"lost the server {broken.url}: it gets the weights when it is back"]
        fine.die()  # the other one is all that is left
        ends[0].join()
        broken.start()
        pushed = {name: value.clone() for name, value in policy.model.named_parameters()}
        before = asyncio.run(engine.generate(prompt(5), sampling()))
        assert before.policy_version == 1
        train_a_step(policy, 7)  # as a trainer that is busy: what counts is what was pushed
        broken.die()
        broken.start()
        assert asyncio.run(engine.generate(prompt(5), sampling())) == before
        own = dict(broken.weights.named_parameters())
        assert all(torch.equal(value, own[name]) for name, value in pushed.items())


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (
            f"{UNREACHABLE} 127.0.0.1 port 5: refused",
            "let engine.broadcast_host name an address of this machine",
        ),
        ("2 workers came, and the servers tell of 1", "more workers than it tells of"),
        (
            "1 tensors kept other weights: lm_head.weight",
            "not take the weights (1 tensors kept other weights: lm_head.weight)",
        ),
    ],
)
def test_pitfall_30_what_cannot_work_ends_the_run_in_a_sentence(report: str, sentence: str, tmp_path: Path) -> None:
    policy = make_policy()
    answer = {"results": [{"error": "it is late", "cut_off": True}, {"error": report}]}
    fake = fake_of(policy)
    fake.fault = lambda route, count: (
        (lambda honest: answer) if fake.calls[-1:] == ["/collective_rpc receive_policy"] else None
    )
    with running(fake):
        engine = engine_of(policy, tmp_path, fake, sync="broadcast")
        with pytest.raises(UserError) as caught:
            engine.load_weights(0)
        assert fake.goes_on.is_set()
    assert sentence in str(caught.value)


def test_an_address_that_is_not_this_machines_is_refused(tmp_path: Path) -> None:
    policy = make_policy()
    fake = fake_of(policy)
    with running(fake):
        engine = engine_of(policy, tmp_path, fake, sync="broadcast", broadcast_host="192.0.2.1")
        with pytest.raises(UserError, match=r"engine.broadcast_host=192.0.2.1: .* name an address of this mach"):
            engine.load_weights(0)
        assert fake.goes_on.is_set()
