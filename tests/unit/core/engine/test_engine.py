"""The engine against plain forwards of single sequences."""

import asyncio
from dataclasses import replace

import pytest
import torch

from rlvr.core.engine import LocalEngine
from rlvr.core.engine.runner import CachedRunner
from rlvr.core.errors import NonFiniteLogitsError
from rlvr.seeding import derive_seed
from rlvr.types import StopReason
from tests.unit.engines.tiny import (
    ARCHITECTURES,
    EVERY_FIFTH,
    VOCABULARY,
    assert_exact,
    crowd,
    generate,
    plain_logprobs,
    play,
    prompt,
    sampling,
    tiny_model,
)


def make_engine(model, *, max_batch_size=8, max_context_tokens=64) -> LocalEngine:
    return LocalEngine(model, max_batch_size=max_batch_size, max_context_tokens=max_context_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ARCHITECTURES, "gemma2", "gpt_oss"])
def test_pitfall_01_logprobs_equal_a_plain_forward(name):
    model, requests = tiny_model(name), crowd()
    engine = make_engine(model, max_batch_size=6)  # for 20 requests
    assert type(engine._scheduler.rows.runner) is CachedRunner  # a wrong one is noticed at the start and not taken
    completions = generate(engine, requests)
    assert len({len(c.token_ids) for c in completions}) > 3
    assert_exact(model, requests, completions)
    for request, completion in zip(requests[::3], completions[::3], strict=True):
        (alone,) = generate(engine, [request])
        assert alone.token_ids == completion.token_ids, "a request does not depend on the batch it sits in"


@pytest.mark.parametrize("name", ["falcon", "falcon_alibi"])
def test_pitfall_01_a_model_with_attention_of_its_own_keeps_it(name):
    """It takes no keys and values of the engine, and misreads the masks of an attention that it does not know."""
    model, requests = tiny_model(name), crowd(num_prompts=2, group_size=2)
    with pytest.warns(UserWarning, match="slowly"):
        engine = make_engine(model)
    assert_exact(model, requests, generate(engine, requests))


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_sessions_reuse_what_is_cached_and_stay_exact(name):
    model = tiny_model(name)
    engine = make_engine(model, max_batch_size=3)
    assert_exact(model, *play(engine, [prompt(4 + i) for i in range(5)], stop_ids=EVERY_FIFTH))
    assert not engine._scheduler.parked


@pytest.mark.parametrize("num_sampled", [1, 3])
def test_pitfall_01_sessions_that_end_together_stay_apart(num_sampled):
    """Rows that leave in one step are copied together: shared prompts of different lengths, and their samples."""
    model = tiny_model()
    prompts = [prompt(3 + 4 * (i // 2)) for i in range(8)]  # two and two share a prompt
    assert_exact(model, *play(make_engine(model), prompts, max_tokens=num_sampled))


def test_pitfall_01_a_session_that_moves_as_it_starts_keeps_all_keys():
    """Its slot changes before the first step that counts the columns in use."""
    model = tiny_model()
    engine = make_engine(model)

    async def turn(prompts, limits):
        settings = [sampling(session, max_tokens=limit) for session, limit in enumerate(limits)]
        calls = [
            engine.generate(*one, session=session) for session, one in enumerate(zip(prompts, settings, strict=True))
        ]
        return await asyncio.gather(*calls)

    async def run():
        prompts = [prompt(20, seed=seed) for seed in range(3)]
        first = await turn(prompts, (2, 2, 2))
        prompts = [[*ids, *done.token_ids, 7] for ids, done in zip(prompts, first, strict=True)]
        return prompts, await turn(prompts, (4, 1, 4))  # the last one takes the slot of the second

    prompts, second = asyncio.run(run())
    assert_exact(model, [(ids, sampling()) for ids in prompts], second)


def count_tokens(model) -> list[int]:
    """Tokens of every forward from now on."""
    seen = []
    model.get_input_embeddings().register_forward_pre_hook(lambda module, args: seen.append(args[0].numel()))
    return seen


@pytest.mark.parametrize(
    ("kept", "new", "num_prefilled"),
    [(24, [7, 8, 9], 4), (12, prompt(6, seed=5), 6), (20, [], 1)],
    ids=["three new tokens, and the last sampled one, which was never fed", "a rewritten prompt", "the same prompt"],
)
def test_a_session_prefills_only_what_is_new(kept, new, num_prefilled):
    model = tiny_model()
    engine = make_engine(model)
    seen = count_tokens(model)

    async def run():
        first = await engine.generate(prompt(20), sampling(max_tokens=4), session="a")
        seen.clear()
        ids = [*prompt(20), *first.token_ids][:kept] + new
        return ids, await engine.generate(ids, sampling(max_tokens=5), session="a")

    ids, completion = asyncio.run(run())
    assert seen == [num_prefilled, 1, 1, 1, 1]
    assert_exact(model, [(ids, sampling())], [completion])


def test_parked_sessions_are_evicted_when_their_room_is_needed():
    engine = make_engine(tiny_model(), max_batch_size=2, max_context_tokens=32)

    async def run():
        for session in range(20):
            await engine.generate(prompt(12), sampling(session), session=session)

    asyncio.run(run())
    assert 0 < len(engine._scheduler.parked) <= 64 // 19


@pytest.mark.parametrize("in_flight", [False, True])
def test_pitfall_31_new_weights_drop_every_cached_key_and_value(in_flight):
    model = tiny_model()
    engine = make_engine(model)

    async def run():
        first = await engine.generate(prompt(9), sampling(1, max_tokens=5), session="a")
        ids = [*prompt(9), *first.token_ids, 3]
        waiting = asyncio.ensure_future(engine.generate(prompt(7), sampling(2, max_tokens=12), session="b"))
        if in_flight:
            for _ in range(8):
                await asyncio.sleep(0)
        cut = max((len(request.token_ids) for request in engine._scheduler.running), default=0)
        model.load_state_dict(tiny_model(seed=1).state_dict())
        engine.load_weights(1)
        second = await engine.generate(ids, sampling(3, max_tokens=5), session="a")
        return ids, second, await waiting, cut

    ids, second, other, cut = asyncio.run(run())
    assert second.policy_version == 1
    assert_exact(model, [(ids, sampling())], [second])
    assert bool(cut) == in_flight
    assert other.policy_version == (0 if in_flight else 1)  # the version it began with
    expected = plain_logprobs(model, prompt(7), other)
    torch.testing.assert_close(torch.tensor(other.behavior_logprobs)[cut:], expected[cut:], atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "mixtral"])
def test_greedy_equals_generate(name):
    model = tiny_model(name)
    prompts = [prompt(5), prompt(11), prompt(16)]
    ours = generate(make_engine(model), [(ids, sampling(temperature=0, max_tokens=12)) for ids in prompts])
    model.eval()
    model.generation_config.eos_token_id = None  # or generate would end at, or be forbidden to draw, the default id
    for ids, completion in zip(prompts, ours, strict=True):
        tensor = torch.tensor([ids])
        limits = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
        out = model.generate(tensor, attention_mask=torch.ones_like(tensor), **limits)
        assert completion.token_ids == tuple(out[0, len(ids) :].tolist())
        assert_exact(model, [(ids, sampling())], [completion])


def test_pitfall_36_members_of_a_group_share_no_stream():
    engine = make_engine(tiny_model(), max_batch_size=16)
    requests = [(prompt(6), sampling(derive_seed(0, "train", 0, i))) for i in range(16)]
    first, second = generate(engine, requests), generate(engine, requests)
    assert first == second
    assert len({completion.token_ids for completion in first}) == 16
    other = generate(engine, [(prompt(6), sampling(derive_seed(1, "train", 0, i))) for i in range(16)])
    assert not {c.token_ids for c in first} & {c.token_ids for c in other}


def test_pitfall_36_the_turns_of_an_episode_share_no_stream():
    engine = make_engine(tiny_model())
    with torch.no_grad():
        for parameter in engine._model.parameters():
            parameter.zero_()  # uniform over the vocabulary: only the stream tells completions apart
    short, long = generate(engine, [(prompt(6), sampling(4)), (prompt(14), sampling(4))])
    assert short.token_ids != long.token_ids


def test_pitfall_14_the_stop_reason_comes_from_the_token():
    engine = make_engine(tiny_model())
    (free,) = generate(engine, [(prompt(6), sampling(3, max_tokens=5))])
    assert free.stop_reason is StopReason.LENGTH
    stop = frozenset(range(VOCABULARY)) - set(free.token_ids[:-1])  # the last allowed token, and none before it
    assert free.token_ids[-1] in stop
    (stopped,) = generate(engine, [(prompt(6), sampling(3, max_tokens=5, stop_ids=stop))])
    assert stopped.token_ids == free.token_ids
    assert stopped.stop_reason is StopReason.STOP


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_pitfall_19_logprobs_are_at_the_sampling_temperature(temperature):
    model, requests = tiny_model(), crowd(3, 2, temperature=temperature)
    completions = generate(make_engine(model), requests)
    assert_exact(model, requests, completions)
    assert all(completion.sampling_logprobs == completion.behavior_logprobs for completion in completions)


def test_pitfall_20_truncated_requests_get_both_logprobs():
    model = tiny_model()
    requests = [(prompt(6), sampling(i, top_p=0.8 if i % 2 else 1.0)) for i in range(8)]
    completions = generate(make_engine(model), requests)
    assert_exact(model, requests, completions)
    for (_, settings), completion in zip(requests, completions, strict=True):
        gaps = [s - b for s, b in zip(completion.sampling_logprobs, completion.behavior_logprobs, strict=True)]
        if settings.truncates:
            assert max(gaps) > 0.02
            assert min(gaps) >= 0
        else:
            assert gaps == [0] * 8


def test_a_long_completion_is_cut_a_long_prompt_an_error():
    engine = make_engine(tiny_model(), max_context_tokens=20)
    cut, none = generate(engine, [(prompt(17), sampling(max_tokens=50)), (prompt(20), sampling())])
    assert (len(cut.token_ids), cut.stop_reason) == (3, StopReason.LENGTH)
    assert (cut.token_ids, none.token_ids, none.stop_reason) == (cut.token_ids, (), StopReason.LENGTH)
    with pytest.raises(ValueError, match=r"21 tokens.*max_context_tokens=20"):
        generate(engine, [(prompt(21), sampling())])
    with pytest.raises(ValueError, match="empty"):
        generate(engine, [([], sampling())])
    with pytest.raises(ValueError, match=r"1000.*128"):
        make_engine(tiny_model(), max_context_tokens=1000)


def test_concurrent_calls_are_batched_and_share_prompts():
    model = tiny_model()
    engine = make_engine(model, max_batch_size=256)
    requests = [(prompt(5 + i % 3), sampling(i, max_tokens=4)) for i in range(256)]
    seen = count_tokens(model)
    expected = generate(engine, requests)
    assert seen == [3 * 7, 256, 256, 256]
    assert generate(engine, requests) == expected


def test_pitfall_25_smaller_priorities_start_first():
    engine = make_engine(tiny_model(), max_batch_size=2)
    priorities = [5, 5, 5, 4, 5, 0, 4]
    begun: list[int] = []

    async def ask(number: int):
        def note(token: int, logprob: float) -> None:
            if number not in begun:
                begun.append(number)

        settings = replace(sampling(number, max_tokens=4), priority=priorities[number])
        return await engine.generate(prompt(5), settings, on_token=note)

    async def run():
        first = [asyncio.ensure_future(ask(number)) for number in range(2)]
        while not engine.num_running:
            await asyncio.sleep(0)
        return await asyncio.gather(*first, *(ask(number) for number in range(2, 7)))

    found = asyncio.run(run())
    assert begun == [0, 1, 5, 3, 6, 2, 4]
    alone = [generate(engine, [(prompt(5), sampling(number, max_tokens=4))])[0] for number in range(7)]
    assert [one.token_ids for one in found] == [one.token_ids for one in alone]


def test_an_exception_reaches_all_callers_and_sampling_goes_on(monkeypatch):
    engine = make_engine(tiny_model(), max_batch_size=2)
    expected = generate(engine, [(prompt(5), sampling(0))])
    decode, calls = engine._scheduler.rows.runner.decode, []

    def fail_once(*args):
        calls.append(args)
        if len(calls) == 3:
            raise RuntimeError("a broken step")
        return decode(*args)

    monkeypatch.setattr(engine._scheduler.rows.runner, "decode", fail_once)

    async def run():
        jobs = [engine.generate(prompt(5), sampling(i), session=i) for i in range(5)]
        return await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 20)

    assert [str(result) for result in asyncio.run(run())] == ["a broken step"] * 5
    assert generate(engine, [(prompt(5), sampling(0))]) == expected
    assert not engine._scheduler.parked


def test_a_cancelled_caller_frees_its_row():
    engine = make_engine(tiny_model(), max_batch_size=1)

    async def run():
        settings = [sampling(0, max_tokens=40), sampling(1), sampling(2)]
        first, second, third = (asyncio.ensure_future(engine.generate(prompt(5), s, session=s.seed)) for s in settings)
        for _ in range(6):
            await asyncio.sleep(0)
        first.cancel()
        third.cancel()
        found = await second
        engine.release(1)
        return found

    assert asyncio.run(run()) == generate(engine, [(prompt(5), sampling(1))])[0]
    assert not engine._scheduler.parked


def test_close_cancels_waiting_callers_and_drops_sessions():
    engine = make_engine(tiny_model())

    async def run():
        await engine.generate(prompt(5), sampling(0), session="a")
        assert len(engine._scheduler.parked) == 1
        job = asyncio.ensure_future(engine.generate(prompt(5), sampling(0, max_tokens=40)))
        for _ in range(5):
            await asyncio.sleep(0)
        engine.close()
        with pytest.raises(asyncio.CancelledError):
            await job

    asyncio.run(run())
    assert not engine._scheduler.parked


def test_pitfall_34_modules_sample_in_evaluation_mode():
    model, requests = tiny_model("gpt2"), crowd(2, 2)  # has dropout 0.1
    assert_exact(model, requests, generate(make_engine(model), requests))


def test_pitfall_35_engine_and_trainer_use_the_same_experts():
    model, requests = tiny_model("mixtral"), crowd(max_tokens=12)  # its router adds noise in training mode
    assert_exact(model, requests, generate(make_engine(model), requests))


def test_pitfall_37_the_engine_has_no_memory():
    model, requests = tiny_model(), crowd(max_tokens=12)
    fresh, used = make_engine(model), make_engine(model)
    generate(used, [(prompt(20), sampling(seed=99, max_tokens=40))] * 8)
    assert generate(used, requests) == generate(fresh, requests)  # to the last bit
    # the shapes of the buffers decide how products are cut: on some machines and sizes that is the last bit
    caches = [engine._scheduler.rows.runner._cache for engine in (used, fresh)]
    shapes = [[b.shape for slots in (c.rows, c.prefixes) for b in slots.buffers.values()] for c in caches]
    assert shapes[0] == shapes[1]


def test_pitfall_31_nan_of_broken_weights_does_not_outlive_them():
    model, requests = tiny_model(), crowd(max_tokens=12)
    engine = make_engine(model)
    expected = generate(engine, requests)
    head = model.get_input_embeddings().weight.data
    sound = head.clone()
    head[requests[0][0][0]] = float("nan")
    with pytest.raises(NonFiniteLogitsError):
        generate(engine, requests)
    cache = engine._scheduler.rows.runner._cache
    for buffers in (cache.rows._aside, cache.rows._made, cache.prefixes._aside, cache.prefixes._made):
        assert buffers == {}, "0 x NaN would be NaN"
    head.copy_(sound)
    engine.load_weights(1)
    again = generate(engine, requests)
    assert [c.token_ids for c in again] == [c.token_ids for c in expected]


def test_two_engines_over_one_model_serve_at_the_same_time():
    model = tiny_model()
    usual = model.config._attn_implementation
    one, other = (LocalEngine(model, max_batch_size=2, max_context_tokens=40) for _ in range(2))

    async def both():
        calls = [(one, sampling(1, max_tokens=4)), (other, sampling(2, max_tokens=20))]
        return await asyncio.gather(*(engine.generate(prompt(5), settings) for engine, settings in calls))

    assert [len(completion.token_ids) for completion in asyncio.run(both())] == [4, 20]
    assert model.config._attn_implementation == usual


def test_a_row_keeps_its_top_p_when_others_join_without_one():
    alone = [(prompt(5), sampling(1, max_tokens=14, top_p=0.3))]
    (expected,) = generate(LocalEngine(tiny_model(), max_batch_size=2, max_context_tokens=64), alone)
    joining = [*alone, (prompt(6), sampling(2, max_tokens=3)), (prompt(7), sampling(3, max_tokens=9))]
    found, *_ = generate(LocalEngine(tiny_model(), max_batch_size=2, max_context_tokens=64), joining)
    assert found.token_ids == expected.token_ids
    without = [(prompt(5), sampling(1, max_tokens=14))]
    (other,) = generate(LocalEngine(tiny_model(), max_batch_size=2, max_context_tokens=64), without)
    assert other.token_ids != expected.token_ids, "top_p changes what is sampled here"


def test_the_next_batch_takes_the_buffers_of_the_last():
    """New memory costs page faults."""
    engine, held = make_engine(tiny_model()), []
    for seed in range(2):
        generate(engine, [(prompt(5), sampling(seed, max_tokens=4))])
        held.append([*engine._scheduler.rows.runner._cache.rows.buffers.values()])
    assert held[0]
    assert [id(buffer) for buffer in held[0]] == [id(buffer) for buffer in held[1]]


def test_rows_have_room_for_what_they_sample_and_not_for_their_prompts_again():
    engine = make_engine(tiny_model())
    generate(engine, [(prompt(40), sampling(seed, max_tokens=12)) for seed in range(2)])
    cache = engine._scheduler.rows.runner._cache
    assert (cache.prefixes.capacity, cache.rows.capacity) == (48, 16)
