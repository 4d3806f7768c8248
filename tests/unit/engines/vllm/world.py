"""A small policy, and an engine over servers that are real but for vLLM."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rlvr.engines.settings import VllmEngineSettings
from rlvr.engines.vllm import VllmEngine
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_tokenizer
from tests.unit.engines.tiny import VOCABULARY, tiny_model
from tests.unit.engines.vllm.fake import FakeVllm, running

WORDS = ("<pad>", "<boe>", "<eoe>", *(f"w{i}" for i in range(VOCABULARY - 3)))


def make_policy(seed: int = 0) -> HubPolicy:
    """Random weights, as they would be trained."""
    return HubPolicy(model=tiny_model(seed=seed).eval(), tokenizer=build_tokenizer(WORDS))


def fake_of(policy: HubPolicy, **changes: Any) -> FakeVllm:
    """A server that was started on other weights of the same model."""
    other = copy.deepcopy(policy.model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    return FakeVllm(model=other, words=policy.tokenizer.get_vocab(), **changes)


def engine_of(
    policy: HubPolicy, folder: Path, *fakes: FakeVllm, notes: list[str] | None = None, **changes: Any
) -> VllmEngine:
    """With the servers, unless changed."""
    settings = {
        "urls": tuple(fake.url for fake in fakes),
        "max_batch_size": 64,
        "timeout_s": 120.0,
        "wait_s": 120.0,
        "max_retries": 3,
    }
    told = [] if notes is None else notes
    return VllmEngine(
        policy,
        VllmEngineSettings(**settings | changes),
        folder / "weights",
        max_context_tokens=128,
        on_note=told.append,
    )


def train_a_step(policy: HubPolicy, seed: int = 0) -> None:
    """Other weights, all of them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


@contextmanager
def one_server(
    folder: Path, *, version: int = 0, facts: Any = None, fault: Any = None, **settings: Any
) -> Iterator[tuple[VllmEngine, FakeVllm, HubPolicy]]:
    """An engine whose only server has the weights of `version`."""
    policy = make_policy()
    fake = fake_of(policy, **{key: value for key, value in {"facts": facts, "fault": fault}.items() if value})
    with running(fake):
        engine = engine_of(policy, folder, fake, **settings)
        engine.load_weights(version)
        yield engine, fake, policy
