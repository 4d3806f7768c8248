"""What methods cost until they reach a target: steps, sampled tokens, CPU seconds. A subcommand an experiment.

    python benchmarks/methods.py sampler [--seeds 1-5] [--output methods.jsonl] [KEY=VALUE ...]

    sampler   which prompts, which groups: expressions of 1 to 4 operators, five ways to choose
    distill   a teacher's logprobs instead of the reward, or beside it; the teacher is a run of GRPO with another seed
    mismatch  KL between sampler and trainer by the data types of both, without and with a float32 head
    sft       RL from a Hub-format model after a warm start on demonstrations, or on its own right samples
    memory    what a teacher of half a billion weights takes beside a model of 200 thousand, and what the plan says
    examples  the algorithms of examples/algorithms and GRPO, 40 steps on expressions of 1 to 4 operators

A run stops at the first evaluation that reaches the target. Tokens are all that were sampled for training, also those
of replaced groups and of a warm start; seconds are the process's from the first step, or the warm start, on, without
evaluations. Each line of the output is a run; runs that it has already are not made again.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import rlvr.run.assemble
import rlvr.run.tuning
from rlvr.algorithms.losses import kl_estimate
from rlvr.commands.train.body import train
from rlvr.config import Config
from rlvr.config.compose import load_config
from rlvr.core.batch import to_batch
from rlvr.core.engine import LocalEngine
from rlvr.core.episode import ChatModel
from rlvr.core.rollout import RolloutSource
from rlvr.imports import look_in
from rlvr.models.devices import frozen_copy
from rlvr.models.heads import use_float32_head
from rlvr.models.loading import load_for_inference
from rlvr.models.policy import HubPolicy
from rlvr.records.jsonl import read_metrics
from rlvr.run.opened import OpenRun
from rlvr.run.tasks import context_tokens, make_chat, open_tasks
from rlvr.types import Group

QUIET = ("tracker.console=none", "tracker.rollouts_every=null", "trainer.checkpoint_every=null")

MIXED = (
    *("task.complexity_range=[1,4]", "task.complexity_weights=null", "task.eval_complexity_weights=null"),
    *("trainer.max_steps=60", "evaluation.every=2"),
)
SAMPLERS = {
    "uniform": (),
    "pass_rate": ("sampler=pass_rate",),
    "drop": ("rollout.dead_groups=drop",),
    "refill": ("rollout.dead_groups=refill",),
    "pass_rate, refill": ("sampler=pass_rate", "rollout.dead_groups=refill"),
}

DTYPES = ("float32", "bfloat16", "float16")

EXAMPLES = {
    "grpo": (),
    "pass@4": ("algorithm=pass_at_k:PassAtK", "algorithm.k=4"),
    "MaxRL": ("algorithm=max_rl:MaxRL",),
    "grpo, 4 minibatches": ("algorithm.num_minibatches=4",),
    "Clip-Cov": ("algorithm=clip_cov:ClipCov",),
    "KL-Cov": ("algorithm=kl_cov:KlCov",),
    "GDPO": ("algorithm=gdpo:Gdpo", "reward=rpn_combined", "algorithm.weights={boxed: 0.3, correct: 0.7}"),
    "grpo, boxed and correct": ("reward=rpn_combined",),
    "RFT": ("algorithm=rft:Rft",),
}


class Meter:
    """Counts what a run samples and computes for training, and stops it at the target."""

    def __init__(self, folder: Path, metric: str, target: float) -> None:
        self.metrics, self.metric, self.target = folder / "metrics.jsonl", metric, target
        self.tokens, self.evaluation_s, self.start = 0, 0.0, 0.0
        self._sample, self._evaluate = RolloutSource.sample, rlvr.run.assemble.evaluate
        self._lessons = rlvr.run.tuning.lessons_of

    async def sample(self, source: RolloutSource, indices: Sequence[int], *, step: int) -> list[Group]:
        self.start = self.start or time.process_time() - self.evaluation_s
        groups = await self._sample(source, indices, step=step)
        turns = [turn for group in groups for episode in group.episodes for turn in episode.turns]
        self.tokens += sum(len(turn.completion.token_ids) for turn in turns)
        return groups

    def lessons(self, run: OpenRun, *arguments: Any) -> Any:
        """Those of a warm start: that of a pretrained model is part of the method."""
        if not run.config.model.from_scratch:
            self.start = time.process_time()
        return self._lessons(run, *arguments)

    def evaluate(self, *arguments: Any) -> dict[str, float]:
        begin = time.process_time()
        metrics = self._evaluate(*arguments)
        self.evaluation_s += time.process_time() - begin
        return metrics

    def accuracies(self) -> dict[str, float]:
        """By step."""
        return {f"{row['step']:.0f}": row[self.metric] for row in read_metrics(self.metrics) if self.metric in row}

    def stopped(self) -> bool:
        found = [*self.accuracies().values()] if self.metrics.exists() else []
        return bool(found) and found[-1] >= self.target

    @property
    def cpu_s(self) -> float:
        return time.process_time() - self.start - self.evaluation_s


def measure(config_name: str, words: Sequence[str], seed: int, target: float) -> dict[str, Any]:
    """One run: its accuracies by step, whether it reached the target, and what it cost until then."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        config = load_config([*QUIET, *words, f"seed={seed}", f"run_dir={folder}"], config_name=config_name)
        meter = Meter(folder, f"eval/{config.task.label}/accuracy", target)

        async def sample(source: RolloutSource, indices: Sequence[int], *, step: int) -> list[Group]:
            return await meter.sample(source, indices, step=step)

        with (
            mock.patch.object(RolloutSource, "sample", sample),
            mock.patch.object(rlvr.run.assemble, "evaluate", meter.evaluate),
            mock.patch.object(rlvr.run.tuning, "lessons_of", meter.lessons),
        ):
            steps = train(config, meter.stopped).num_steps
        accuracies = meter.accuracies()
        last = read_metrics(meter.metrics)[-1]
    reached = [*accuracies.values()][-1] >= target
    cost = {"steps": steps, "tokens": meter.tokens, "cpu_s": round(meter.cpu_s, 1)}
    return {"seed": seed, "target": target, "reached": reached, **cost, "accuracies": accuracies, "last": last}


def runs_of(
    experiment: str, methods: dict[str, tuple[str, ...]], args: argparse.Namespace, **options: Any
) -> list[Any]:
    """Measure each method with each seed, what is not in the output yet; all runs of the experiment."""
    output: Path = args.output
    runs = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    runs = [one for one in runs if one["experiment"] == experiment]
    done = {(one["method"], one["seed"]) for one in runs}
    for seed in args.seeds:
        for method, words in methods.items():
            if (method, seed) not in done:
                found = measure(words=(*words, *args.more), seed=seed, **options)
                runs.append({"experiment": experiment, "method": method, **found})
                with output.open("a") as file:
                    file.write(f"{json.dumps(runs[-1])}\n")
    return runs


def table(runs: Sequence[dict[str, Any]], methods: Sequence[str]) -> str:
    """Mean and range over the seeds that reached the target; the best accuracy over all."""
    lines = ["| method | reached | steps | sampled tokens (k) | CPU s | best accuracy |", "|---|---|---|---|---|---|"]
    for method in methods:
        own = [one for one in runs if one["method"] == method]
        good = [one for one in own if one["reached"]]
        best = [max(one["accuracies"].values()) for one in own]
        costs = [
            spread([one[key] / scale for one in good]) for key, scale in (("steps", 1), ("tokens", 1e3), ("cpu_s", 1))
        ]
        lines.append(f"| {method} | {len(good)} of {len(own)} | {' | '.join(costs)} | {spread(best, '.3f')} |")
    return "\n".join(lines)


def spread(values: Sequence[float], digits: str = ".0f") -> str:
    if not values:
        return "-"
    return f"{statistics.mean(values):{digits}} ({min(values):{digits}} - {max(values):{digits}})"


def sampler(args: argparse.Namespace) -> None:
    """Prompts by pass rate, and dead groups kept, dropped or replaced."""
    methods = {name: (*MIXED, *words) for name, words in SAMPLERS.items()}
    print(table(runs_of("sampler", methods, args, config_name="rpn", target=0.9), list(methods)))


def distill(args: argparse.Namespace) -> None:
    """On-policy distillation from a trained run, beside GRPO on the same starts."""
    teacher = args.output.parent / "teacher"
    if not (teacher / "final").is_dir():
        words = ["seed=100", "trainer.max_steps=80", f"run_dir={teacher}", *QUIET]
        accuracy = train(load_config(words, config_name="rpn")).metrics["eval/rpn/accuracy"]
        print(f"teacher: held-out accuracy {accuracy:.3f}")
    named = ("algorithm=distill", f"algorithm.teacher={teacher}", "evaluation.every=2", "trainer.max_steps=90")
    methods = {
        "GRPO, 32 x 8": ("evaluation.every=1", "trainer.max_steps=60"),
        "GRPO, 4 x 8": ("evaluation.every=2", "trainer.max_steps=90", "rollout.prompts_per_step=4"),
        "distill, 32 x 1": named,
        **{f"distill, 32 x 1, max_gap {gap}": (*named, f"algorithm.max_gap={gap}") for gap in (0.5, 3, 10)},
        "distill, 4 x 8": (*named, "rollout.prompts_per_step=4", "rollout.group_size=8"),
        "distill + reward, 4 x 8": (
            *(*named, "rollout.prompts_per_step=4", "rollout.group_size=8", "algorithm.reward_coef=1.0"),
        ),
    }
    print(table(runs_of("distill", methods, args, config_name="rpn", target=0.95), list(methods)))


def examples(args: argparse.Namespace) -> None:
    """Accuracy, pass@8 and entropy after 40 steps."""
    look_in(str(Path(__file__).parents[1] / "examples" / "algorithms"))
    more = (
        "trainer.max_steps=40",
        "evaluation.every=40",
        "evaluation.samples_per_example=8",
        "evaluation.num_examples=100",
    )
    methods = {name: (*MIXED[:3], *more, *words) for name, words in EXAMPLES.items()}
    runs = runs_of("examples", methods, args, config_name="rpn", target=2.0)
    keys = ("eval/rpn/accuracy", "eval/rpn/pass_at_8", "policy/entropy")
    print(f"| method | {' | '.join(keys)} |\n|---|---|---|---|")
    for method in methods:
        cells = [spread([one["last"][key] for one in runs if one["method"] == method], ".3f") for key in keys]
        print(f"| {method} | {' | '.join(cells)} |")


def mismatch(args: argparse.Namespace) -> None:
    """k3 of KL(sampler || trainer) a token, of one trained model; 512 completions."""
    print("| sampler | trainer | as the rest | float32 head |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        task = load_config([*QUIET, *args.more, f"seed={args.seeds[0]}", f"run_dir={folder}"])
        train(task)
        for sampler, trainer in itertools.product(DTYPES, DTYPES):
            kls = [mismatch_kl(folder / "final", task, sampler, trainer, exact_head=exact) for exact in (False, True)]
            print(f"| {sampler} | {trainer} | {' | '.join(f'{kl:.1e}' for kl in kls)} |")


def mismatch_kl(folder: Path, config: Config, sampler: str, trainer: str, *, exact_head: bool) -> float:
    policy = load_for_inference(str(folder))
    if exact_head:
        use_float32_head(policy.model)
    engine = LocalEngine(
        frozen_copy(policy.model, getattr(torch, sampler)),
        max_batch_size=256,
        max_context_tokens=context_tokens(policy),
    )
    with open_tasks(config, None, {}) as tasks:
        chat = make_chat(config, policy, tasks.own)
        model = ChatModel(engine=engine, chat=chat, max_context_tokens=context_tokens(policy))
        source = RolloutSource(task=tasks.own, model=model, settings=config.rollout, seed=config.seed)
        batch = to_batch(asyncio.run(source.sample(range(64), step=0)))
    mask = batch.loss_mask[:, 1:]
    half = torch.float16 if trainer == "float16" else torch.bfloat16
    with torch.no_grad(), torch.autocast("cpu", dtype=half, enabled=trainer != "float32"):
        logits = policy.logits(policy.hidden(batch.ids))[:, :-1]
    logprobs = logits.float().log_softmax(-1).gather(2, batch.ids[:, 1:, None])[..., 0]
    return kl_estimate(batch.behavior_logprobs[:, 1:][mask] - logprobs[mask], "k3").mean().item()


SFT = ("warm_start.enabled=true", "warm_start.cache=false", "warm_start.learning_rate=3e-4")
STARTS = {
    "none": (),
    "20 demonstrations": (*SFT, "warm_start.num_examples=20", "warm_start.num_epochs=20"),
    "200 demonstrations": (*SFT, "warm_start.num_examples=200", "warm_start.num_epochs=20"),
    "own, 8 samples of 200": (*SFT, "warm_start.source=own", "warm_start.num_examples=200"),
}


def sft(args: argparse.Namespace) -> None:
    """Hub-format models that know how and mostly answer at once; then a warm start, then GRPO to 0.95."""
    for task in ("rpn", "two_hop"):
        base = args.output.with_name(f"sft_{task}")
        if not (base / "final").is_dir():
            train(load_config([*QUIET, "trainer.max_steps=0", f"run_dir={base}"], config_name=task))
        more = ("model=hf", f"model.name_or_path={base / 'final'}", "trainer.learning_rate=4e-4")
        more += ("trainer.max_steps=60", "evaluation.every=2", "evaluation.num_examples=500")
        methods = {f"{task}, {name}": (*more, *words) for name, words in STARTS.items()}
        runs = runs_of("sft", methods, args, config_name=task, target=0.95)
        print(table(runs, list(methods)))
        for method in methods:
            first = [one["accuracies"]["0"] for one in runs if one["method"] == method]
            print(f"{method}: accuracy before RL {spread(first, '.3f')}")


def memory(args: argparse.Namespace) -> None:
    """The peak of two steps of `rlvr train`, in processes of their own, beside the plan's line."""
    parent = args.output.parent.resolve()
    teacher, start = parent / "teacher_500m", parent / "start"
    words = [*QUIET, "warm_start.num_steps=5", "warm_start.warmup_steps=0", "warm_start.final_phase_steps=0"]
    if not (teacher / "config.json").is_file():
        train(load_config([*words, "trainer.max_steps=0", f"run_dir={start}"], config_name="rpn"))
        tokenizer = AutoTokenizer.from_pretrained(start / "final")
        shape = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 28, "num_attention_heads": 16}
        size = {"vocab_size": len(tokenizer), "max_position_embeddings": 64, "num_key_value_heads": 16}
        model = LlamaForCausalLM(LlamaConfig(**shape, **size))  # pyright: ignore[reportArgumentType]
        HubPolicy(model=model.eval(), tokenizer=tokenizer).save(teacher)
    for name in ("start", str(teacher)):
        run = parent / f"memory_{Path(name).name}"
        more = ["algorithm=distill", f"algorithm.teacher={name}", "evaluation.num_examples=20", f"run_dir={run}"]
        command = [
            sys.executable,
            "-m",
            "rlvr",
            "train",
            *words[1:],
            *more,
            "tracker.console=plain",
            "trainer.max_steps=2",
        ]
        with tempfile.TemporaryFile("w+") as said, subprocess.Popen(command, stderr=said, stdout=said) as process:
            peaks = most_memory(process)
            said.seek(0)
            lines = [text for text in said.read().splitlines() if text.startswith(("memory: ", "teacher: "))]
        shutil.rmtree(run)
        print(f"teacher {Path(name).name}", *lines, peaks, sep="\n    ")


def most_memory(process: subprocess.Popen[bytes]) -> str:
    """Of a process until it ends: its own memory, and with the pages of mapped files, which the system can drop."""
    most = {"RssAnon": 0, "VmHWM": 0}
    while process.poll() is None:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in most:
                most[name] = max(most[name], int(value.split()[0]))
        time.sleep(0.02)
    assert process.returncode == 0, process.args
    return f"peak {most['RssAnon'] / 1e6:.2f} GB, {most['VmHWM'] / 1e6:.2f} GB with mapped files"


EXPERIMENTS = {
    "sampler": sampler,
    "distill": distill,
    "mismatch": mismatch,
    "examples": examples,
    "memory": memory,
    "sft": sft,
}


def numbers(text: str) -> list[int]:
    """`1-3` or `1,2,4`."""
    first, dash, last = text.partition("-")
    return [*range(int(first), int(last) + 1)] if dash else [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3, 4, 5])
    parser.add_argument("--output", type=Path, default=Path("methods.jsonl"))
    parser.add_argument("more", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    EXPERIMENTS[args.experiment](args)


if __name__ == "__main__":
    main()
