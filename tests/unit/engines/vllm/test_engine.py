"""Sampling on a server: the request, the completion, and which weights it was sampled from."""

import asyncio
import copy
import math
from pathlib import Path

import pytest
import torch

from rlvr.engines.vllm import VllmEngine
from rlvr.seeding import derive_seed
from rlvr.types import Completion, StopReason
from tests.unit.engines.tiny import VOCABULARY, assert_exact, generate, plain_logprobs, prompt, sampling
from tests.unit.engines.vllm.fake import running
from tests.unit.engines.vllm.world import engine_of, fake_of, make_policy, one_server, train_a_step, two_servers


def test_a_completion_is_sampled_with_the_pushed_weights(tmp_path: Path) -> None:
    with one_server(tmp_path, version=3) as (engine, _, policy):
        stop = frozenset(range(0, VOCABULARY, 6))
        requests = [(prompt(9), sampling(seed=i, stop_ids=stop, max_tokens=4)) for i in range(12)]
        completions = generate(engine, requests)
    assert_exact(policy.model, requests, completions)
    for completion in completions:
        assert completion.behavior_logprobs == completion.sampling_logprobs
        assert completion.policy_versions == (3,) * len(completion.token_ids)
        ended = completion.token_ids[-1] in stop
        assert completion.stop_reason == (StopReason.STOP if ended else StopReason.LENGTH)
    assert len({completion.stop_reason for completion in completions}) == 2
    assert len({completion.token_ids for completion in completions}) > 8


def test_pitfall_19_logprobs_are_at_the_sampling_temperature(tmp_path: Path) -> None:
    requests = [(prompt(9), sampling(temperature=0.6)), (prompt(9), sampling(temperature=0.0))]  # greedy: those at 1
    with one_server(tmp_path) as (engine, _, policy):
        assert_exact(policy.model, requests, generate(engine, requests))


def test_pitfall_20_truncated_sampling_gives_no_full_logprobs(tmp_path: Path) -> None:
    # the server tells the truncated ones alone; taken for full ones they would make ratios above 1
    with one_server(tmp_path) as (engine, fake, policy):
        cut, whole = generate(engine, [(prompt(9), sampling(top_k=3)), (prompt(9), sampling())])
    full = plain_logprobs(policy.model, prompt(9), cut)
    assert all(map(math.isnan, cut.behavior_logprobs))
    assert (torch.tensor(cut.sampling_logprobs) > full + 0.01).all()
    assert not any(map(math.isnan, whole.behavior_logprobs))
    assert fake.bodies[-2]["sampling_params"]["top_k"] + fake.bodies[-1]["sampling_params"]["top_k"] == 3


def test_pitfall_36_every_completion_of_a_group_has_its_own_seed(tmp_path: Path) -> None:
    seeds = [derive_seed(run, "train", 7, index) for run in (0, 1) for index in range(8)]
    requests = [(prompt(9), sampling(seed=seed)) for seed in seeds]
    with one_server(tmp_path) as (engine, fake, _):
        fake.bodies.clear()
        completions = generate(engine, requests)
        again = generate(engine, requests[::-1])
    asked = [body["sampling_params"] for body in fake.bodies]
    assert sorted(one["seed"] for one in asked) == sorted(seeds * 2)
    assert max(seeds) > 2**62, "none is cut to fewer bits"
    assert {one["n"] for one in asked} == {1}
    assert len({completion.token_ids for completion in completions}) > 13
    assert [one.token_ids for one in again] == [one.token_ids for one in reversed(completions)]


def test_a_completion_is_cut_at_the_end_of_the_context(tmp_path: Path) -> None:
    with one_server(tmp_path, facts={"max_model_len": 20}) as (engine, _, _):
        assert engine.max_context_tokens == 20
        cut, none = generate(engine, [(prompt(15), sampling()), (prompt(20), sampling())])
        assert (len(cut.token_ids), cut.stop_reason) == (5, StopReason.LENGTH)
        assert (none.token_ids, none.stop_reason) == ((), StopReason.LENGTH)
        with pytest.raises(ValueError, match="more than max_context_tokens=20"):
            generate(engine, [(prompt(21), sampling())])
        with pytest.raises(ValueError, match="the prompt is empty"):
            generate(engine, [([], sampling())])


def test_requests_are_spread_and_a_session_keeps_its_server(tmp_path: Path) -> None:
    async def episode(engine: VllmEngine, index: int) -> None:
        session = object()
        for turn in range(3):
            await engine.generate([1 + index, *prompt(5)], sampling(seed=turn), session=session)
        engine.release(session)

    async def all_of_them(engine: VllmEngine) -> None:
        await asyncio.gather(*(episode(engine, index) for index in range(20)))

    with two_servers(tmp_path, max_batch_size=6) as (engine, fakes, _):
        for fake in fakes:
            fake.bodies.clear()
        asyncio.run(all_of_them(engine))
    episodes = [{body["token_ids"][0] for body in fake.bodies} for fake in fakes]
    assert episodes[0] & episodes[1] == set()
    assert min(map(len, episodes)) >= 6
    assert [len(fake.bodies) for fake in fakes] == [3 * len(own) for own in episodes]
    assert 1 < max(fake.most_at_once for fake in fakes) <= 6
    assert [member.load for member in engine._fleet.members] == [0, 0]


@pytest.mark.slow
def test_pitfall_24_pushes_lose_no_request_tokens_have_versions(tmp_path: Path) -> None:
    policy = make_policy()
    fakes = fake_of(policy), fake_of(policy)
    models = []

    async def all_of_them(engine: VllmEngine) -> list[Completion]:
        requests = [engine.generate([1 + i % 30, 2], sampling(seed=i, max_tokens=12)) for i in range(64)]
        waiting = asyncio.gather(*requests)
        for version in (5, 6):
            while sum(fake.held for fake in fakes) < 64:
                await asyncio.sleep(0.01)
            train_a_step(policy, version)
            models.append(copy.deepcopy(policy.model))
            engine.load_weights(version)
            for fake in fakes:
                fake.holds_at = 8 if version == 5 else None
        return await waiting

    for fake in fakes:
        fake.holds_at = 4
    with running(*fakes):
        engine = engine_of(policy, tmp_path, *fakes)
        models.append(copy.deepcopy(policy.model))
        engine.load_weights(4)
        completions = asyncio.run(all_of_them(engine))
    assert [len(one.token_ids) for one in completions] == [12] * 64
    assert {one.policy_versions for one in completions} == {(4,) * 4 + (5,) * 4 + (6,) * 4}
    for i, completion in enumerate(completions):
        ours = [plain_logprobs(model, [1 + i % 30, 2], completion) for model in models]
        for t, version in enumerate(completion.policy_versions):
            assert completion.behavior_logprobs[t] == pytest.approx(float(ours[version - 4][t]), abs=1e-5)
