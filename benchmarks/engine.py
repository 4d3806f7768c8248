"""The local engine against `transformers.generate`: one process, alternately, same numbers of tokens, one thread.

    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python benchmarks/engine.py [--repeats 9]

Times are medians; "ratio" is generate / rlvr, "best" the same for the fastest repeats, which other load affects less.
Groups of completions are sampled at temperature 1 without stop tokens. `generate` gets its best case:
prompts of one length, no padding, no stop token, the default (dynamic) cache, inference mode.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlvr.core.engine import LocalEngine
from rlvr.types import Completion, SamplingParams


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table."""

    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    vocabulary: int
    num_prompts: int
    group_size: int
    prompt_tokens: int
    new_tokens: int


LARGE = {"hidden_size": 128, "num_layers": 4, "num_heads": 4, "intermediate_size": 344, "vocabulary": 32}
DEFAULT = {"hidden_size": 64, "num_layers": 3, "num_heads": 4, "intermediate_size": 176, "vocabulary": 14}
CASES = (
    Case(**LARGE, num_prompts=16, group_size=8, prompt_tokens=32, new_tokens=16),
    Case(**LARGE, num_prompts=16, group_size=8, prompt_tokens=32, new_tokens=64),
    Case(**DEFAULT, num_prompts=32, group_size=8, prompt_tokens=8, new_tokens=10),
)


def make_model(case: Case) -> LlamaForCausalLM:
    """Random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=case.hidden_size,
        num_hidden_layers=case.num_layers,
        num_attention_heads=case.num_heads,
        num_key_value_heads=case.num_heads,
        intermediate_size=case.intermediate_size,
        vocab_size=case.vocabulary,
        max_position_embeddings=128,
        initializer_range=0.06,
    )
    model = LlamaForCausalLM(config).eval()
    assert model.generation_config is not None
    model.generation_config.eos_token_id = None
    return model


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(case: Case, repeats: int) -> tuple[list[float], list[float], int]:
    """Seconds of ours and of `generate`, and the number of parameters."""
    model = make_model(case)
    num_rows = case.num_prompts * case.group_size
    engine = LocalEngine(model, max_batch_size=num_rows, max_context_tokens=case.prompt_tokens + case.new_tokens)
    prompts = torch.randint(0, case.vocabulary, (case.num_prompts, case.prompt_tokens))
    requests = [
        (ids, SamplingParams(max_tokens=case.new_tokens, stop_ids=frozenset(), seed=row * 1000 + member))
        for row, ids in enumerate(prompts.tolist())
        for member in range(case.group_size)
    ]
    batch = prompts.repeat_interleave(case.group_size, 0)
    mask = torch.ones_like(batch)

    async def together() -> list[Completion]:
        return await asyncio.gather(*(engine.generate(*request) for request in requests))

    def ours() -> None:
        completions = asyncio.run(together())
        assert sum(len(c.token_ids) for c in completions) == num_rows * case.new_tokens

    @torch.inference_mode()
    def theirs() -> None:
        out = cast(Any, model).generate(
            batch, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=case.new_tokens, pad_token_id=0
        )
        assert out.shape == (num_rows, case.prompt_tokens + case.new_tokens)

    ours()
    theirs()
    times = [(seconds(ours), seconds(theirs)) for _ in range(repeats)]
    parameters = sum(p.numel() for p in model.parameters())
    return [own for own, _ in times], [other for _, other in times], parameters


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the local engine against transformers.generate.")
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print(
        "| model | prompts x group, prompt + new tokens | rlvr ms | generate ms | rlvr ms/step | tok/s | ratio | best |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        own, other, parameters = measure(case, repeats)
        median, ratio = statistics.median(own), statistics.median(other) / statistics.median(own)
        print(
            f"| Llama d{case.hidden_size} L{case.num_layers}, {parameters / 1e6:.2f}M parameters"
            f" | {case.num_prompts} x {case.group_size}, {case.prompt_tokens} + {case.new_tokens}"
            f" | {median * 1e3:.1f} | {statistics.median(other) * 1e3:.1f} | {median / case.new_tokens * 1e3:.2f}"
            f" | {case.num_prompts * case.group_size * case.new_tokens / median:.0f}"
            f" | **{ratio:.2f}** | {min(other) / min(own):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
