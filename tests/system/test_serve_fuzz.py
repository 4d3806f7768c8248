"""Requests that nobody would send: the server refuses them and goes on."""

import asyncio
import random
from pathlib import Path

import pytest

from rlvr.commands.serve.local import ServeSettings, open_served
from tests.system.small_qwen import save_small_qwen
from tests.unit.serve.client import Client
from tests.unit.serve.fuzz import COMPLETIONS, spoilt
from tests.unit.serve.test_limits import SHORT, bad, idle


@pytest.fixture
def qwen(tmp_path: Path):
    save_small_qwen(tmp_path)
    with open_served(str(tmp_path), ServeSettings(max_batch_size=32)) as (served, _):
        yield served


@pytest.mark.long
def test_pitfall_16_ten_thousand_bad_requests_are_refused(qwen):
    """Each is a good request spoilt at one or more places; some are still good, and then they are answered."""
    rng = random.Random(0)

    async def run():
        client = Client(qwen)
        before = await client.post(COMPLETIONS, SHORT | {"return_token_ids": True})
        statuses: dict[int, int] = {}
        for _ in range(100):
            answers = await asyncio.gather(*(client.send("POST", *spoilt(rng)) for _ in range(100)))
            for answer in answers:
                statuses[answer.status] = statuses.get(answer.status, 0) + 1
                if answer.status != 200:
                    bad(answer, answer.status)
        after = await client.post(COMPLETIONS, SHORT | {"return_token_ids": True})
        return before, statuses, after

    before, statuses, after = asyncio.run(run())
    assert before.json["choices"] == after.json["choices"]
    assert set(statuses) <= {200, 400, 404, 413, 429}
    assert sum(statuses.values()) == 10_000
    assert statuses[400] > 5_000
    assert idle(qwen)
