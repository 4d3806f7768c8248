"""One step on one GPU: sampling and training of a 0.5B model, relative to the GPU's limits, and against TRL.

    python benchmarks/gpu_step.py                                    # on a GPU
    python benchmarks/gpu_step.py --trl-python trl_venv/bin/python   # also TRL 1.16, in its own environment
    python benchmarks/gpu_step.py --small                            # a tiny model, to try the script on a CPU

The model has the architecture of Qwen2.5-0.5B with random weights and a byte tokenizer: no downloads. A step samples 64
prompts x 8 completions x 512 tokens (no end token: every completion has its full length) and makes one GRPO update with
random rewards. Requires torch, transformers, pydantic and PyYAML; without rlvr installed, set PYTHONPATH=src.


The ceilings are measured in the same run: a bfloat16 matrix product, and a copy. A decode step reads at least every
weight in its products once, each prompt's keys and values once per group, and every row's own. Training computes at
least 6 floating-point operations per weight and token, prompts counted once per group, and attention; recomputation is
not counted.
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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rlvr.algorithms.grpo import Grpo
from rlvr.algorithms.objective import Objective
from rlvr.core.devices import free
from rlvr.core.engine import LocalEngine
from rlvr.core.packing import Packing
from rlvr.core.parallel import DataParallel
from rlvr.core.settings import TrainerSettings
from rlvr.core.trainer import Trainer
from rlvr.models.devices import choose_device, choose_products, frozen_copy, half_dtype, in_bf16, move, sampling_dtype
from rlvr.models.layout import choose_layout
from rlvr.models.policy import HubPolicy
from rlvr.seeding import derive_seed
from rlvr.training.memory import (
    Demand,
    available_memory,
    keys_values_bytes,
    measure_activations,
    plan_memory,
    size_text,
)
from rlvr.types import Completion, SamplingParams, TokenBatch

QWEN = {  # Qwen2.5-0.5B
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
TINY = QWEN | {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a step."""

    model: dict[str, Any]
    num_prompts: int = 64
    group_size: int = 8
    prompt_tokens: int = 128
    completion_tokens: int = 512
    matrix: int = 8192  # size of the timed product
    copied: int = 1 << 32  # bytes

    @property
    def num_rows(self) -> int:
        """Completions per step."""
        return self.num_prompts * self.group_size


FULL = Size(model=QWEN)
SMALL = Size(model=TINY, num_prompts=2, group_size=2, prompt_tokens=8, completion_tokens=16, matrix=256, copied=1 << 22)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of one step."""

    generation: float
    training: float


# ------------------------------------------------------------------------------------------------------------ ceilings


def seconds(work: Callable[[], object], device: torch.device, repeats: int = 1) -> float:
    """Seconds of one call, including work it started on the device."""
    _wait(device)
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    _wait(device)
    return (time.perf_counter() - begin) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_flops(size: Size, device: torch.device) -> float:
    """Floating-point operations per second of a bfloat16 product of random square matrices."""
    a, b = (torch.randn(size.matrix, size.matrix, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds(lambda: a @ b, device, repeats=3)
    return 2 * size.matrix**3 / seconds(lambda: a @ b, device, repeats=10)


def peak_bandwidth(size: Size, device: torch.device) -> float:
    """Bytes per second of a copy, reads and writes added."""
    source = torch.ones(size.copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds(lambda: target.copy_(source), device, repeats=3)
    return 2 * size.copied / seconds(lambda: target.copy_(source), device, repeats=10)


# ------------------------------------------------------------------------------------------------------ model and data


def make_tokenizer(size: Size) -> PreTrainedTokenizerFast:
    """One token per byte, and an end token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)} | {"<end>": len(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def make_policy(size: Size, device: torch.device) -> HubPolicy:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**size.model)).eval()
    move(model, device)
    return HubPolicy(model=model, tokenizer=make_tokenizer(size))


def make_prompts(size: Size) -> list[list[int]]:
    """Random letters, which every tokenizer splits alike."""
    draw = random.Random(0)
    return [[draw.randrange(32, 96) for _ in range(size.prompt_tokens)] for _ in range(size.num_prompts)]


def to_batch(size: Size, prompts: list[list[int]], completions: list[Completion], step: int) -> TokenBatch:
    """The completions with random rewards."""
    rows = size.num_rows
    prompt_ids = torch.tensor([prompt for prompt in prompts for _ in range(size.group_size)])
    sampled = torch.tensor([completion.token_ids for completion in completions])
    mask = torch.zeros(rows, size.prompt_tokens + size.completion_tokens, dtype=torch.bool)
    mask[:, size.prompt_tokens :] = True
    behavior = torch.zeros(mask.shape)
    behavior[:, size.prompt_tokens :] = torch.tensor([c.behavior_logprobs for c in completions])
    generator = torch.Generator().manual_seed(step)
    return TokenBatch(
        ids=torch.cat([prompt_ids, sampled], 1),
        lengths=torch.full((rows,), mask.shape[1]),
        prompt_lengths=torch.full((rows,), size.prompt_tokens),
        loss_mask=mask,
        behavior_logprobs=behavior,
        rewards=torch.randint(2, (rows,), generator=generator).float(),
        groups=torch.arange(size.num_prompts).repeat_interleave(size.group_size),
        episodes=torch.arange(rows),
        valid=torch.ones(rows, dtype=torch.bool),
        truncated=torch.zeros(rows, dtype=torch.bool),
    )


# ------------------------------------------------------------------------------------------------------------ the step


class Subject:
    """The timed object: the product's engine and trainer over one set of weights."""

    def __init__(self, size: Size, device: torch.device) -> None:
        self.size, self.device = size, device
        self.policy = make_policy(size, device)
        self.prompts = make_prompts(size)
        layout = choose_layout(self.policy)
        chosen = TrainerSettings(learning_rate=1e-6, warmup_steps=0)
        bf16 = in_bf16(chosen.precision, self.policy.model)
        half = half_dtype(chosen.precision, self.policy.model)
        self.dtype = sampling_dtype("auto", self.policy.model, half=half, adapted=False)
        parallel = DataParallel(bf16=bf16)
        autocast = partial(parallel.autocast, device)
        demand = self._demand(measure_activations(self.policy, layout, autocast))
        self.plan = plan_memory(self.policy, demand, setting="auto", available=available_memory(device))
        self.trainer = Trainer(
            policy=self.policy,
            objective=Objective(algorithm=Grpo(), max_completion_tokens=size.completion_tokens, temperature=1.0),
            settings=chosen,
            seed=0,
            packing=Packing(layout=layout, max_tokens=self.plan.microbatch_tokens, note=print),
            parallel=parallel,
        )
        longest = size.prompt_tokens + size.completion_tokens
        model, shares = self.policy.model, self.dtype == self.policy.dtype
        self.engine = LocalEngine(
            model if shares else frozen_copy(model, self.dtype),
            max_batch_size=self.plan.max_batch_size,
            max_context_tokens=longest,
            weights=None if shares else self.policy.trained_weights,
        )

    def step(self, number: int) -> Step:
        """Sample, update, drop caches of the old weights."""
        requests = [
            (
                prompt,
                SamplingParams(
                    max_tokens=self.size.completion_tokens,
                    temperature=1.0,
                    stop_ids=frozenset(),
                    seed=derive_seed(number, group, member),
                ),
            )
            for group, prompt in enumerate(self.prompts)
            for member in range(self.size.group_size)
        ]
        completions: list[Completion] = []

        async def together() -> None:
            completions.extend(await asyncio.gather(*(self.engine.generate(*request) for request in requests)))

        generation = seconds(lambda: asyncio.run(together()), self.device)
        batch = to_batch(self.size, self.prompts, completions, number)

        def train() -> None:
            ready = self.trainer.objective.advantages(self.trainer.score(batch))
            self.trainer.update(ready, 0)
            self.engine.load_weights(number + 1)

        return Step(generation=generation, training=seconds(train, self.device))

    def _demand(self, activations: Any) -> Demand:
        line = self.size.prompt_tokens + self.size.completion_tokens
        return Demand(
            line_tokens=line,
            num_rows=self.size.num_rows,
            activations=activations,
            keys_values_per_row=keys_values_bytes(self.policy, line, dtype=self.dtype),
            max_batch_size=self.size.num_rows,
            num_references=0,
            teacher_bytes=0,
            copy_dtype=None if self.dtype == self.policy.dtype else self.dtype,
        )


def weights_in_products(policy: HubPolicy) -> int:
    """Weights that every token is multiplied with: all matrices, the head once, not the embeddings."""
    return sum(p.numel() for name, p in policy.model.named_parameters() if p.dim() == 2 and "embed" not in name) + (
        int(policy.model.config.vocab_size) * int(policy.model.config.hidden_size)
        if policy.model.config.tie_word_embeddings
        else 0
    )


def decode_bytes(size: Size, policy: HubPolicy, itemsize: int) -> float:
    """Minimum bytes read by all decode steps of a batch."""
    config = policy.model.config
    heads, width = int(config.num_key_value_heads), int(config.hidden_size) // int(config.num_attention_heads)
    per_token = 2 * int(config.num_hidden_layers) * heads * width * itemsize
    own = size.num_rows * sum(range(1, size.completion_tokens))
    shared = size.num_prompts * size.prompt_tokens * (size.completion_tokens - 1)
    return weights_in_products(policy) * itemsize * (size.completion_tokens - 1) + per_token * (own + shared)


def training_flops(size: Size, policy: HubPolicy) -> float:
    """Operations of one forward and backward pass over the batch, prompts once per group."""
    config = policy.model.config
    head = int(config.vocab_size) * int(config.hidden_size)
    predicted = size.num_rows * size.completion_tokens
    tokens = size.num_prompts * size.prompt_tokens + predicted
    line = size.prompt_tokens + size.completion_tokens / 2  # mean number of keys per sampled token
    attention = 12 * int(config.num_hidden_layers) * int(config.hidden_size) * predicted * line
    return 6 * (weights_in_products(policy) - head) * tokens + 6 * head * predicted + attention


# ---------------------------------------------------------------------------------------------------------------- TRL


def trl_steps(python: str, specification: dict[str, Any]) -> dict[str, Any] | None:
    """The same steps by TRL with transformers' generation; None if it is not installed."""
    if python == "none" or subprocess.run([python, "-c", "import trl"], capture_output=True, check=False).returncode:
        return None
    script = str(Path(__file__).with_name("gpu_step_trl.py"))
    done = subprocess.run(
        [python, script], input=json.dumps(specification), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"TRL's half failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def for_trl(subject: Subject, folder: Path, num_steps: int, micro: int) -> dict[str, Any]:
    """Specification for TRL; saves the model in the folder."""
    subject.policy.save(folder / "model")
    return {
        "model": str(folder / "model"),
        "output": str(folder / "output"),
        "prompts": [subject.policy.tokenizer.decode(prompt) for prompt in subject.prompts],
        "group_size": subject.size.group_size,
        "completion_tokens": subject.size.completion_tokens,
        "num_steps": num_steps,
        "micro": micro,
        "gpu": subject.device.type == "cuda",
    }


# ------------------------------------------------------------------------------------------------------------- report


def machine(device: torch.device) -> str:
    """Description of the machine."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return f"{name}, torch {torch.__version__}, transformers {transformers.__version__}"


def peak_memory(device: torch.device) -> int:
    """Bytes, of the GPU, or without one of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_memory(device: torch.device) -> None:
    """Free unreferenced memory, and reset the peak."""
    free()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def measure(size: Size, device: torch.device, num_steps: int, trl_python: str, micro: int) -> list[str]:
    """The lines of the report."""
    flops, bandwidth = peak_flops(size, device), peak_bandwidth(size, device)
    reset_memory(device)  # the ceilings took gigabytes
    subject = Subject(size, device)
    for line in subject.plan.lines:
        print(line, file=sys.stderr)
    subject.step(0)  # buffers, graphs, libraries
    steps = [subject.step(1 + number) for number in range(num_steps)]
    memory, planned = peak_memory(device), sum(subject.plan.parts.values())
    generation = statistics.median(step.generation for step in steps)
    training = statistics.median(step.training for step in steps)
    read, computed = decode_bytes(size, subject.policy, subject.dtype.itemsize), training_flops(size, subject.policy)
    micro = min(micro, size.num_rows)
    lines = [
        f"{machine(device)}: {size.num_prompts} prompts of {size.prompt_tokens} tokens x {size.group_size} x "
        f"{size.completion_tokens} tokens, {subject.policy.num_weights / 1e6:.1f}M weights, training in "
        f"{subject.trainer.precision} with {subject.plan.microbatch_tokens:,} tokens a pass, decoding by "
        f"{type(subject.engine._scheduler.rows.runner).__name__}, median of {num_steps} steps",
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        specification = for_trl(subject, Path(folder), num_steps, micro)
        del subject
        reset_memory(device)  # TRL needs the GPU's memory
        theirs = trl_steps(trl_python, specification)
    tokens = size.num_rows * size.completion_tokens
    ours = {"generation": generation, "training": training, "step": generation + training}
    ceilings = {
        "generation": f"{read / generation / bandwidth:.1%} of {bandwidth / 1e9:,.1f} GB/s",
        "training": f"{computed / training / flops:.1%} of {flops / 1e12:,.2f} TFLOP/s",
        "step": "",
    }
    lines += [
        f"| | seconds | tokens/s | share of the ceiling | TRL {theirs['version']}, seconds | TRL / rlvr |"
        if theirs
        else "| | seconds | tokens/s | share of the ceiling | TRL | TRL / rlvr |",
        "|---|---|---|---|---|---|",
    ]
    for name, took in ours.items():
        other = (f"{theirs[name]:.4g}", f"{theirs[name] / took:.1f}") if theirs else ("", "")
        lines.append(f"| {name} | {took:.4g} | {tokens / took:,.0f} | {ceilings[name]} | {other[0]} | {other[1]} |")
    other = (size_text(theirs["memory"]), f"{theirs['memory'] / memory:.1f}") if theirs else ("", "")
    lines += [f"| peak memory | {size_text(memory)} | | planned: {size_text(planned)} | {other[0]} | {other[1]} |", ""]
    if theirs is None:
        return [*lines, "no TRL: the comparison needs trl==1.16.* (--trl-python)"]
    return [*lines, f"TRL: transformers' generation, {micro} rows a pass"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a step of rlvr on one GPU, against its ceilings and TRL.")
    parser.add_argument("--small", action="store_true", help="a tiny model and batch, also for a CPU")
    parser.add_argument("--steps", type=int, default=3, help="measured steps after one warm-up step (default: 3)")
    parser.add_argument("--trl-python", default=sys.executable, help="python with trl==1.16.*; none: without TRL")
    parser.add_argument("--trl-micro", type=int, default=16, help="rows per pass of TRL (default: 16)")
    args = parser.parse_args()
    device = choose_device("auto")
    choose_products(device, "auto")
    if device.type == "cpu":
        print(f"no GPU: torch {torch.__version__} sees none; CUDA graphs, TF32 and the GPU's ceilings are not measured")
        if not args.small:
            print("no GPU: nothing was measured (--small tries the script on a CPU)")
            return
    size = SMALL if args.small else FULL
    print("\n".join(measure(size, device, args.steps, args.trl_python, args.trl_micro)))


if __name__ == "__main__":
    main()
