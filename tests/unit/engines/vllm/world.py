"""A small policy, and an engine over servers that are real but for vLLM."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from rlvr.engines.settings import VllmEngineSettings
from rlvr.engines.vllm import VllmEngine
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_tokenizer
from rlvr.types import Completion
from tests.unit.engines.tiny import VOCABULARY, assert_exact, generate, prompt, sampling, tiny_model
from tests.unit.engines.vllm.fake import FakeVllm, running

WORDS = ("<pad>", "<boe>", "<eoe>", *(f"w{i}" for i in range(VOCABULARY - 3)))
REQUEST = (prompt(5), sampling())
OF_SERVER = {field.name for field in fields(FakeVllm)}


def make_policy(seed: int = 0) -> HubPolicy:
    """Random weights, as they would be trained."""
    return HubPolicy(model=tiny_model(seed=seed).eval(), tokenizer=build_tokenizer(WORDS))


def fake_of(policy: HubPolicy | None = None, **changes: Any) -> FakeVllm:
    """A server that was started on other weights of the same model."""
    policy = policy or make_policy()
    other = copy.deepcopy(policy.model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    return FakeVllm(model=other, words=policy.tokenizer.get_vocab(), **changes)


def engine_of(
    policy: HubPolicy, folder: Path, *fakes: FakeVllm, notes: list[str] | None = None, **changes: Any
) -> VllmEngine:
    """With the servers, unless changed."""
    settings = {"urls": tuple(fake.url for fake in fakes), "max_batch_size": 64, "timeout_s": 120.0, "wait_s": 120.0}
    told = [] if notes is None else notes
    return VllmEngine(
        policy,
        VllmEngineSettings(**settings | {"max_retries": 3} | changes),
        folder / "weights",
        max_context_tokens=128,
        on_note=told.append,
    )


def train_a_step(policy: HubPolicy, seed: int = 0, size: float = 0.05) -> None:
    """Change all weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


@contextmanager
def one_server(
    folder: Path, *, version: int | None = 0, policy: HubPolicy | None = None, **changes: Any
) -> Iterator[tuple[VllmEngine, FakeVllm, HubPolicy]]:
    """An engine whose only server has the weights of `version`; `changes` are of the server or of the engine."""
    policy = policy or make_policy()
    fake = fake_of(policy, **{key: changes.pop(key) for key in OF_SERVER & changes.keys()})
    with running(fake):
        engine = engine_of(policy, folder, fake, **changes)
        if version is not None:
            engine.load_weights(version)
        yield engine, fake, policy


@contextmanager
def two_servers(folder: Path, **settings: Any) -> Iterator[tuple[VllmEngine, Sequence[FakeVllm], HubPolicy]]:
    """The same with two servers, which have the weights of version 0."""
    policy = make_policy()
    fakes = fake_of(policy), fake_of(policy)
    with running(*fakes):
        engine = engine_of(policy, folder, *fakes, **settings)
        engine.load_weights(0)
        yield engine, fakes, policy


def answer(engine: VllmEngine) -> Completion:
    """Completion of REQUEST."""
    return generate(engine, [REQUEST])[0]


def assert_answers_with(policy: HubPolicy, engine: VllmEngine) -> Completion:
    """The completion of REQUEST is sampled from the policy's weights."""
    completion = answer(engine)
    assert_exact(policy.model, [REQUEST], [completion])
    return completion
