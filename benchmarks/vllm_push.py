"""vLLM compared with the local engine: time of weight pushes, and sampling speed on the same prompts.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/vllm_push.py --vllm-python vllm_venv/bin/python [--rounds 7]

For each model `rlvr serve --engine vllm` starts a vLLM server; 64 prompts of 16 to 32 tokens get 64 tokens each,
alternately from the server and from the local engine. "push" is a whole `load_weights`: write files, pause requests,
load and verify tensors, drop caches, compare logprobs. "in flight" is the same during the sampling of 64 completions;
"lost" counts incomplete ones among them. "gap" is the largest difference between vLLM's behavior logprobs and the
trainer's forward pass. Medians of the rounds; "ratio" is the median of local seconds / vLLM seconds per round.


The second table (alone with --pushes) is for a model of about 100 MB: whole pushes by files in a folder and by
broadcast, alternately, and weight bytes / seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rlvr.core.engine import LocalEngine
from rlvr.core.engine.base import Engine
from rlvr.engines.settings import VllmEngineSettings
from rlvr.engines.vllm import VllmEngine
from rlvr.models.loading import load_for_inference
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_bpe_tokenizer
from rlvr.types import Completion, SamplingParams

PROMPTS, NEW_TOKENS, CONTEXT = 64, 64, 128
VOCABULARY = 4096

Sync = Literal["folder", "broadcast"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """A Qwen2 with head size 64, which vLLM's CPU build supports."""

    width: int
    num_layers: int

    def save(self, folder: Path) -> Path:
        """Save random weights and a tokenizer."""
        texts = [f"What is {a} plus {b}? The answer is {a + b}." for a in range(40) for b in range(40)]
        tokenizer: PreTrainedTokenizerFast = build_bpe_tokenizer(texts, 400, ())
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=self.width,
            intermediate_size=3 * self.width,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.width // 64,
            num_key_value_heads=max(1, self.width // 128),
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            initializer_range=0.04,
        )
        Qwen2ForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder


@contextmanager
def serving(model: Path, python: str) -> Iterator[str]:
    """The address of a server with the model."""
    words = ["serve", str(model), "--engine", "vllm", "--port", "0", "--max-batch-size", str(PROMPTS)]
    server = subprocess.Popen(
        [sys.executable, "-m", "rlvr", *words, "--vllm-python", python], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        assert url, "the server did not start"
        yield url
    finally:
        server.terminate()
        server.wait(timeout=120)


def requests(round_: int) -> list[tuple[list[int], SamplingParams]]:
    """Different prompts in each round, to avoid cache hits."""
    generator = torch.Generator().manual_seed(round_)
    lengths = [16 + (7 * row) % 17 for row in range(PROMPTS)]
    return [
        (
            torch.randint(2, 400, (length,), generator=generator).tolist(),
            SamplingParams(max_tokens=NEW_TOKENS, stop_ids=frozenset(), seed=1000 * round_ + row),
        )
        for row, length in enumerate(lengths)
    ]


async def sample(engine: Engine, round_: int) -> tuple[float, list[Completion]]:
    """Seconds for all prompts at once, and the completions."""
    begin = time.perf_counter()
    found = await asyncio.gather(*(engine.generate(prompt, sampling) for prompt, sampling in requests(round_)))
    return time.perf_counter() - begin, found


async def push_in_flight(engine: VllmEngine, version: int) -> tuple[float, int]:
    """Seconds of a push during a batch, and the number of incomplete completions."""
    running = asyncio.create_task(sample(engine, 10_000 + version))
    await asyncio.sleep(0.3)
    assert not running.done(), "the batch was over before the push"
    begin = time.perf_counter()
    engine.load_weights(version)
    seconds = time.perf_counter() - begin
    _, found = await running
    return seconds, sum(len(one.token_ids) != NEW_TOKENS for one in found)


@torch.no_grad()
def gap(policy: HubPolicy, round_: int, found: Sequence[Completion]) -> float:
    """Largest difference between a behavior logprob and the policy's own, over the first eight completions."""
    largest = 0.0
    for (prompt, _), one in list(zip(requests(round_), found, strict=True))[:8]:
        logits = policy.model(torch.tensor([[*prompt, *one.token_ids]])).logits[0, len(prompt) - 1 : -1].float()
        own = logits.log_softmax(-1).gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]
        largest = max(largest, (own - torch.tensor(one.behavior_logprobs)).abs().max().item())
    return largest


def change(policy: HubPolicy, seed: int) -> None:
    """Change the weights, as an update does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=1e-4)


async def rounds_of(policy: HubPolicy, remote: VllmEngine, local: LocalEngine, rounds: int) -> list[str]:
    """The cells of a row."""
    pushes, flights, theirs, ours, gaps = [], [], [], [], []
    lost = 0
    for number in range(rounds + 1):  # the first is warm-up
        change(policy, number)
        begin = time.perf_counter()
        remote.load_weights(2 * number)
        push = time.perf_counter() - begin
        local.load_weights(2 * number)
        seconds, found = await sample(remote, number)
        own_seconds, _ = await sample(local, number)
        gaps.append(gap(policy, number, found))
        flight, missing = await push_in_flight(remote, 2 * number + 1)
        lost += missing
        if number:
            pushes.append(push)
            flights.append(flight)
            theirs.append(seconds)
            ours.append(own_seconds)
    tokens = PROMPTS * NEW_TOKENS
    ratio = statistics.median(own / other for own, other in zip(ours, theirs, strict=True))
    return [
        f"{1e3 * statistics.median(pushes):.0f}",
        f"{1e3 * statistics.median(flights):.0f}",
        str(lost),
        f"{tokens / statistics.median(theirs):.0f}",
        f"{tokens / statistics.median(ours):.0f}",
        f"**{ratio:.2f}**",
        f"{max(gaps):.1e}",
    ]


def engine_of(policy: HubPolicy, url: str, folder: Path, sync: Sync) -> VllmEngine:
    """A client of the server."""
    settings = VllmEngineSettings(
        urls=(url,),
        sync=sync,
        max_batch_size=PROMPTS,
        timeout_s=600.0,
        wait_s=10.0,
        max_retries=1,
        max_logprob_gap=1e-3,
    )
    return VllmEngine(policy, settings, folder / "weights", max_context_tokens=CONTEXT)


def compare(size: Size, python: str, rounds: int) -> Iterator[str]:
    """Rows of the table of pushes."""
    syncs: tuple[Sync, Sync] = ("folder", "broadcast")
    seconds: dict[str, list[float]] = {sync: [] for sync in syncs}
    with tempfile.TemporaryDirectory() as folder:
        model = size.save(Path(folder) / "model")
        with serving(model, python) as url:
            policy = load_for_inference(str(model))
            engines = {sync: engine_of(policy, url, Path(folder), sync) for sync in syncs}
            for number in range(rounds + 1):  # the first is warm-up
                for sync in syncs if number % 2 else reversed(syncs):
                    change(policy, number)
                    begin = time.perf_counter()
                    engines[sync].load_weights(number)
                    seconds[sync].append(time.perf_counter() - begin)
    num_bytes = sum(weight.nbytes for weight in policy.model.parameters())
    for sync in syncs:
        taken = sorted(seconds[sync][1:])
        median = statistics.median(taken)
        span = f"{1e3 * taken[0]:.0f} to {1e3 * taken[-1]:.0f}"
        yield f"| {num_bytes / 1e6:.0f} MB | {sync} | {1e3 * median:.0f} | {span} | {num_bytes / 1e6 / median:.0f} |"


def measure(size: Size, python: str, rounds: int) -> str:
    """A table row."""
    with tempfile.TemporaryDirectory() as folder:
        model = size.save(Path(folder) / "model")
        with serving(model, python) as url:
            policy = load_for_inference(str(model))
            remote = engine_of(policy, url, Path(folder), "folder")
            local = LocalEngine(policy.model, max_batch_size=PROMPTS, max_context_tokens=CONTEXT)
            try:
                cells = asyncio.run(rounds_of(policy, remote, local, rounds))
            finally:
                local.close()
                remote.close()
    name = f"Qwen2 d{size.width} L{size.num_layers}, {policy.num_weights / 1e6:.1f}M"
    return "| " + " | ".join([name, *cells]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time pushes to a vLLM server, and its sampling beside the local engine."
    )
    parser.add_argument("--vllm-python", default=os.environ.get("RLVR_VLLM_PYTHON"), required=False)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pushes", action="store_true", help="only compare the ways of pushing weights")
    arguments = parser.parse_args()
    if not arguments.vllm_python:
        parser.error("--vllm-python: name the Python of the environment that has vLLM")
    print(f"load average at the start: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    if not arguments.pushes:
        print("| model | push ms | in flight ms | lost | vLLM tok/s | local tok/s | ratio | gap |")
        print("|---|---|---|---|---|---|---|---|")
        for size in (Size(width=128, num_layers=2), Size(width=384, num_layers=6)):
            print(measure(size, arguments.vllm_python, arguments.rounds), flush=True)
        print()
    print("| weights | engine.sync | push ms | least and most | MB/s |")
    print("|---|---|---|---|---|")
    for line in compare(Size(width=512, num_layers=8), arguments.vllm_python, arguments.rounds):
        print(line)


if __name__ == "__main__":
    main()
