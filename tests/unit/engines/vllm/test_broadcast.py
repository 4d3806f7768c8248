"""Weights over a process group: to several servers and workers at once, and whatever breaks in the middle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch

from tests.unit.engines.tiny import plain_logprobs, prompt, sampling
from tests.unit.engines.vllm.fake import FakeVllm, running
from tests.unit.engines.vllm.world import engine_of, fake_of, make_policy, train_a_step


def has_weights(fake: FakeVllm, model: torch.nn.Module) -> bool:
    """Whether the server has all of them, bit by bit."""
    own = dict(fake.weights.named_parameters())
    return all(torch.equal(value, own[name]) for name, value in model.named_parameters())


def test_pitfall_30_every_server_and_worker_gets_every_tensor_of_every_version(tmp_path: Path) -> None:
    policy = make_policy()
    fakes = fake_of(policy), fake_of(policy, num_workers=2)
    with running(*fakes):
        engine = engine_of(policy, tmp_path, *fakes, sync="broadcast")
        for version in range(3):
            train_a_step(policy, version)
            engine.load_weights(version)
            assert all(has_weights(fake, policy.model) for fake in fakes)
            completion = asyncio.run(engine.generate(prompt(5), sampling()))
            ours = plain_logprobs(policy.model, prompt(5), completion)
            torch.testing.assert_close(torch.tensor(completion.behavior_logprobs), ours, atol=1e-5, rtol=0)
            assert completion.policy_version == version
        engine.close()
    assert not (tmp_path / "weights").exists(), "nothing goes by way of the disk"
