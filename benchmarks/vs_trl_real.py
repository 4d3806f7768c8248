"""A training step on a real model, SmolLM2-135M-Instruct, on two CPU cores: rlvr against TRL 1.16.

    export OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=2 RLVR_DATA=data
    python benchmarks/vs_trl_real.py SMOLLM2 --trl-python trl_venv/bin/python --results real.jsonl

SMOLLM2 is the folder of the model. HotpotQA's questions behind their supporting paragraphs, 8 prompts x 8 completions
of at most 24 tokens, rewarded by word F1 and, a little, for being short (so that every group has spread: rlvr does not
train on the others), AdamW, float32 (`--precision bf16`: autocast), the same learning rate on both sides, in full and
with LoRA.

A job is a side with a mode: a process that takes a step to warm up and some that count, and saves its model. The sides
take turns; TRL's process holds many gigabytes, so the other one does not wait beside it. Every job adds a line to the
file of results, with the load averages around it: `--only rlvr:full trl:lora` runs some of them, now and then, and the
table is of all lines, one row a setting of TRL (`--parts`: into how many passes it divides a batch), the fastest first.
`eval` scores what each job saved, and the model as it was, by greedy sampling of held-out questions.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from vs_trl_real_report import markdown
from vs_trl_report import TrlProcess

from rlvr.commands.train.body import train
from rlvr.config import Config
from rlvr.config.compose import load_config
from rlvr.records.jsonl import read_metrics
from rlvr.rewards.base import Part
from rlvr.run.tasks import open_tasks
from rlvr.types import Attempt

NUM_PROMPTS, GROUP_SIZE, NEW_TOKENS = 8, 8, 24
RANK, ALPHA = 16, 32
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LEARNING_RATES = {"full": 1e-5, "lora": 2e-4}
JOBS = ("rlvr:full", "trl:full", "rlvr:lora", "trl:lora", "eval")


def questions(split: str) -> list[dict[str, str]]:
    """HotpotQA's rows whose paragraphs are there, and what answers them before the question."""
    with gzip.open(Path(os.environ["RLVR_DATA"]) / "hotpotqa" / f"{split}.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        {"question": f"{text}\n\n{row['question']} Answer with a few words.", "answer": row["answer"]}
        for row in rows
        if (text := paragraphs(row))
    ]


def paragraphs(row: dict[str, Any]) -> str:
    """The supporting ones; empty where one is missing."""
    titles = {fact[0] for fact in row["supporting_facts"]}
    texts = [f"{title}: {''.join(sentences)}" for title, sentences in row["context"] if title in titles]
    return "\n".join(texts) if len(texts) == len(titles) else ""


def write_questions(folder: Path) -> None:
    for split, name in (("train", "train"), ("dev", "held_out")):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions(split)))


def task_words(folder: Path) -> list[str]:
    return [
        *("task=jsonl", f"task.path={folder / 'train.jsonl'}", f"task.eval_path={folder / 'held_out.jsonl'}"),
        *("task.metric=text", "reward=text", "prompt=plain", f"rollout.max_completion_tokens={NEW_TOKENS}"),
    ]


def run_config(args: argparse.Namespace, mode: str, run: Path) -> Config:
    """The choices of a user: model, adapters, data, reward and sizes. Everything else is a default."""
    adapters = ("model.lora.enabled=true", f"model.lora.r={RANK}", f"model.lora.alpha={ALPHA}")
    words = [
        *(f"model.name_or_path={args.model}", *task_words(args.folder), *(adapters if mode == "lora" else ())),
        "+reward.parts.short={type:'vs_trl_real:Short',weight:0.1}",
        *(f"rollout.prompts_per_step={args.prompts}", f"rollout.group_size={args.group}"),
        *(f"trainer.max_steps={args.steps}", "trainer.warmup_steps=0", f"trainer.num_threads={args.threads}"),
        *(f"trainer.learning_rate={LEARNING_RATES[mode]}", "trainer.checkpoint_every=null", "evaluation.every=null"),
        f"trainer.precision={args.precision}",
        *(f"run_dir={run}", "tracker.console=plain", *args.set),
    ]
    return load_config(words, config_name="gsm8k")


class Short(Part):
    """1 / (1 + characters): differs within nearly every group, so both sides train on all completions."""

    in_process = True

    def grade(self, attempt: Attempt) -> float:
        """The number."""
        return 1 / (1 + len(attempt.text))


class Clock:
    """Asked after every step of rlvr whether to stop: times the step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._wall = self._cpu = 0.0

    def stopped(self) -> bool:
        """First asked before the first step."""
        if self._wall:
            wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            self.steps.append({"wall": wall, "cpu": cpu, "memory_mb": peak})
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return False


def run_ours(args: argparse.Namespace, mode: str, run: Path) -> None:
    """`rlvr train` in this process; its steps as a JSON file."""
    clock = Clock()
    train(run_config(args, mode, run), clock.stopped)
    for step, row in zip(clock.steps, read_metrics(run / "metrics.jsonl")[1:], strict=True):
        step |= {
            "generation": row["time/generation_share"] * row["time/step_s"],
            "update": row["time/update_share"] * row["time/step_s"],
            "tokens": row["time/tokens_per_s"] * row["time/step_s"],
            "reward": row["reward/mean"],
            "dead_groups": row["rollout/zero_advantage_share"],
        }
    whole = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (run / "job.json").write_text(json.dumps({"steps": clock.steps, "memory_mb": whole}))


def ours(args: argparse.Namespace, mode: str, run: Path) -> dict[str, Any]:
    """A process of its own: memory."""
    words = [sys.executable, __file__, *sys.argv[1:], "--folder", str(args.folder), "--ours", mode, str(run)]
    subprocess.run(words, check=True, stdout=sys.stderr)
    return json.loads((run / "job.json").read_text()) | {"final": str(run / "final")}


def theirs(args: argparse.Namespace, mode: str, run: Path) -> dict[str, Any]:
    """TRL's trainer; its peak is that of the last step, before it saves."""
    config = run_config(args, mode, run)
    with open_tasks(config, "llama", {}) as tasks:  # the prompts in the order in which rlvr uses them
        examples = [tasks.own.train_example(index) for index in range(args.steps * args.prompts)]
    run.mkdir(parents=True)
    specification = {
        "model": str(args.model),
        "output": str(run),
        "final": str(run / "final"),
        "prompts": [
            {"prompt": [{"role": m.role, "content": m.content} for m in example.messages], "answer": example.answer}
            for example in examples
        ],
        "rule": "short_f1",
        "lengths": None,
        "min_new_tokens": 0,
        "max_new_tokens": NEW_TOKENS,
        "num_prompts": args.prompts,
        "group_size": args.group,
        "max_steps": args.steps,
        "micro": args.parts,
        "bf16": args.precision == "bf16",
        "dtype": "float32",
        "gradient_checkpointing": args.checkpointing,
        "threads": args.threads,
        "seed": config.seed,
        "clip": 0.2,
        "learning_rate": LEARNING_RATES[mode],
        "adam_betas": [config.trainer.adam_beta1, config.trainer.adam_beta2],
    }
    if mode == "lora":
        specification["lora"] = {"r": RANK, "lora_alpha": ALPHA, "target_modules": list(TARGETS)}
    steps: list[dict[str, float]] = []
    with TrlProcess(args.trl_python, specification) as trl:
        for _ in range(args.steps):
            steps += [vars(step) for step in trl.steps(1)]
            print(f"TRL: {steps[-1]['wall']:.1f} s, {steps[-1]['memory_mb']:.0f} MB", file=sys.stderr, flush=True)
    settings = {"parts": args.parts, "checkpointing": args.checkpointing, "versions": trl.versions}
    return {"steps": steps, "memory_mb": steps[-1]["memory_mb"], "final": str(run / "final"), **settings}


def evaluated(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """`rlvr eval` of what a job saved, or of the model as it was."""
    words = [sys.executable, "-m", "rlvr", "eval", model, "--task", "gsm8k", "--json"]
    words += [word for change in task_words(args.folder) for word in ("--set", change)]
    words += ["--num-examples", str(args.held_out)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def run_job(args: argparse.Namespace, job: str, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    before = os.getloadavg()[0]
    if job == "eval":
        scored = {line["model"] for line in lines if line["job"] == "eval"}
        models = [str(args.model), *(line["final"] for line in lines if "final" in line)]
        return [
            {"job": "eval", "model": model, "scores": evaluated(args, model)}
            for model in models
            if model not in scored and Path(model).is_dir()
        ]
    side, mode = job.split(":")
    run = args.folder / f"{side}_{mode}_{len(lines)}"
    done = {"rlvr": ours, "trl": theirs}[side](args, mode, run)
    sizes = {"prompts": args.prompts, "group": args.group, "precision": args.precision}
    sizes |= {"threads": args.threads, "set": args.set}
    return [{"job": job, **sizes, **done, "load": [before, os.getloadavg()[0]]}]


def read_lines(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a step of rlvr on SmolLM2 against TRL's, in full and with LoRA.")
    parser.add_argument("model", type=Path, help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--trl-python", default=sys.executable, help="python with trl==1.16.0 and peft")
    parser.add_argument("--results", type=Path, required=True, help="file of JSON lines, one a job; added to")
    parser.add_argument("--only", nargs="*", default=list(JOBS), choices=JOBS, help="jobs; none: the table alone")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each side")
    parser.add_argument("--steps", type=int, default=3, help="steps of a job, the first of which is not counted")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of a side")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of both sides; bf16: autocast")
    parser.add_argument("--prompts", type=int, default=NUM_PROMPTS)
    parser.add_argument("--group", type=int, default=GROUP_SIZE)
    parser.add_argument("--held-out", type=int, default=100, help="questions that `eval` asks")
    parser.add_argument("--parts", type=int, default=4, help="TRL: passes per batch, gradients accumulated")
    parser.add_argument("--checkpointing", action="store_true", help="TRL: layers recomputed in the backward pass")
    parser.add_argument("--set", nargs="*", default=[], help="more overrides for rlvr")
    parser.add_argument("--folder", type=Path, help="of runs and questions; default: beside the results")
    parser.add_argument("--ours", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.folder = (args.folder or args.results.with_suffix(".runs")).absolute()
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    if args.ours:
        run_ours(args, args.ours[0], Path(args.ours[1]))
        return
    write_questions(args.folder)
    for _ in range(args.rounds):
        for job in args.only:
            for line in run_job(args, job, read_lines(args.results)):
                with args.results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    print(markdown(read_lines(args.results)))


if __name__ == "__main__":
    main()
