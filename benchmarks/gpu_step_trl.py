"""TRL's side of `gpu_step.py`: reads a specification from standard input, prints one line of JSON."""

# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportMissingImports=false

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

OUTPUT = os.fdopen(os.dup(1), "w")  # TRL's output goes to stderr
os.dup2(2, 1)

import torch  # noqa: E402
import trl  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


class Measured(GRPOTrainer):
    """Measures the generation time of a step."""

    generation = 0.0

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        begin = now()
        result = super()._generate_single_turn(*args, **kwargs)
        self.generation += now() - begin
        return result


class Clock(TrainerCallback):
    """Seconds of each step."""

    def __init__(self) -> None:
        self.trainer: Measured | None = None
        self.steps: list[tuple[float, float]] = []
        self._begin = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start of a step (rollouts, then update); only its first pass counts."""
        self._begin = self._begin or now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End of an optimizer step; the next one begins with its rollouts."""
        assert self.trainer is not None
        end = now()
        self.steps.append((end - self._begin, self.trainer.generation))
        self.trainer.generation, self._begin = 0.0, end


def now() -> float:
    """Seconds, after all queued GPU work is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def reward(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """A pseudorandom reward."""
    return [float(sum(ids) % 2) for ids in completion_ids]


def main() -> None:
    """Train, and print the times."""
    spec = json.load(sys.stdin)
    rows = len(spec["prompts"]) * spec["group_size"]
    settings = GRPOConfig(
        output_dir=spec["output"],
        use_cpu=not spec["gpu"],
        shuffle_dataset=False,
        per_device_train_batch_size=spec["micro"],
        gradient_accumulation_steps=rows // spec["micro"],
        num_generations=spec["group_size"],
        max_steps=spec["num_steps"] + 1,
        max_completion_length=spec["completion_tokens"],
        generation_kwargs={"min_new_tokens": spec["completion_tokens"]},
        temperature=1.0,
        beta=0.0,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        bf16=spec["gpu"],
        gradient_checkpointing=False,
        logging_steps=spec["num_steps"] + 2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    clock = Clock()
    trainer = Measured(
        model=AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32, attn_implementation="sdpa"),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in spec["prompts"]]),
        processing_class=AutoTokenizer.from_pretrained(spec["model"], padding_side="left"),
        callbacks=[clock],
    )
    clock.trainer = trainer
    trainer.train()
    counted = clock.steps[1:]  # the first one loads and allocates
    peak = (
        torch.cuda.max_memory_allocated() if spec["gpu"] else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    found = {
        "version": trl.__version__,
        "step": statistics.median(step for step, _ in counted),
        "generation": statistics.median(generation for _, generation in counted),
        "training": statistics.median(step - generation for step, generation in counted),
        "memory": peak,
    }
    OUTPUT.write(json.dumps(found) + "\n")
    OUTPUT.flush()


if __name__ == "__main__":
    main()
