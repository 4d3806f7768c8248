"""Counts in Prometheus' words."""

import asyncio

from tests.unit.serve.client import Client


def test_answers_and_their_tokens_are_counted(qwen) -> None:
    """Two that are right, one that is not: buckets and seconds are of those that were answered."""

    async def run() -> list[str]:
        client = Client(qwen)
        for stream in (False, True):
            body = {"prompt": [40, 41], "max_tokens": 3, "seed": 1, "ignore_eos": True, "n": 2, "stream": stream}
            assert (await client.post("/v1/completions", body)).status == 200
        assert (await client.post("/v1/completions", {"prompt": [40], "n": 0})).status == 400
        return (await client.get("/metrics")).body.decode().splitlines()

    lines = asyncio.run(run())
    for line in (
        'rlvr_requests_total{endpoint="/v1/completions",status="200"} 2',
        'rlvr_requests_total{endpoint="/v1/completions",status="400"} 1',
        *("rlvr_requests_given_up_total 0", "rlvr_prompt_tokens_total 4", "rlvr_completion_tokens_total 12"),
        *("rlvr_completions_running 0", "rlvr_completions_waiting 0", "rlvr_request_seconds_count 2"),
    ):
        assert line in lines
    seconds = float(next(line for line in lines if line.startswith("rlvr_request_seconds_sum")).split()[1])
    assert 0 < seconds < 300
