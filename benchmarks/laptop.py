"""A step of GRPO with LoRA adapters on a model of Qwen2.5-0.5B's shape, on a CPU: rlvr against TRL 1.16.

    trl_venv/bin/pip install peft
    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/laptop.py --trl-python trl_venv/bin/python

The weights are random and made on the spot (494M, bfloat16, as the Hub has them), so nothing is downloaded. 4 prompts
of 96 tokens, 4 completions of exactly 64 tokens each, adapters of rank 16 on all seven linear layers.

rlvr's side is `rlvr train` (its function, in this process); TRL's is `trl_side.py`, one process for each of its
settings. The sides take turns, a block of steps each; a side that waits does nothing, but keeps its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from laptop_report import file_sizes, markdown, rlvr_side, trl_side
from vs_trl_report import StepTimes, TrlProcess

from rlvr.commands.train.body import train
from rlvr.config.compose import load_config
from rlvr.records.jsonl import read_metrics
from rlvr.rewards.base import Part
from rlvr.run.tasks import open_tasks
from rlvr.types import Attempt

NUM_PROMPTS, GROUP_SIZE, NEW_TOKENS = 4, 4, 64
PROMPT_TOKENS = 96
RANK, ALPHA = 16, 32
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
EOS = 1
SHAPE: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "rope_theta": 1_000_000.0,
}
TRL_SETTINGS: dict[str, dict[str, Any]] = {
    "TRL": {"micro": 4},
    "TRL, recomputed": {"micro": 8, "gradient_checkpointing": True},
    "TRL, float32": {"micro": 4, "dtype": "float32", "bf16": False},
}
"""TRL's own choices; `micro`: parts of the batch whose gradients are accumulated."""


class EvenDigits(Part):
    """Number of even digits / 1000: differs within nearly every group of a random model."""

    in_process = True

    def grade(self, attempt: Attempt) -> float:
        """The number."""
        return sum(character in "02468" for character in attempt.text) / 1000


def save_model(folder: Path) -> None:
    """Random weights, and a tokenizer that reads bytes and writes any of 151,936 words.

    The end token is never drawn: a constant added to the first coordinate of every embedding, and subtracted from the
    end token's, lowers its logit by about 20 everywhere.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE, eos_token_id=EOS, pad_token_id=0, bos_token_id=None))
    with torch.no_grad():
        embeddings = model.model.embed_tokens.weight
        embeddings[:, 0] = 0.5
        embeddings[EOS, 0] = -0.5
    names = ["<pad>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"\u0120w{i}" for i in range(len(names), SHAPE["vocab_size"])]  # a space, a letter, a number
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>").save_pretrained(folder)


def questions(count: int) -> list[dict[str, str]]:
    """Rows of random letters, each of which is a token. Equal lengths: TRL pads nothing."""
    draw = random.Random(0)
    texts = ["".join(draw.choices(string.ascii_letters, k=PROMPT_TOKENS)) for _ in range(count)]
    return [{"question": text, "answer": "1"} for text in texts]


class Turns:
    """Asked after every step of rlvr whether to stop: times the step, and lets the others run theirs."""

    def __init__(self, others: dict[str, TrlProcess]) -> None:
        self._others = others
        self.ours: list[tuple[float, float, float]] = []  # wall, CPU, peak memory
        self.theirs: dict[str, list[StepTimes]] = {name: [] for name in others}
        self._wall = 0.0
        self._cpu = 0.0

    def stopped(self) -> bool:
        """First asked before the first step."""
        wall, cpu = time.perf_counter(), time.process_time()
        if self._wall:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            self.ours.append((wall - self._wall, cpu - self._cpu, memory))
            print(f"rlvr: {wall - self._wall:.1f} s, {memory:.0f} MB", file=sys.stderr, flush=True)
            for name, other in self._others.items():
                self.theirs[name] += other.steps(1)
                last = self.theirs[name][-1]
                print(f"{name}: {last.wall:.1f} s, {last.memory_mb:.0f} MB", file=sys.stderr, flush=True)
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return False


def trl_specification(model: Path, output: Path, prompts: Sequence[dict[str, str]], steps: int) -> dict[str, Any]:
    """What `trl_side.py` needs beside TRL's own settings."""
    return {
        "model": str(model),
        "output": str(output),
        "prompts": prompts,
        "rule": "even_ids",
        "lengths": None,
        "min_new_tokens": 0,
        "max_new_tokens": NEW_TOKENS,
        "num_prompts": NUM_PROMPTS,
        "group_size": GROUP_SIZE,
        "max_steps": steps,
        "bf16": True,
        "dtype": "bfloat16",
        "lora": {"r": RANK, "lora_alpha": ALPHA, "target_modules": list(TARGETS)},
        "threads": torch.get_num_threads(),
        "seed": 0,
        "clip": 0.2,
        "learning_rate": 1e-5,
        "adam_betas": [0.9, 0.95],
    }


def overrides(model: Path, data: Path, run: Path, steps: int) -> list[str]:
    """The choices of a user: model, adapters, data, reward and sizes. Everything else is a default."""
    return [
        *(
            f"model.name_or_path={model}",
            "model.lora.enabled=true",
            f"model.lora.r={RANK}",
            f"model.lora.alpha={ALPHA}",
        ),
        *("task=jsonl", f"task.path={data}", "prompt=plain"),
        "+reward.parts.even={type:'laptop:EvenDigits',weight:1}",
        *(f"rollout.prompts_per_step={NUM_PROMPTS}", f"rollout.group_size={GROUP_SIZE}"),
        f"rollout.max_completion_tokens={NEW_TOKENS}",
        *(f"trainer.max_steps={steps}", "trainer.warmup_steps=0", f"trainer.num_threads={torch.get_num_threads()}"),
        *("trainer.learning_rate=1e-5", "evaluation.every=null", f"run_dir={run}", "tracker.console=plain"),
    ]


def measure(args: argparse.Namespace, temporary: Path) -> str:
    """Run all sides, turn about; the table."""
    model, data, run = args.model or temporary / "model", temporary / "questions.jsonl", temporary / "run"
    if not (model / "config.json").is_file():
        subprocess.run([sys.executable, __file__, "--make", str(model)], check=True)
    steps = args.rounds + 1
    data.write_text("".join(json.dumps(row) + "\n" for row in questions((steps + 8) * NUM_PROMPTS)))
    config = load_config([*overrides(model, data, run, steps), *args.set], config_name="gsm8k")
    with open_tasks(config, "qwen2", {}) as tasks:  # the prompts in the order in which rlvr uses them
        examples = [tasks.own.train_example(index) for index in range(steps * NUM_PROMPTS)]
    prompts = [{"prompt": one.messages[-1].content, "answer": "1"} for one in examples]
    with ExitStack() as stack:
        others = {}
        for name in args.sides if args.trl_python else ():
            output = temporary / name.replace(" ", "_")
            output.mkdir()
            specification = trl_specification(model, output, prompts, steps) | TRL_SETTINGS[name]
            others[name] = stack.enter_context(TrlProcess(args.trl_python, specification))
        turns = Turns(others)
        train(config, turns.stopped)
    sides = [rlvr_side(turns.ours, read_metrics(run / "metrics.jsonl"))]
    sides += [trl_side(name, found) for name, found in turns.theirs.items()]
    versions = [other.versions for other in others.values()]
    return markdown(sides, file_sizes(run), threads=args.threads, versions=versions[0] if versions else {})


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a step of rlvr with adapters on a 0.5B model against TRL's.")
    parser.add_argument(
        "--trl-python", help="python of a virtual environment with trl==1.16.0 and peft; none: rlvr alone"
    )
    parser.add_argument("--rounds", type=int, default=5, help="counted steps of each side (default: 5)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each side (default: 1)")
    parser.add_argument("--model", type=Path, help="folder of the random model, made if absent")
    parser.add_argument("--sides", nargs="*", default=["TRL"], choices=list(TRL_SETTINGS))
    parser.add_argument("--set", nargs="*", default=[], help="more overrides for rlvr")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)  # in a process of its own: memory
    args = parser.parse_args()
    if args.make:
        save_model(args.make)
        return
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as temporary:
        print(measure(args, Path(temporary)))


if __name__ == "__main__":
    main()
