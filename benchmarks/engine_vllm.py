"""The local engine against vLLM's CPU build and two ways of transformers: the same model, turn about, a process each.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/engine_vllm.py --vllm-python vllm_venv/bin/python [--rounds 3]
    OMP_WAIT_POLICY=PASSIVE python benchmarks/engine_vllm.py --pretrained FOLDER --dtype float32

Groups of completions of random prompts, 96 + 64 tokens, at temperature 1 with log-probabilities, new prompts in each
round. A side is a process with the case's number of threads that waits while another one works. "step" is the time of
one decode step: that of 64 tokens less that of the first, by 63. "rlvr, plain" is the local engine without its packed
weights. vLLM runs in its process, compiled, with prefix caching and blocks of 32 tokens (96 fill no block of its own
default, so a group would share nothing). Without `--vllm-python` its rows are left out. `--pretrained` takes the model
of that folder instead of random weights.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

PROMPT, NEW, PAGE = 96, 64, 32
SIDES = {
    "rlvr": "rlvr",
    "plain": "rlvr, plain",
    "generate": "transformers generate",
    "continuous": "transformers continuous batching",
    "vllm": "vLLM",
}
Sampler = Callable[[list[list[int]], int, int], None]
"""Samples `group` completions of `new` tokens for each prompt: `(prompts, group, new)`."""


@dataclass(frozen=True, kw_only=True)
class Case:
    model: str
    threads: int
    prompts: int
    group: int


CASES = (
    Case(model="large", threads=1, prompts=4, group=4),
    Case(model="large", threads=2, prompts=4, group=4),
    Case(model="large", threads=2, prompts=8, group=4),
    Case(model="small", threads=1, prompts=4, group=4),
    Case(model="small", threads=1, prompts=16, group=8),
)
PRETRAINED = tuple(Case(model="pretrained", threads=threads, prompts=4, group=4) for threads in (1, 2))
NAMES = {"large": "Qwen2 0.5B, bfloat16", "small": "Llama 0.9M, float32", "pretrained": "pretrained"}


def make_model(kind: str, folder: Path) -> None:
    """Random weights in the shape of Qwen2.5-0.5B, or of a toy."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    torch.manual_seed(0)
    heads = {"max_position_embeddings": 512, "eos_token_id": None, "bos_token_id": None}
    if kind == "large":
        config = Qwen2Config(
            hidden_size=896,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            intermediate_size=4864,
            vocab_size=151936,
            tie_word_embeddings=True,
            **heads,
        )
    else:
        config = LlamaConfig(
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=344,
            vocab_size=512,
            **heads,
        )
    dtype = torch.bfloat16 if kind == "large" else torch.float32
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)


def copy_model(source: Path, dtype: str, folder: Path) -> None:
    """The weights of `source` in that dtype, without an end token."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    model.config.eos_token_id = None
    model.generation_config = GenerationConfig()
    model.save_pretrained(folder)


# ------------------------------------------------------------------------------------------------------------ the sides


def ours(folder: Path, rows: int) -> Sampler:
    from transformers import AutoModelForCausalLM

    from rlvr.core.engine import LocalEngine
    from rlvr.types import SamplingParams

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").requires_grad_(False)
    engine = LocalEngine(model, max_batch_size=rows, max_context_tokens=PROMPT + NEW)

    def sample(prompts: list[list[int]], group: int, new: int) -> None:
        requests = [
            (prompt, SamplingParams(max_tokens=new, stop_ids=frozenset(), seed=row * 1000 + member))
            for row, prompt in enumerate(prompts)
            for member in range(group)
        ]

        async def together() -> list:
            return await asyncio.gather(*(engine.generate(*request) for request in requests))

        assert all(len(one.token_ids) == new for one in asyncio.run(together()))
        engine.load_weights(0)  # the next round is another update's

    return sample


def plain(folder: Path, rows: int) -> Sampler:
    from rlvr.core.engine import packed

    packed.MEMORY_SHARE = 0
    return ours(folder, rows)


def generate(folder: Path, rows: int) -> Sampler:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")

    @torch.inference_mode()
    def sample(prompts: list[list[int]], group: int, new: int) -> None:
        batch = torch.tensor(prompts).repeat_interleave(group, 0)
        out = cast(Any, model).generate(
            batch, attention_mask=torch.ones_like(batch), do_sample=True, top_k=0, max_new_tokens=new, pad_token_id=0
        )
        assert out.shape == (len(prompts) * group, PROMPT + new)

    return sample


def continuous(folder: Path, rows: int) -> Sampler:
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    model = cast(Any, AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="sdpa"))
    blocks = rows * (-(-(PROMPT + NEW) // PAGE) + 1)  # it takes half of the machine's memory if not told how many
    settings = ContinuousBatchingConfig(
        page_size=PAGE, num_blocks=blocks, max_batch_tokens=rows * PROMPT, return_logprobs=True
    )

    def sample(prompts: list[list[int]], group: int, new: int) -> None:
        asked = [prompt for prompt in prompts for _ in range(group)]
        config = GenerationConfig(max_new_tokens=new, do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0)
        outputs = model.generate_batch(
            asked, generation_config=config, continuous_batching_config=settings, persistent_manager=True
        )
        assert [len(one.generated_tokens) for one in outputs.values()] == [new] * len(asked)

    return sample


def vllm(folder: Path, rows: int) -> Sampler:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    llm = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        max_model_len=PROMPT + NEW + 32,
        max_num_seqs=rows,
        enable_prefix_caching=True,
        block_size=32,
    )

    def sample(prompts: list[list[int]], group: int, new: int) -> None:
        params = SamplingParams(n=group, max_tokens=new, ignore_eos=True, logprobs=0, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        assert all(len(one.token_ids) == new for output in outputs for one in output.outputs)
        llm.reset_prefix_cache()

    return sample


def serve(side: str, folder: Path, rows: int, threads: int) -> None:
    """Answer a request a line: `{"prompts": .., "group": .., "new": ..}` with seconds, CPU seconds, peak bytes."""
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print
    start = time.perf_counter()
    makers = {"rlvr": ours, "plain": plain, "generate": generate, "continuous": continuous, "vllm": vllm}
    sample: Sampler = makers[side](folder, rows)
    import torch

    torch.set_num_threads(threads)
    print(json.dumps({"start": time.perf_counter() - start}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        wall, cpu = time.perf_counter(), time.process_time()
        sample(request["prompts"], request["group"], request["new"])
        took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(took | {"peak": peak}), file=answers, flush=True)


# ----------------------------------------------------------------------------------------------------------- the driver


class Side:
    """A process that samples."""

    def __init__(self, name: str, case: Case, folder: Path, python: str):
        command = [python, __file__, "--side", name, "--folder", str(folder), "--threads", str(case.threads)]
        environment = os.environ | {"OMP_NUM_THREADS": str(case.threads)}
        self._process = subprocess.Popen(
            [*command, "--rows", str(case.prompts * case.group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.start: float = self._read()["start"]

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} ended with {self._process.wait()}")
        return json.loads(line)

    def ask(self, prompts: list[list[int]], group: int, new: int) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "group": group, "new": new}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def started(case: Case, folder: Path, pythons: dict[str, str]) -> Iterator[dict[str, Side]]:
    sides = {name: Side(name, case, folder, python) for name, python in pythons.items()}
    try:
        yield sides
    finally:
        for side in sides.values():
            side.close()


def measure(case: Case, folder: Path, pythons: dict[str, str], rounds: int) -> None:
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    draw = random.Random(0)

    def prompts() -> list[list[int]]:
        return [[draw.randrange(vocabulary) for _ in range(PROMPT)] for _ in range(case.prompts)]

    tokens = case.prompts * case.group * NEW
    with started(case, folder, pythons) as sides:
        whole: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        first: dict[str, list[float]] = {name: [] for name in sides}
        for side in sides.values():
            side.ask(prompts(), case.group, NEW)
        for _ in range(rounds):
            asked = prompts(), prompts()
            for name, side in sides.items():
                first[name].append(side.ask(asked[0], case.group, 1)["wall"])
                whole[name].append(side.ask(asked[1], case.group, NEW))
    wall = {name: statistics.median(one["wall"] for one in rounds) for name, rounds in whole.items()}
    for name, side in sides.items():
        step = (wall[name] - statistics.median(first[name])) / (NEW - 1)
        cpu = statistics.median(one["cpu"] for one in whole[name])
        peak = max(one["peak"] for one in whole[name])
        print(
            f"| {NAMES[case.model]} | {case.threads} | {case.prompts} x {case.group} | {SIDES[name]}"
            f" | {tokens / wall[name]:.0f} | {wall[name] / wall['rlvr']:.2f} | {step * 1e3:.1f}"
            f" | {statistics.median(first[name]):.2f} | {cpu / tokens * 1e3:.2f} | {peak / 1e9:.1f}"
            f" | {side.start:.0f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens per second of the local engine, generate and vLLM on a CPU.")
    parser.add_argument("--vllm-python", help="an interpreter with vLLM's CPU build")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", choices=("large", "small"), help="only this model's cases")
    parser.add_argument("--pretrained", type=Path, help="folder of a model, instead of these")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of --pretrained")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="beside rlvr")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help="only cases with so many")
    args = parser.parse_args()
    if args.side:
        serve(args.side, args.folder, args.rows, args.threads)
        return
    sides = {"rlvr", *args.sides}
    pythons = {name: sys.executable for name in SIDES if name in sides and name != "vllm"}
    if args.vllm_python and "vllm" in sides:
        pythons["vllm"] = args.vllm_python
    print("| model | threads | prompts x group | engine | tok/s | time / rlvr's | step ms | first token s "
          "| CPU s per 1,000 tokens | peak GB | start s |")  # fmt: skip
    print("|" + "---|" * 11)
    with tempfile.TemporaryDirectory() as root:
        known = PRETRAINED if args.pretrained else CASES
        cases = [case for case in known if args.model in (None, case.model) and args.threads in (None, case.threads)]
        for kind in dict.fromkeys(case.model for case in cases):
            folder = Path(root) / kind
            if kind == "pretrained":
                copy_model(args.pretrained, args.dtype, folder)
            else:
                make_model(kind, folder)
            for case in cases:
                if case.model == kind:
                    measure(case, folder, pythons, args.rounds)
    loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"\n{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, load averages {loads}")


if __name__ == "__main__":
    main()
