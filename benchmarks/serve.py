"""`rlvr serve` against its own engine: the same requests, alternately, on the same machine.

    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python benchmarks/serve.py [--rounds 7] [--clients 64] [--run runs/rpn]

64 clients in their own process request 128 tokens each, all at once: as whole answers, streamed, and streamed by
clients that disconnect midway. "engine" is the engine alone on the same prompts and seeds in another, otherwise idle
process. Medians of the rounds; "ratio" is the median of engine seconds / seconds of the same round, "CPU" the same for
CPU seconds of all rounds, which other load affects less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rlvr.commands.serve.local import ServeSettings, open_served
from rlvr.core.engine import LocalEngine
from rlvr.models.scratch import build_bpe_tokenizer
from rlvr.types import Completion, SamplingParams

NEW_TOKENS, PROMPT_TOKENS = 128, 32
WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One client's result."""

    num_tokens: int
    seconds: float


def make_model(folder: Path) -> Path:
    """Two layers, width 128, 4,096 words: random weights, and a byte-level tokenizer."""
    texts = [f"What is {a} plus {b}? The answer is {a + b}." for a in range(40) for b in range(40)]
    tokenizer: PreTrainedTokenizerFast = build_bpe_tokenizer(texts, 400, ())
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=4096,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.06,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def bodies(clients: int, num_words: int, new_tokens: int) -> list[dict[str, Any]]:
    """One request per client: prompts of token ids with different lengths, answers of new_tokens each."""
    generator = torch.Generator().manual_seed(0)
    lengths = [PROMPT_TOKENS // 2 + (7 * client) % PROMPT_TOKENS // 2 for client in range(clients)]
    return [
        {
            "prompt": torch.randint(0, num_words, (length,), generator=generator).tolist(),
            "max_tokens": new_tokens,
            "seed": client,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        for client, length in enumerate(lengths)
    ]


# ---------------------------------------------------------------------------------------------------------- the server


@contextmanager
def serving(model: str) -> Iterator[tuple[str, int]]:
    """`rlvr serve` in its own process; its address and process id."""
    command = [sys.executable, "-m", "rlvr", "serve", model, "--port", "0", "--served-model-name", "m"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip(), server.pid
    finally:
        server.terminate()
        server.wait(timeout=60)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def together(engine: LocalEngine, requests: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[Completion]:
    """Completions of all requests, in order."""
    return await asyncio.gather(*(engine.generate(*request) for request in requests))


def engine_loop(model: str) -> None:
    """Read lists of requests from stdin, write seconds and the sum of the sampled ids."""
    with open_served(model, ServeSettings()) as (served, _):
        for line in sys.stdin:
            requests = [
                (
                    body["prompt"],
                    SamplingParams(max_tokens=body["max_tokens"], stop_ids=frozenset(), seed=body["seed"]),
                )
                for body in json.loads(line)
            ]
            begin = time.perf_counter()
            completions = asyncio.run(together(served.engine, requests))
            seconds = time.perf_counter() - begin
            print(json.dumps([seconds, [list(one.token_ids) for one in completions]]), flush=True)


class Engine:
    """The engine alone, in its own process."""

    def __init__(self, model: str) -> None:
        command = [sys.executable, __file__, "--engine-of", model]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def seconds(self, requests: Sequence[dict[str, Any]]) -> tuple[float, list[list[int]]]:
        """Seconds for all requests at once, and the sampled ids."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(requests) + "\n")
        self._process.stdin.flush()
        seconds, sampled = json.loads(self._process.stdout.readline())
        return seconds, sampled

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


# --------------------------------------------------------------------------------------------------------- the clients


class Client:
    """One connection, kept open."""

    def __init__(self, url: str) -> None:
        self._host, self._port = str(urlsplit(url).hostname), int(urlsplit(url).port or 0)
        self._path = urlsplit(url).path
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self._ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    async def post(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """Status and body of a completion request."""
        return await self._ask(self._posted(body))

    async def leave(self, body: dict[str, Any], after_bytes: int) -> None:
        """Disconnect during a stream."""
        reader, writer = await self._connection()
        writer.write(self._posted(body))
        await reader.readexactly(after_bytes)
        self.close()

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _posted(self, body: dict[str, Any]) -> bytes:
        data = json.dumps(body).encode()
        head = f"POST {self._path}/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._open is None:
            self._open = await asyncio.open_connection(self._host, self._port, limit=1 << 24)
        return self._open

    async def _ask(self, request: bytes) -> tuple[int, bytes]:
        reader, writer = await self._connection()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = int(head.split()[1])
        if "content-length: " in head:
            return status, await reader.readexactly(int(head.partition("content-length: ")[2].split()[0]))
        parts = []
        while size := int(await reader.readline(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readexactly(2)
        return status, b"".join(parts)


Ask = Callable[[Client, dict[str, Any]], Awaitable[list[int]]]


async def whole(client: Client, body: dict[str, Any]) -> list[int]:
    """The sampled ids of one answer."""
    status, data = await client.post(body)
    assert status == 200, data
    return json.loads(data)["choices"][0]["token_ids"]


async def streamed(client: Client, body: dict[str, Any]) -> list[int]:
    """As `whole`, from a stream."""
    status, data = await client.post(body | {"stream": True})
    assert status == 200, data
    events = [json.loads(line[6:]) for line in data.decode().split("\n\n") if line.startswith("data: {")]
    return [token for event in events for choice in event["choices"] for token in choice["token_ids"]]


async def crowd(url: str, requests: Sequence[dict[str, Any]], ask: Ask) -> tuple[float, list[float], list[list[int]]]:
    """All clients at once: total seconds, seconds of each, and their results."""
    clients = [Client(url) for _ in requests]
    for client in clients:
        await client.get("/health")

    async def one(client: Client, body: dict[str, Any]) -> tuple[float, list[int]]:
        begin = time.perf_counter()
        ids = await ask(client, body)
        return time.perf_counter() - begin, ids

    begin = time.perf_counter()
    answers = await asyncio.gather(*(one(client, body) for client, body in zip(clients, requests, strict=True)))
    seconds = time.perf_counter() - begin
    for client in clients:
        client.close()
    return seconds, [took for took, _ in answers], [ids for _, ids in answers]


async def health_while_busy(url: str, requests: Sequence[dict[str, Any]]) -> float:
    """The longest wait for /health during the batch, in seconds."""
    busy = asyncio.create_task(crowd(url, requests, whole))
    client, waits = Client(url), []
    while not busy.done():
        begin = time.perf_counter()
        assert (await client.get("/health"))[0] == 200
        waits.append(time.perf_counter() - begin)
        await asyncio.sleep(0.01)
    await busy
    client.close()
    return max(waits)


async def slot_after_leaving(url: str, requests: Sequence[dict[str, Any]]) -> float:
    """Seconds until no completion runs after all clients have disconnected during a stream."""
    await asyncio.gather(*(Client(url).leave(body | {"stream": True}, 600) for body in requests))
    begin = time.perf_counter()
    client = Client(url)
    while b"rlvr_completions_running 0\n" not in (await client.get("/metrics"))[1]:
        assert time.perf_counter() - begin < WAIT_S
        await asyncio.sleep(0.005)
    client.close()
    return time.perf_counter() - begin


# --------------------------------------------------------------------------------------------------------- the numbers


def measure(label: str, model: str, num_words: int, clients: int, new_tokens: int, rounds: int) -> str:
    """A table row."""
    requests = bodies(clients, num_words, new_tokens)
    engine = Engine(model)
    own: list[float] = []
    got: dict[str, list[tuple[float, list[float]]]] = {"whole": [], "streamed": []}
    cpu: dict[str, list[float]] = {"engine": [], "whole": [], "streamed": []}
    failed = 0
    with serving(model) as (url, pid):
        for number in range(rounds + 1):  # the first is warm-up
            before = cpu_seconds(engine.pid)
            seconds, expected = engine.seconds(requests)
            cpu["engine"].append(cpu_seconds(engine.pid) - before)
            if number:
                own.append(seconds)
            for name, ask in (("whole", whole), ("streamed", streamed)):
                before = cpu_seconds(pid)
                seconds, each, sampled = asyncio.run(crowd(url, requests, ask))
                cpu[name].append(cpu_seconds(pid) - before)
                failed += sum(len(ids) != new_tokens for ids in sampled)
                same = sum(a == b for a, b in zip(sampled, expected, strict=True))
                assert same == len(expected), f"{len(expected) - same} answers are not the engine's"
                if number:
                    got[name].append((seconds, each))
        health = statistics.median(asyncio.run(health_while_busy(url, requests)) for _ in range(3))
        freed = asyncio.run(slot_after_leaving(url, requests))
    engine.close()
    tokens = clients * new_tokens
    cells = [label, f"{tokens / statistics.median(own):.0f}"]
    for name in ("whole", "streamed"):
        times = [seconds for seconds, _ in got[name]]
        ratio = statistics.median(o / t for o, t in zip(own, times, strict=True))
        waits = sorted(wait for _, each in got[name] for wait in each)
        worst = waits[min(len(waits) - 1, int(0.99 * len(waits)))]
        of_cpu = sum(cpu["engine"][1:]) / sum(cpu[name][1:])
        cells += [f"{tokens / statistics.median(times):.0f}", f"**{ratio:.2f}**", f"{of_cpu:.2f}", f"{1e3 * worst:.0f}"]
    cells += [str(failed), f"{1e3 * health:.0f}", f"{1e3 * freed:.0f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time rlvr serve against its own engine.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--run", help="also measure this rpn run")
    parser.add_argument("--engine-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine_of:
        engine_loop(arguments.engine_of)
        return
    print(
        "| model, tokens a client | engine tok/s | whole tok/s | ratio | CPU | p99 ms "
        "| streamed tok/s | ratio | CPU | p99 ms | failed | health ms | slots free ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    print(f"load average at the start: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        model = str(make_model(Path(folder) / "model"))
        line = measure("Qwen2 d128 L2, 128", model, 400, arguments.clients, NEW_TOKENS, arguments.rounds)
        print(line, flush=True)
    if arguments.run:
        print(measure("rpn, 32", arguments.run, 14, arguments.clients, 32, arguments.rounds), flush=True)
    print(f"load average at the end: {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
