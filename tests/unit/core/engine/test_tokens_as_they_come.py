"""What a caller hears of tokens before the completion is there."""

import asyncio

import pytest
import torch

from rlvr.core.engine import LocalEngine
from rlvr.core.engine.base import Alternatives
from tests.unit.engines.tiny import EVERY_FIFTH, prompt, sampling, tiny_model


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

    async def together():
        return await asyncio.gather(*(one(index) for index in range(8)))

    for index, heard, completion in asyncio.run(together()):
        expected = list(zip(completion.token_ids, completion.behavior_logprobs, strict=True))
        assert heard == ([] if index == 2 else expected)


def test_pitfall_37_no_tokens_of_a_request_that_was_given_up():
    """And it leaves the batch at the next step, not only at its own end."""
    engine, heard, known_at_the_end, running = make_engine(), ([], []), [], []

    async def one(index: int):
        def listen(token: int, logprob: float) -> None:
            heard[index].append(token)
            running.append(engine.num_running)

        try:
            return await engine.generate(prompt(4), sampling(index, max_tokens=30), on_token=listen)
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
    assert running.count(1) > 20
    assert engine.num_running == engine.num_waiting == 0


@pytest.mark.parametrize("listens", [False, True])
def test_a_step_waits_for_the_device_once(monkeypatch, listens: bool):
    engine, waits, tolist = make_engine(), [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "topk", None)
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: waits.append(1) or tolist(tensor))
    on_token = (lambda token, logprob: None) if listens else None
    counts = []
    for max_tokens in (5, 25):
        waits.clear()
        asyncio.run(engine.generate(prompt(4), sampling(max_tokens=max_tokens), on_token=on_token))
        counts.append(len(waits))
    assert counts[1] - counts[0] == 20


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
