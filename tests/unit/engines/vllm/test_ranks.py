"""Several ranks and the same servers: one rank pushes, none samples before, and an error of one ends all."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Literal

import pytest
import torch

from rlvr.core.world import ALONE, World
from rlvr.engines.settings import VllmEngineSettings
from rlvr.engines.vllm import VllmEngine
from rlvr.errors import UserError
from rlvr.types import Completion
from tests.ranks import Ranks
from tests.unit.core.tiny import tiny_policy, tiny_trainer
from tests.unit.engines.tiny import prompt, sampling
from tests.unit.engines.vllm.fake import running
from tests.unit.engines.vllm.world import fake_of, make_policy, train_a_step

pytestmark = pytest.mark.slow

Sync = Literal["folder", "broadcast"]


def settings_of(urls: tuple[str, ...], sync: Sync = "folder") -> VllmEngineSettings:
    return VllmEngineSettings(urls=urls, sync=sync, max_batch_size=8, timeout_s=120.0, wait_s=60.0, max_retries=2)


def completions(
    world: World, urls: tuple[str, ...], folder: Path, sync: Sync = "folder"
) -> tuple[list[Completion], str | None]:
    """This rank's share of 12 completions of each of two versions, or its error."""
    policy = make_policy()
    engine = VllmEngine(policy, settings_of(urls, sync), folder, max_context_tokens=128, world=world)
    assert engine._fleet.members[0].url == urls[world.rank % len(urls)], "ranks that are idle do not choose the same"

    async def share() -> list[Completion]:
        return await asyncio.gather(
            *(engine.generate(prompt(5), sampling(seed=seed)) for seed in world.share(range(12)))
        )

    found: list[Completion] = []
    try:
        for version in (1, 2):
            train_a_step(policy, version)
            engine.load_weights(version)
            found += world.gather_shares(asyncio.run(share()))
    except UserError as error:
        return [], str(error)
    engine.close()
    return found, None


@pytest.mark.parametrize("sync", ["folder", "broadcast"])
def test_two_ranks_sample_what_one_does_and_one_of_them_pushes(sync: Sync, ranks: Ranks, tmp_path: Path) -> None:
    fakes = [fake_of(make_policy()) for _ in range(2)]
    with running(*fakes):
        urls = tuple(fake.url for fake in fakes)
        alone, _ = completions(ALONE, urls, tmp_path / "alone", sync)
        for fake in fakes:
            fake.calls.clear()
        found = ranks(2, "ddp", completions, urls, tmp_path / "both", sync)
    assert found == [(alone, None)] * 2
    assert len(alone) == 24
    for fake in fakes:
        assert fake.calls.count("/update_weights") == 2
        assert fake.calls.count("/resume") == 2
    assert not (tmp_path / "both").exists()


def shards(world: World, url: str, folder: Path) -> tuple[tuple[int, ...], str]:
    """What is sampled with the weights of which each rank holds a part, and its error on a full disk."""
    policy = tiny_policy()
    tiny_trainer(policy, "trainer.strategy=fsdp2", world=world)
    for sync in ("broadcast", "folder"):
        engine = VllmEngine(policy, settings_of((url,), sync), folder, max_context_tokens=64, world=world)
        engine.load_weights(1)  # compared with what the ranks compute together
        found = asyncio.run(engine.generate([3, 4], sampling(seed=1)))
    if world.is_first:
        shutil.rmtree(folder)
        folder.write_text("no folder")
    try:
        engine.load_weights(2)
    except UserError as error:
        return found.token_ids, str(error)
    raise AssertionError("it was pushed")


def test_shards_are_pushed_whole_and_a_full_disk_ends_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    policy = tiny_policy()
    fake = fake_of(policy)
    with running(fake):
        first, second = ranks(2, "fsdp2", shards, fake.url, tmp_path / "weights")
        served = fake.weights.state_dict()
        assert all(torch.equal(value, served[name]) for name, value in policy.model.named_parameters())
    assert first == second
    assert "Cannot write" in first[1]
