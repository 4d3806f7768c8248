"""What a caller hears of tokens before the completion is there."""

import asyncio

import pytest
import torch

from rlvr.core.engine import LocalEngine
from rlvr.core.engine import scheduler as scheduler_module
from rlvr.core.engine.base import Alternatives
from tests.unit.engines.tiny import VOCABULARY, prompt, sampling, tiny_model

EVERY_FIFTH = frozenset(range(0, VOCABULARY, 5))


def make_engine(max_batch_size: int = 3) -> LocalEngine:
    return LocalEngine(tiny_model(), max_batch_size=max_batch_size, max_context_tokens=64)


def test_pitfall_06_each_token_is_heard_once_in_order():
    engine = make_engine()  # three places for eight requests: they begin while others run

    async def one(index: int):
        heard = []
        settings = sampling(index, max_tokens=6 + index, stop_ids=EVERY_FIFTH)
        listen = None if index == 2 else lambda token, logprob: heard.append((token, logprob))
        completion = await engine.generate(prompt(3 + index % 3), settings, on_token=listen)
        return index, heard, completion

    async def run():
        return await asyncio.gather(*(one(index) for index in range(8)))

    for index, heard, completion in asyncio.run(run()):
        expected = list(zip(completion.token_ids, completion.behavior_logprobs, strict=True))
        assert heard == ([] if index == 2 else expected)


def test_pitfall_37_nobody_hears_of_tokens_of_a_request_that_was_given_up():
    engine, heard, known_at_the_end = make_engine(), ([], []), []

    async def one(index: int):
        try:
            settings = sampling(index, max_tokens=30)
            return await engine.generate(
                prompt(4), settings, on_token=lambda token, logprob: heard[index].append(token)
            )
        finally:
            known_at_the_end.append(len(heard[index]))

    async def run():
        tasks = [asyncio.create_task(one(index)) for index in (0, 1)]
        while len(heard[0]) < 3:
            await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    gone, completion = asyncio.run(run())
    assert isinstance(gone, asyncio.CancelledError)
    assert len(heard[0]) == known_at_the_end[0] < 30
    assert heard[1] == list(completion.token_ids)
    assert engine.num_running == engine.num_waiting == 0


def test_a_call_that_is_given_up_leaves_the_batch_at_the_next_step():
    """Not only when the others are done, or when it would have come to its own end."""
    engine = make_engine()
    running: list[int] = []

    def count(token: int, logprob: float) -> None:
        running.append(engine.num_running)

    async def run():
        calls = [
            asyncio.create_task(engine.generate(prompt(4), sampling(seed, max_tokens=30), on_token=count))
            for seed in (0, 1)
        ]
        while len(running) < 6:
            await asyncio.sleep(0)
        calls[0].cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(run())
    assert running.count(1) > 20


def test_who_does_not_listen_pays_nothing(monkeypatch: pytest.MonkeyPatch):
    """No id leaves its tensor and no likely token is looked for: on a GPU each would wait for the device."""
    engine = make_engine()

    def refuse(*arguments):
        raise AssertionError

    monkeypatch.setattr(scheduler_module, "most_likely", refuse)
    monkeypatch.setattr(torch.Tensor, "topk", refuse)
    counts = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: counts.append(1) or tolist(tensor))

    async def run(listen):
        counts.clear()
        await engine.generate(prompt(4), sampling(max_tokens=20), on_token=listen)
        return len(counts)

    silent, heard = asyncio.run(run(None)), asyncio.run(run(lambda token, logprob: None))
    assert heard == silent + 2 * 20


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_pitfall_19_likely_tokens_are_those_at_the_temperature(temperature: float):
    model = tiny_model()
    engine = LocalEngine(model, max_batch_size=2, max_context_tokens=64)
    ids, wanted = prompt(5), Alternatives(count=4)

    async def run():
        settings = sampling(3, max_tokens=6, temperature=temperature)
        other = engine.generate(prompt(7), sampling(4, max_tokens=9))
        completion, _ = await asyncio.gather(engine.generate(ids, settings, alternatives=wanted), other)
        return completion

    completion = asyncio.run(run())
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*ids, *completion.token_ids]]), use_cache=False).logits[0, 4:-1]
    expected = torch.log_softmax(logits / (temperature or 1.0), -1).topk(4)
    assert [list(tokens) for tokens, _ in wanted.seen] == expected.indices.tolist()
    torch.testing.assert_close(torch.tensor([values for _, values in wanted.seen]), expected.values, atol=1e-5, rtol=0)
